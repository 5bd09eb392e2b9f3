"""ImageNet, and folders of one's own images."""

from __future__ import annotations

from particleaugment.training.config import Config

__all__ = ["folder", "imagenet_resnet50"]

_MEAN_COLOUR = (124, 116, 104)


def imagenet_resnet50() -> Config:
    """ResNet-50 at 224 pixels, 210 epochs, batch 256 (the paper's 64 on each of four GPUs).

    Costs days on one H200, most of it decoding JPEGs: worker processes cut random resized crops from the files, and the
    GPU does the rest, colour jitter included. The paper reports 77.5 % (76.9 % after 120 epochs). Set ``data_dir`` to
    the folder with ``train`` and ``val``.
    """
    return Config(
        recipe="imagenet-resnet50",
        data="folder",
        image_size=224,
        normalization="imagenet",
        model="resnet-50",
        epochs=210,
        batch_size=256,
        learning_rate=0.05,
        crop=0,
        crop_scale=0.08,
        jitter=0.4,
        erase=0.0,
        fill=_MEAN_COLOUR,
        nonzero=3,
        m=3.0,
        eta=0.15,
        clone_size=0.15,
        measure_size=5000,
    )


def folder() -> Config:
    """ResNet-18 on a folder of your own images, one sub-folder per class, at 64 pixels.

    Costs what your images cost: it prints how much time is left. Set ``data_dir``, and ``image_size`` and ``epochs`` to
    taste: ``particleaugment train folder --set data_dir=PATH``. Images that do not fit in memory are decoded while it
    trains, to the same pixels. For photographs in which things lie anywhere at any size, ``crop=0`` with
    ``crop_scale=0.25`` (or ImageNet's 0.08) trains on random parts of the files instead.
    """
    return Config(
        recipe="folder",
        data="folder",
        image_size=64,
        model="resnet-18",
        epochs=60,
        batch_size=64,
        learning_rate=0.05,
        crop=8,
        erase=0.25,
        num_particles=24,
        clone_size=0.3,
        measure_size=0.05,
    )
