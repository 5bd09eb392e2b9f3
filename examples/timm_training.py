"""A loop with timm's model, optimizer, schedule, Mixup, EMA and scaler. Run: python examples/timm_training.py"""

import torch
from timm import create_model
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV2, NativeScaler, accuracy
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits

device = "cuda" if torch.cuda.is_available() else "cpu"
data, train_loss = load_digits(), SoftTargetCrossEntropy()
search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=5, seed=0)
loader = DataLoader(search.training_set(), batch_size=64, shuffle=True, drop_last=True)
model = create_model("resnet10t", num_classes=10).to(device)
ema, mixup, scaler = ModelEmaV2(model, decay=0.98), Mixup(0.2, 1.0, num_classes=10), NativeScaler()
optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=5)
sample_loss = torch.nn.CrossEntropyLoss(reduction="none")
for epoch in search.epochs():
    for images, labels, ids in loader:  # fixed policy: pa.Augment("rand-m9-mstd0.5-inc1")
        augmented = search.augment(images.to(device), ids) / 255
        mixed, soft = mixup(augmented, labels.to(device))  # Mixup and CutMix come last
        value = train_loss(model(mixed), soft)
        search.observe(ids, value - torch.special.entr(soft).sum(1).mean())  # mixed labels cost their entropy
        optimizer.zero_grad()
        scaler(value, optimizer, clip_grad=1.0, parameters=model.parameters())
        ema.update(model)
    scheduler.step(epoch)
    search.step(model, loss=sample_loss, preprocess=lambda images: images / 255)
    logits = ema.module.eval()(data.test_images.to(device) / 255)
    print(epoch, f"accuracy {float(accuracy(logits, data.test_labels.to(device))[0]):.1f} %", search)
