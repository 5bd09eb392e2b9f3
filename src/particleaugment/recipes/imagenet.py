"""ImageNet, and folders of one's own images."""

from __future__ import annotations

from particleaugment.recipes.definition import Recipe
from particleaugment.search.paper import PaperFilter
from particleaugment.training.config import Config
from particleaugment.training.settings import DataSettings, TrainingSettings, TransformSettings

__all__ = ["folder", "imagenet_resnet50"]

_MEAN_COLOUR = (124, 116, 104)


def imagenet_resnet50() -> Recipe:
    """ResNet-50 at 224 pixels, 210 epochs, batch 256 (the paper's 64 on each of four GPUs).

    Takes days on one H200, most of it for decoding JPEGs: worker processes make random resized crops from the files,
    and the GPU does the rest, including colour jitter. The paper reports 77.5 % (76.9 % after 120 epochs). Set
    ``data_dir`` to the folder with ``train`` and ``val``.
    """
    return Recipe(
        Config(
            recipe="imagenet-resnet50",
            data=DataSettings(name="folder", image_size=224, normalization="imagenet"),
            model="resnet-50",
            training=TrainingSettings(epochs=210, batch_size=256, learning_rate=0.05),
            transforms=TransformSettings(crop=0, crop_scale=0.08, jitter=0.4, erase=0.0, fill=_MEAN_COLOUR),
        ),
        paper=PaperFilter(nonzero=3, m=3.0, eta=0.15, clone_size=0.15, measure_size=5000),
    )


def folder() -> Recipe:
    """ResNet-18 on a folder of your own images, one sub-folder per class, at 64 pixels.

    Trains on about 60,000 images in total: the number of epochs, from 20 to 200, depends on the number of images. With
    1,000 training and 3,925 test images of Imagenette that takes five to eight minutes on two CPU cores, half of it for
    evaluation, and one seed reached 62.1 % (``benchmarks/folder_time.py``). The run prints the remaining time. Set
    ``data_dir`` and, if you like, ``image_size`` and ``epochs``: ``particleaugment train folder --set data_dir=PATH``.
    Images that do not fit in memory are decoded during training, to the same pixels. For photos whose objects vary in
    size and position, use ``crop=0`` with ``crop_scale=0.25`` (or ImageNet's 0.08) to train on random resized crops.
    """
    return Recipe(
        Config(
            recipe="folder",
            data=DataSettings(name="folder", image_size=64),
            model="resnet-18",
            training=TrainingSettings(epochs=0, batch_size=64, learning_rate=0.05),
            transforms=TransformSettings(crop=8, erase=0.25),
        ),
        paper=PaperFilter(clone_size=0.3, measure_size=0.05),
    )
