"""Lightning's Trainer with a learned augmentation. Run: python examples/lightning_trainer.py"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.data import load_digits
from particleaugment.integrations.lightning import ParticleAugmentCallback


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10)
        self.network = nn.Sequential(*layers)

    def forward(self, images):  # uint8; those of training_step are augmented
        return self.network(images / 255)

    def training_step(self, batch, number):
        images, labels, _ = batch
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch, number):
        images, labels, _ = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


data = load_digits()
train = DataLoader(pa.IndexedDataset((data.train_images, data.train_labels)), batch_size=64, shuffle=True)
test = DataLoader(pa.IndexedDataset((data.test_images, data.test_labels)), batch_size=64)
search = pa.ParticleAugment(pa.PaperFilter(num_particles=16, clone_size=512, measure_size=128), seed=0)
trainer = lightning.Trainer(max_epochs=5, callbacks=[ParticleAugmentCallback(search)], default_root_dir="runs")
trainer.fit(Classifier(), train, test)
print(search, f"accuracy {100 * float(trainer.logged_metrics['accuracy']):.1f} %")
