"""Lightning's Trainer with a learned augmentation. Run: python examples/lightning_trainer.py"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import particleaugment as pa
from particleaugment.data import load_digits
from particleaugment.integrations.lightning import ParticleAugmentCallback


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images):  # uint8; augmented if called by training_step
        return self.network(images / 255)

    def training_step(self, batch, number):
        images, labels, _ = batch
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch, number):
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


data = load_digits()
search = pa.ParticleAugment((data.train_images, data.train_labels), epochs=5, seed=0)
train = DataLoader(search.training_set(), batch_size=64, shuffle=True)
test = DataLoader(TensorDataset(data.test_images, data.test_labels), batch_size=64)
trainer = lightning.Trainer(max_epochs=5, callbacks=[ParticleAugmentCallback(search)], default_root_dir="runs")
trainer.fit(Classifier(), train, test)
print(search, f"accuracy {100 * float(trainer.logged_metrics['accuracy']):.1f} %")
