"""Your own loop under Hugging Face Accelerate. Run: python examples/accelerate_loop.py"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
data = load_digits()
search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=5, seed=0)
loader = DataLoader(search.training_set(), batch_size=32, shuffle=True)
model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loss = nn.CrossEntropyLoss(reduction="none")

accelerator.register_for_checkpointing(search)
for epoch in search.epochs():
    for images, labels, ids in loader:
        with accelerator.accumulate(model):
            losses = loss(model(search.augment(images, ids) / 255), labels)
            search.observe(ids, losses)
            accelerator.backward(losses.mean())
            optimizer.step()
            optimizer.zero_grad()
    search.step(model, loss=loss, preprocess=lambda images: images / 255, autocast=accelerator.autocast)
    accelerator.save_state("runs/accelerate")
    accelerator.print(epoch, f"loss {float(losses.detach().mean()):.3f}", search)

accelerator.load_state("runs/accelerate")  # restores model, optimizer and search
accelerator.print(search)
