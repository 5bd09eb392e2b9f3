"""Autocast, a GradScaler, gradient accumulation and a compiled model. Run: python examples/mixed_precision.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

device, half = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.bfloat16)
data = load_digits()
paper = pa.PaperFilter(num_particles=16, clone_size=512, measure_size=128)  # trains a clone with your settings
search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=5, filter=paper, seed=0)
loader = DataLoader(search.training_set(), batch_size=32, shuffle=True, drop_last=True)
model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
model = torch.compile(model, backend="aot_eager")  # omit the backend if you have a C++ compiler
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
scaler, accumulate, loss = torch.amp.GradScaler(device), 2, nn.CrossEntropyLoss(reduction="none")


def autocast():
    return torch.autocast(device, half)


for epoch in search.epochs():
    for number, (images, labels, ids) in enumerate(loader, 1):
        with autocast():
            logits = model(search.augment(images.to(device), ids) / 255)
        scaler.scale(loss(logits.float(), labels.to(device)).mean() / accumulate).backward()
        if number % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    search.step(
        model, loss=loss, preprocess=lambda images: images / 255, optimizer=optimizer, batch_size=32,
        autocast=autocast, scaler=scaler, accumulate=accumulate,
    )  # fmt: skip
    print(epoch, search)
