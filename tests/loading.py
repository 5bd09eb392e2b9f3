"""A data set that augments in workers; a module of its own, so that spawned workers import little."""

import os

import torch
from torch.utils.data import Dataset

COUNT = 24
IMAGES = torch.randint(0, 256, (COUNT, 3, 16, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Transformed(Dataset):
    """Gives index, augmented image and the process that augmented it."""

    def __init__(self, transform, with_ids=True):
        self.transform, self.with_ids = transform, with_ids

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        image = self.transform(IMAGES[index], id=index) if self.with_ids else self.transform(IMAGES[index])
        return index, image, os.getpid()


def read_epoch(loader):
    """Return the images in order of their index, and the processes that made them."""
    batches = list(loader)
    order = torch.cat([batch[0] for batch in batches]).argsort()
    return torch.cat([batch[1] for batch in batches])[order], {int(pid) for batch in batches for pid in batch[2]}
