"""How long a run trains where its recipe leaves that to the data."""

from __future__ import annotations

from dataclasses import replace

from particleaugment.data import find_files, load_data, needed_place
from particleaugment.training.config import Config, ConfigError

__all__ = ["chosen_epochs", "with_epochs"]

IMAGES = 60_000
"""Training images that a run sees over all of its epochs, where few or many epochs do not forbid it."""
FEWEST, MOST = 20, 200


def chosen_epochs(images: int) -> int:
    """Return how many epochs suit so many training images: 20 to 200, and 60,000 images in all between these.

    >>> [chosen_epochs(images) for images in (50, 300, 1000, 2000, 3000, 50_000)]
    [200, 200, 60, 30, 20, 20]
    """
    return max(FEWEST, min(MOST, round(IMAGES / images)))


def with_epochs(config: Config) -> Config:
    """Return a configuration whose number of epochs is set: by the number of its training images, where it is 0.

    >>> with_epochs(Config(recipe="mine")).training.epochs
    250
    """
    if config.training.epochs:
        return config
    data = config.data
    if data.has_files:
        if not data.data_dir:
            raise ConfigError(needed_place(data.name))
        found = find_files(data.name, data.data_dir, data.groups)
        count = len(found.selected(data.validation, data.train_size, data.data_seed)[0])
    else:
        loaded = load_data(
            data.name,
            data.data_dir or None,
            validation=data.validation,
            train_size=data.train_size,
            seed=data.data_seed,
            quiet=True,
        )
        count = len(loaded.train_labels)
    return replace(config, training=replace(config.training, epochs=chosen_epochs(count)))
