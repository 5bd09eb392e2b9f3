"""A transform of single images in the workers of a data loader. Run: python examples/data_loader_workers.py"""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import particleaugment as pa
from particleaugment.data import load_digits

data = load_digits()


class Pictures(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return len(data.train_labels)

    def __getitem__(self, index):
        picture = Image.fromarray(data.train_images[index, 0].numpy()).convert("RGB")  # as a decoder returns it
        return np.array(self.transform(picture, id=index), np.float32).transpose(2, 0, 1) / 255, index


if __name__ == "__main__":
    search = pa.ParticleAugment(pa.PaperFilter(num_particles=16, clone_size=512, measure_size=128), seed=0)
    loader = DataLoader(Pictures(pa.ImageTransform(search)), batch_size=64, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=0.003), nn.CrossEntropyLoss(reduction="none")
    for epoch in range(1, 4):
        search.set_epoch(epoch)  # before the loop starts: workers read it, and the particles, from shared memory
        for images, index in loader:
            optimizer.zero_grad()
            loss(model(images), data.train_labels[index]).mean().backward()
            optimizer.step()
        search.step(model=model, optimizer=optimizer, dataset=(data.train_images, data.train_labels), loss=loss,
                    preprocess=lambda images: images / 255, batch_size=64)  # fmt: skip
        print(epoch, search)
