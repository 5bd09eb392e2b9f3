"""Which samples are trained on and which are held out for measuring, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from particleaugment.data.groups import as_groups
from particleaugment.data.split import held_out_split
from particleaugment.search.filter_base import Filter
from particleaugment.trainee.ranks import fingerprint

__all__ = ["Division"]


class Division:
    """The samples that a filter holds out, drawn once, and the samples of every epoch.

    Every epoch has as many places as there are samples. While samples are held out, others of their class stand in for
    them, by turns. So an epoch has the same number of steps as without a filter, and each class its share.

    Args:
        filter: Says how many samples are held out, and in which epochs.
        labels: Class of every sample, int64 ``[N]``.
        epochs: Length of the training run.
        seed: Seed of the draw.
        groups: Group of each sample, a number or a name, where no group may be on both sides.

    >>> from particleaugment import DifficultyFilter
    >>> division = Division(DifficultyFilter(measure_size=2), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), epochs=5, seed=0)
    >>> [len(division.ids_in(epoch)) for epoch in range(1, 6)]
    [6, 6, 6, 6, 8]
    >>> [division.places_in(epoch).tolist() for epoch in (1, 2, 5)]
    [[2, 1, 2, 3, 6, 5, 6, 7], [3, 1, 2, 3, 7, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    """

    def __init__(
        self,
        filter: Filter[Any],
        labels: Tensor,
        *,
        epochs: int,
        seed: int,
        groups: Tensor | Sequence[Any] | None = None,
    ):
        self.filter, self.labels, self.epochs = filter, labels.to("cpu", torch.int64), epochs
        self.groups = as_groups(groups)
        self.split = _draw_split(filter, self.labels, seed, self.groups)
        filter.check_data(self.labels, self.split, seed)

    def holds_out_in(self, epoch: int) -> bool:
        """Whether an epoch leaves held-out samples out."""
        return self.split is not None and self.filter.holds_out_in(epoch, self.epochs)

    def ids_in(self, epoch: int) -> Tensor:
        """Return all samples that may be trained on in an epoch, in rising order."""
        if self.split is not None and self.holds_out_in(epoch):
            return self.split[0]
        return torch.arange(len(self.labels), device="cpu")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the samples' classes and groups."""
        return fingerprint([self.labels] if self.groups is None else [self.labels, self.groups])

    def places_in(self, epoch: int) -> Tensor:
        """Return the sample that has each place in an epoch: itself, or another of its class where it is held out."""
        ids = torch.arange(len(self.labels), device="cpu")
        if self.holds_out_in(epoch):
            for places, others in self._stand_ins:
                turn = torch.arange(epoch * len(places), (epoch + 1) * len(places), device="cpu")
                ids[places] = others[turn % len(others)]
        return ids

    @cached_property
    def _stand_ins(self) -> list[tuple[Tensor, Tensor]]:
        """The held-out samples of every class that has some, and the samples that stand in for them."""
        assert self.split is not None
        trained, held_out = self.split
        pairs = []
        for label in self.labels[held_out].unique():
            others = trained[self.labels[trained] == label]
            pairs.append((held_out[self.labels[held_out] == label], others if len(others) else trained))
        return pairs

    @cached_property
    def held_out(self) -> Tensor:
        """Whether each sample is one of those held out, bool ``[N]``."""
        chosen = torch.zeros(len(self.labels), dtype=torch.bool, device="cpu")
        if self.split is not None:
            chosen[self.split[1]] = True
        return chosen

    def wrong(self, ids: Tensor, epoch: int, held_out: Tensor | None = None) -> Tensor:
        """Return which samples an epoch must not train on; also ids that no sample has.

        Args:
            ids: The samples.
            epoch: The epoch.
            held_out: A copy of :attr:`held_out` on the ids' device, if they are not on the CPU.
        """
        outside = (ids < 0) | (ids >= len(self.labels))
        if not self.holds_out_in(epoch):
            return outside
        return outside | (self.held_out if held_out is None else held_out)[ids.clamp(0, len(self.labels) - 1)]

    def check_epoch(self, epoch: int) -> None:
        """Refuse an epoch beyond the training run."""
        if epoch > self.epochs:
            raise ValueError(
                f"the search was created for {self.epochs} epochs, and this is epoch {epoch}; pass ParticleAugment the "
                "number of epochs that the network trains for"
            )

    def check(self, ids: Tensor, epoch: int) -> None:
        """Refuse samples that an epoch must not train on."""
        wrong = self.wrong(ids, epoch)
        if not wrong.any():
            return
        number = int(ids[wrong][0])
        if not 0 <= number < len(self.labels):
            raise ValueError(
                f"a sample's id is its index in the train_set, from 0 to {len(self.labels) - 1}, got {number}; pass "
                "the ids that search.training_set() yields"
            )
        raise ValueError(self.complaint(f"sample {number} is", epoch))

    @staticmethod
    def complaint(what: str, epoch: int) -> str:
        """Return what is said where held-out samples are trained on."""
        return (
            f"{what} held out for measuring and must not be trained on in epoch {epoch}; create the training loader, "
            "and its sampler if it has one, from search.training_set()"
        )


def _draw_split(filter: Filter[Any], labels: Tensor, seed: int, groups: Tensor | None) -> tuple[Tensor, Tensor] | None:
    size = filter.held_out_of(len(labels))
    if not size:
        return None
    try:
        trained, held_out = held_out_split(labels, size, seed, groups)
    except ValueError as error:
        raise ValueError(f"measure_size={size} does not work with {len(labels)} samples: {error}") from None
    if len(held_out) < 2:
        raise ValueError(
            f"measure_size={size} holds out one of {len(labels)} samples, which gives no standard error; set a "
            "number, such as measure_size=32, or a larger fraction"
        )
    return trained, held_out
