"""What the callbacks have in common: taking a search through a framework's epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from particleaugment.search.protocol import FilterRecord
from particleaugment.search.search import ParticleAugment

__all__ = ["SearchDriver"]


class SearchDriver:
    """Takes the filter step between two epochs, exactly once, also where a run is resumed between or within epochs.

    Args:
        search: The search.
        dataset: Training data for the filter steps; None takes the loader's.
        loss: ``loss(logits, targets)`` returning one value per sample; None is cross entropy.
        preprocess: Turns augmented uint8 images into the network's input; None leaves them as they are.
        batch_size: Batch of the clone's training, as that of one process's loader; None takes the loader's.
    """

    def __init__(
        self,
        search: ParticleAugment,
        dataset: Any,
        loss: Callable[[Tensor, Tensor], Tensor] | None,
        preprocess: Callable[[Tensor], Tensor] | None,
        batch_size: int | None,
    ):
        if not isinstance(search, ParticleAugment):
            raise TypeError(f"a ParticleAugment is expected, got {type(search).__name__}")
        self.search, self.dataset, self.batch_size = search, dataset, batch_size
        self.preprocess = nn.Identity() if preprocess is None else preprocess
        self.loss = nn.CrossEntropyLoss(reduction="none") if loss is None else loss
        self.stepped_after = 0

    def begin_epoch(
        self,
        epoch: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        scaler: torch.amp.GradScaler | None = None,
        accumulate: int = 1,
        max_grad_norm: float | None = None,
    ) -> FilterRecord | None:
        """Start an epoch, counted from 1: take the filter step that is due after the one before, and set the epoch.

        By now schedulers have set the learning rate of this epoch, and workers of the loader have nothing to do.
        """
        last, record = epoch - 1, None
        if self.search.filter.held_out and last == self.stepped_after == 0:
            self.search.check_held_out(self.search.samples_of(self._dataset_of(loader)).labels)
        if last > self.stepped_after and self.search.due(last):
            self.search.set_epoch(last)
            record = self.search.step(
                model=model,
                optimizer=optimizer,
                dataset=self._dataset_of(loader),
                loss=self.loss,
                preprocess=self.preprocess,
                batch_size=self.batch_size or _batch_size_of(loader),
                autocast=autocast,
                scaler=scaler,
                accumulate=accumulate,
                max_grad_norm=max_grad_norm,
            )
            self.stepped_after = last
        self.search.set_epoch(epoch)
        return record

    def _dataset_of(self, loader: Any) -> Any:
        dataset = getattr(loader, "dataset", None) if self.dataset is None else self.dataset
        if dataset is None:
            raise ValueError(
                f"the training loader, a {type(loader).__name__}, has no one data set; give the callback one"
            )
        return dataset

    def state_dict(self) -> dict[str, Any]:
        """Return the search's state and after which epoch it last took a step."""
        return {"search": self.search.state_dict(), "stepped_after": self.stepped_after}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.search.load_state_dict(state["search"])
        self.stepped_after = int(state["stepped_after"])


def _batch_size_of(loader: Any) -> int:
    sampler = getattr(loader, "batch_sampler", None)  # Accelerate's loaders have no batch size but their sampler's
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or 128
    split = getattr(sampler, "split_batches", False) or getattr(loader, "split_batches", False)
    return max(1, size // getattr(sampler, "num_processes", 1)) if split else size
