"""What the callbacks have in common: taking a search through a framework's epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from particleaugment.search.filter_base import FilterRecord
from particleaugment.search.search import ParticleAugment

__all__ = ["SearchDriver"]


class SearchDriver:
    """Takes the filter step between two epochs, exactly once, also where a run is resumed between or within epochs.

    Args:
        search: The search.
        loss: ``loss(logits, targets)`` returning one value per sample; None is cross entropy.
        preprocess: Turns augmented uint8 images into the network's input; None leaves them as they are.
        batch_size: Batch size of a clone's training, that of one process's loader; None takes the loader's.
    """

    def __init__(
        self,
        search: ParticleAugment,
        loss: Callable[[Tensor, Tensor], Tensor] | None,
        preprocess: Callable[[Tensor], Tensor] | None,
        batch_size: int | None,
    ):
        if not isinstance(search, ParticleAugment):
            raise TypeError(f"expected a ParticleAugment, got {type(search).__name__}")
        self.search, self.batch_size = search, batch_size
        self.preprocess = nn.Identity() if preprocess is None else preprocess
        self.loss = nn.CrossEntropyLoss(reduction="none") if loss is None else loss

    def check_epochs(self, epochs: float | None) -> None:
        """Refuse a trainer that trains for another number of epochs than the search was made for; None is unknown."""
        if epochs is not None and epochs != self.search.num_epochs:
            raise ValueError(
                f"the Trainer trains for {epochs:g} epochs, and the search was created for {self.search.num_epochs}; "
                "give both the same number"
            )

    def begin_epoch(self, epoch: int, *, model: nn.Module, loader: Any, **training: Any) -> FilterRecord | None:
        """Begin an epoch, counted from 1, and end the one before, with a filter step if one is due.

        By now schedulers have set the learning rate of this epoch, and workers of the loader have nothing to do.

        Args:
            epoch: The epoch.
            model: The network.
            loader: The training loader.
            training: How the network is trained: the optimizer and whatever else
                :meth:`particleaugment.ParticleAugment.step` takes.
        """
        search, record = self.search, None
        if 0 < search.epoch < epoch and not search.epoch_ended:
            size = self.batch_size or _batch_size_of(loader)
            record = search.step(model, loss=self.loss, preprocess=self.preprocess, batch_size=size, **training)
        search.begin_epoch(epoch, resumed=True)
        return record


def _batch_size_of(loader: Any) -> int:
    sampler = getattr(loader, "batch_sampler", None)  # Accelerate's loaders have no batch size but their sampler's
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or 128
    split = getattr(sampler, "split_batches", False) or getattr(loader, "split_batches", False)
    return max(1, size // getattr(sampler, "num_processes", 1)) if split else size
