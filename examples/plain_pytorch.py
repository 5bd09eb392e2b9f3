"""Your own training loop: two calls per batch and one per epoch. Run: python examples/plain_pytorch.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

data = load_digits()
train = (data.train_images, data.train_labels)  # or any data set of (image, label)
model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
loss = nn.CrossEntropyLoss(reduction="none")

search = pa.ParticleAugment(train, epochs=10, seed=0)
loader = DataLoader(search.training_set(), batch_size=64, shuffle=True)
for epoch in search.epochs():
    for images, labels, ids in loader:
        losses = loss(model(search.augment(images, ids) / 255), labels)
        search.observe(ids, losses)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    scheduler.step()
    search.step(model, loss=loss, preprocess=lambda images: images / 255)
    right = (model(data.test_images / 255).argmax(1) == data.test_labels).float().mean()
    print(f"epoch {epoch}: {100 * right:.1f} % test accuracy, {search.policy.ops_per_image:.2f} ops per image")
search.schedule().save("policy.json")  # every policy of the run, to replay on another network
