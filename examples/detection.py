"""Boxes and labels in your own training loop, with a fixed policy. Run: python examples/detection.py"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss

import particleaugment as pa
from particleaugment.data import load_digits


def canvases(digits, seed):  # one digit on each canvas, and its box: left, top, right, bottom
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(len(digits), 3, 64, 64, dtype=torch.uint8)
    corners = torch.randint(0, 32, (len(digits), 2), generator=generator)
    for image, digit, (x, y) in zip(images, digits, corners):
        image[:, y : y + 32, x : x + 32] = digit
    return images, [torch.tensor([[x, y, x + 32, y + 32]]) for x, y in corners.tolist()]


data = load_digits()
images, boxes = canvases(data.train_images, 0)
labels = [label.reshape(1) for label in data.train_labels]
augment = pa.Augment("randaugment-n2-m4", seed=0, before=(pa.PadCrop(8),), min_visible=0.5)
layers = [(nn.Conv2d(n, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU()) for n in (3, 32, 32, 32)]
model = nn.Sequential(*sum(layers, ()), nn.Flatten(), nn.Linear(32 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 14))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
for epoch in range(1, 6):
    augment.set_epoch(epoch)
    total = kept = 0
    for ids in torch.randperm(len(images)).split(32):
        moved = augment(images[ids], ids, boxes=[boxes[i] for i in ids], labels=[labels[i] for i in ids])
        visible = torch.tensor([len(part) > 0 for part in moved.boxes])  # boxes that left the image are dropped
        output = model(moved.images[visible] / 255)  # ten classes, and a box
        box, label = torch.cat(moved.boxes) / 64, torch.cat(moved.labels)
        error = l1_loss(output[:, 10:], box)
        optimizer.zero_grad()
        (cross_entropy(output[:, :10], label) + 10 * error).backward()
        optimizer.step()
        total, kept = total + 64 * error.item() * len(label), kept + len(label)
    print(f"epoch {epoch}: edges are {total / kept:.1f} pixels off, {kept} of {len(images)} digits in view")
