"""Augment images one by one, in the workers of a data loader. Run: python examples/data_loader_workers.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

if __name__ == "__main__":
    data = load_digits()
    search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=3, seed=0)
    train = search.training_set(transform=pa.ImageTransform(search))  # or any chain that contains it
    loader = DataLoader(train, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=0.003), nn.CrossEntropyLoss(reduction="none")
    for epoch in search.epochs():  # workers read the epoch and the policy from shared memory
        for images, labels, ids in loader:
            losses = loss(model(images / 255), labels)
            search.observe(ids, losses)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        search.step(model, loss=loss, preprocess=lambda images: images / 255)
        print(epoch, search)
