"""Lightning's Trainer on two ranks, for test_rank_loops.py: started as by torchrun, or starting processes itself.

torchrun --nproc-per-node 2 tests/distributed/lightning_loops.py launched FOLDER
python tests/distributed/lightning_loops.py spawned FOLDER
"""

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from loops import PER_RANK, of
from torch import nn
from torch.utils.data import DataLoader
from toy import IMAGES, network, preprocess, search_by, search_of

import particleaugment as pa
from particleaugment.integrations.lightning import ParticleAugmentCallback
from particleaugment.trainee.ranks import fingerprint


class Module(lightning.LightningModule):
    """Notes its batches, and writes at the end what it has seen."""

    def __init__(self, search, file):
        super().__init__()
        self.network, self.unused = network(), nn.Linear(2, 2)
        self.search, self.file, self.batches = search, file, []

    def forward(self, images):
        return self.network(preprocess(images))

    def training_step(self, batch, number):
        images, labels, ids = batch
        self.batches.append((self.current_epoch + 1, ids.clone(), images.clone()))
        return nn.functional.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def on_train_end(self):
        search = self.trainer.callbacks[0].search
        schedule = search.schedule(self.trainer.max_epochs)
        as_drawn = [
            torch.equal(images, pa.apply(IMAGES[ids], schedule.at(epoch).sample(ids, epoch, 7, (8, 8))))
            for epoch, ids, images in self.batches
        ]
        ids = torch.cat([ids for epoch, ids, _ in self.batches if epoch == 4])
        found = {"steps": search.steps_taken, "state": of(search), "pixels": all(as_drawn), "ids": ids.tolist()}
        found |= {"network": fingerprint(self.parameters()), "epochs": len(schedule.steps)}
        search.augmentation.set_epoch(100 + self.global_rank)
        self.trainer.strategy.barrier()
        found["own epoch"] = search.epoch
        torch.save(found, f"{self.file}-{self.global_rank}.pt")


def fit(folder, name, strategy, search, checkpoint=None, keep=None):
    after_epochs = {"every_n_epochs": 2, "save_on_train_epoch_end": True, "save_top_k": -1}
    keep = keep or ModelCheckpoint(folder, filename="{epoch}", **after_epochs)
    settings = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    settings |= {"enable_checkpointing": checkpoint is None, "default_root_dir": folder, "devices": 2}
    callbacks = [ParticleAugmentCallback(search), *([] if checkpoint else [keep])]
    trainer = lightning.Trainer(max_epochs=4, callbacks=callbacks, strategy=strategy, **settings)
    options = {} if checkpoint is None else {"ckpt_path": checkpoint, "weights_only": True}
    trainer.fit(Module(search, folder / name), DataLoader(search.training_set(), PER_RANK), **options)


def launched(folder):
    """Four epochs, and again from the checkpoint after the second."""
    strategy = "ddp_find_unused_parameters_true"
    fit(folder, "straight", strategy, search_of(start_value=0.9, epochs=4))
    fit(folder, "resumed", strategy, search_of(start_value=0.9, epochs=4), folder / "epoch=1.ckpt")
    # By a filter that needs the training losses, saved last after the first batch of the fourth epoch.
    search = search_by(pa.DifficultyFilter, measure_size=12, epochs=4, seed=7, every=1)
    keep = ModelCheckpoint(folder, filename="within", every_n_train_steps=5, save_top_k=1, monitor=None)
    fit(folder, "within", strategy, search, keep=keep)


def spawned(folder):
    """The difficulty filter, in processes that Lightning starts, which begin with one memory."""
    search = search_by(pa.DifficultyFilter, measure_size=12, epochs=4, seed=7, start=1.5)
    fit(folder, "straight", "ddp_spawn_find_unused_parameters_true", search)


if __name__ == "__main__":
    {loop.__name__: loop for loop in (launched, spawned)}[sys.argv[1]](Path(sys.argv[2]))
