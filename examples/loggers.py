"""Log numbers, figures and the policy's heat map to TensorBoard or Weights & Biases. Run: python examples/loggers.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

import particleaugment as pa
from particleaugment.data import load_digits
from particleaugment.report.loggers import SearchLogger

data = load_digits()
search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=3, seed=0)
loader = DataLoader(search.training_set(), batch_size=64, shuffle=True)
model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
loss = nn.CrossEntropyLoss(reduction="none")

writer = SummaryWriter("runs/tensorboard")
logger = SearchLogger(writer)  # or wandb.init(...), or any object with log(values, step=...)
for epoch in search.epochs():
    for images, labels, ids in loader:
        losses = loss(model(search.augment(images, ids) / 255), labels)
        search.observe(ids, losses)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    record = search.step(model, loss=loss, preprocess=lambda images: images / 255)
    logger.log(search, record, step=epoch)
writer.close()
print("tensorboard --logdir runs/tensorboard")
