"""Your own loop under Lightning Fabric. Run: python examples/lightning_fabric.py"""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
data = load_digits()
train = (data.train_images, data.train_labels)
search = pa.ParticleAugment(train, epochs=5, seed=0)
loader = fabric.setup_dataloaders(DataLoader(search.training_set(), batch_size=64, shuffle=True))
network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=0.003))
loss = nn.CrossEntropyLoss(reduction="none")

for epoch in search.epochs():
    for images, labels, ids in loader:
        optimizer.zero_grad()
        losses = loss(model(search.augment(images, ids) / 255), labels)
        search.observe(ids, losses)
        fabric.backward(losses.mean())
        optimizer.step()
    # The plain network, with Fabric's precision.
    search.step(network, loss=loss, preprocess=lambda images: images / 255, autocast=fabric.autocast)
    fabric.save("runs/fabric.ckpt", {"model": model, "optimizer": optimizer, "search": search})
    fabric.print(epoch, f"loss {float(losses.detach().mean()):.3f}", search)

resumed = pa.ParticleAugment(train, epochs=5, seed=0)
fabric.load("runs/fabric.ckpt", {"model": model, "optimizer": optimizer, "search": resumed})
assert resumed.policy == search.policy
