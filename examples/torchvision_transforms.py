"""Inside torchvision's Compose, with CutMix or MixUp after it. Run: python examples/torchvision_transforms.py"""

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import particleaugment as pa
from particleaugment.data import load_digits

if __name__ == "__main__":
    data = load_digits()
    pictures = [Image.fromarray(image[0].numpy()).convert("RGB") for image in data.train_images]
    train = list(zip(pictures, data.train_labels.tolist()))  # as in torchvision's data sets
    search = pa.ParticleAugment(train, epochs=3, seed=0)
    transform = v2.Compose([v2.RandomCrop(32, padding=2), pa.ImageTransform(search), v2.ToImage(),
                            v2.ToDtype(torch.float32, scale=True)])  # fmt: skip
    mix = v2.RandomChoice([v2.CutMix(num_classes=10), v2.MixUp(num_classes=10)])
    loader = DataLoader(search.training_set(transform), 64, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=0.003), nn.CrossEntropyLoss(reduction="none")
    for epoch in search.epochs():
        for images, labels, ids in loader:
            mixed, soft_labels = mix(images, labels)
            losses = loss(model(mixed), soft_labels)
            search.observe(ids, losses - torch.special.entr(soft_labels).sum(1))  # mixed labels cost their entropy
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        search.step(model, loss=loss, preprocess=lambda images: images / 255)
        print(epoch, search)
