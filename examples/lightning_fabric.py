"""Your own loop under Lightning Fabric. Run: python examples/lightning_fabric.py"""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
data = load_digits()
train = pa.IndexedDataset((data.train_images, data.train_labels))
loader = fabric.setup_dataloaders(DataLoader(train, batch_size=64, shuffle=True))
network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=0.003))
loss = nn.CrossEntropyLoss(reduction="none")

search = pa.ParticleAugment(pa.PaperFilter(num_particles=16, clone_size=512, measure_size=128), seed=0)
for epoch in range(1, 6):
    search.set_epoch(epoch)
    for images, labels, ids in loader:
        optimizer.zero_grad()
        value = loss(model(search.augment(images, ids) / 255), labels).mean()
        fabric.backward(value)
        optimizer.step()
    search.step(  # the network itself, under Fabric's precision
        model=network, optimizer=optimizer, dataset=train, loss=loss,
        preprocess=lambda images: images / 255, batch_size=64, autocast=fabric.autocast,
    )  # fmt: skip
    fabric.save("runs/fabric.ckpt", {"model": model, "optimizer": optimizer, "search": search})
    fabric.print(epoch, f"loss {float(value.detach()):.3f}", search)

resumed = pa.ParticleAugment(pa.PaperFilter(num_particles=16, clone_size=512, measure_size=128), seed=0)
fabric.load("runs/fabric.ckpt", {"model": model, "optimizer": optimizer, "search": resumed})
assert resumed.policy == search.policy
