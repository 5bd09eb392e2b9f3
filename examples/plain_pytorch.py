"""Your own training loop: two calls per epoch and one per batch. Run: python examples/plain_pytorch.py"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import particleaugment as pa
from particleaugment.data import load_digits
from particleaugment.models import WideResNet

data = load_digits()
train = TensorDataset(data.train_images, data.train_labels, torch.arange(len(data.train_labels)))
loader = DataLoader(train, batch_size=128, shuffle=True)
model = WideResNet(depth=10, width=1, num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
loss = torch.nn.CrossEntropyLoss(reduction="none")

search = pa.ParticleAugment(num_particles=16, nonzero=3, m=3, seed=0, clone_size=512, measure_size=64)
for epoch in range(1, 4):
    search.set_epoch(epoch)
    for images, labels, ids in loader:
        x = search.augment(images, ids) / 255
        optimizer.zero_grad()
        loss(model(x), labels).mean().backward()
        optimizer.step()
    search.step(
        model=model, optimizer=optimizer, dataset=(data.train_images, data.train_labels),
        loss=loss, preprocess=lambda images: images / 255, batch_size=128,
    )  # fmt: skip
    print(epoch, search)
