"""Segmentation under a learned policy: digits on a canvas, foreground masks. Run: python examples/segmentation.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits


def canvases(digits, seed):  # digits on noisy canvases, and masks of their pixels
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 160, (len(digits), 3, 48, 48), dtype=torch.uint8, generator=generator)
    masks = torch.zeros(len(digits), 48, 48, dtype=torch.int64)
    for mask, digit in zip(masks, digits):
        y, x = torch.randint(0, 16, (2,), generator=generator).tolist()
        mask[y : y + 32, x : x + 32] = digit[0] > 100
    return images + (80 * masks.unsqueeze(1)).to(torch.uint8), masks


def loss(logits, masks):  # one value per sample; 255 marks areas filled in by augmentation
    return nn.functional.cross_entropy(logits, masks, ignore_index=255, reduction="none").mean((1, 2))


data, epochs, preprocess = load_digits(), 10, lambda images: images / 255
train, test = canvases(data.train_images[:64], 0), canvases(data.test_images[:128], 1)
layers = [nn.Sequential(nn.Conv2d(n, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU()) for n in (3, 16, 16)]
model = nn.Sequential(*layers, nn.Conv2d(16, 2, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
search = pa.ParticleAugment(train, epochs=epochs)
for epoch in search.epochs():
    for images, masks, ids in DataLoader(search.training_set(), batch_size=8, shuffle=True):
        images, masks, *_ = search.augment(images, ids, masks=masks)
        losses = loss(model(preprocess(images)), masks)
        search.observe(ids, losses)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    search.step(model, loss=loss, preprocess=preprocess)
    print(f"epoch {epoch}: {(model(preprocess(test[0])).argmax(1) == test[1]).float().mean():.1%} right, {search}")
