"""Splits that keep groups whole: all images of a track, a patient or a scene end up on the same side.

Groups are visited in keyed random order. One is taken if that brings the number of samples per class nearer to its
target, in the sum over all classes of absolute differences. So a class whose groups are its own comes within half of
its largest group of its target. Classes that are still missing then get the group that costs least. Equal classes are
all rounded the same way, so in a last pass groups are added or dropped where that brings the total nearer and leaves
every class within one group of its target.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from particleaugment.core.random import Stream, uniform
from particleaugment.util.strict_json import clipped

__all__ = ["GROUPINGS", "as_groups", "check_grouping", "groups_of_names", "smallest_cover", "whole_groups"]

GROUPINGS = ("none", "prefix", "class-prefix")
"""How file names are read as groups: not at all, across all classes, or within each class."""


def check_grouping(grouping: str) -> None:
    """Raise a ValueError unless this is one of :data:`GROUPINGS`."""
    if grouping not in GROUPINGS:
        raise ValueError(f"groups must be one of {', '.join(GROUPINGS)}, got {grouping!r}")


def groups_of_names(names: Sequence[str], labels: Tensor, grouping: str) -> Tensor | None:
    """Return the group of each file, int64 ``[N]``: what its name begins with, up to the first underscore.

    Args:
        names: Paths; only the files' own names matter.
        labels: The files' classes.
        grouping: One of :data:`GROUPINGS`; ``none`` returns None.

    >>> names, labels = ["stop/1_a.png", "stop/1_b.png", "yield/1_a.png"], torch.tensor([0, 0, 1])
    >>> groups_of_names(names, labels, "prefix"), groups_of_names(names, labels, "class-prefix")
    (tensor([0, 0, 0]), tensor([0, 0, 1]))
    """
    check_grouping(grouping)
    if grouping == "none":
        return None
    prefixes = []
    for name in names:
        prefix, underscore, _ = os.path.basename(name).partition("_")
        if not (prefix and underscore):
            raise ValueError(
                f"{clipped(name)} has no group in its name: groups={grouping} reads the part before the first "
                "underscore; rename the file, as in TRACK_0001.png, or set groups=none"
            )
        prefixes.append(prefix)
    if grouping == "class-prefix":
        return as_groups([f"{label}_{prefix}" for label, prefix in zip(labels.tolist(), prefixes)])
    return as_groups(prefixes)


def as_groups(groups: Tensor | Sequence[Any] | None) -> Tensor | None:
    """Return groups given by numbers or names as numbers from 0 on, int64 ``[N]``; None stays None.

    >>> as_groups(["ann", "bob", "ann"])
    tensor([0, 1, 0])
    """
    if groups is None:
        return None
    values = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if values.ndim != 1 or values.dtype.kind not in "iuUS":
        raise TypeError(
            f"groups must be one whole number or name per sample, got {values.dtype} {list(values.shape)}; "
            "number the groups"
        )
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].astype(np.int64))


def whole_groups(
    labels: Tensor, groups: Tensor, size: int, seed: int, step: int, *, leave: bool, stream: Stream = Stream.SPLIT
) -> Tensor:
    """Return ascending indices of whole groups, about ``size`` samples with the class proportions of ``labels``.

    Args:
        labels: Classes of the samples, int64 ``[N]``.
        groups: Their groups, int64 ``[N]``, from 0 on.
        size: The number of samples to come near to.
        seed: Part of the key.
        step: Part of the key.
        leave: Whether every class keeps a group that is not taken: a class with a single group is then not touched, and
            of the others one group at least is taken where the rest allows it. Otherwise every class has a group taken.
        stream: Part of the key.

    >>> labels, groups = torch.arange(40) % 2, torch.arange(40) // 4
    >>> chosen = whole_groups(labels, groups, 11, seed=0, step=0, leave=True)
    >>> len(chosen), labels[chosen].bincount().tolist(), groups[chosen].bincount().unique().tolist()
    (12, [6, 6], [0, 4])
    """
    table = _Table(labels, groups, size)
    count = len(table.members)
    ids = torch.arange(count, dtype=torch.int64, device="cpu")
    # Slots 0 to 2 belong to splits of single samples.
    order = uniform(seed, stream, step, ids, slots=4)[:, 3].numpy().argsort(kind="stable").tolist()
    for group in order:
        if table.cost(group) < 0 and not (leave and table.takes_last(group)):
            table.take(group)
    table.cover(order, leave)
    for group in order:
        table.balance(group, leave)
    return table.indices().to(labels.device)


def smallest_cover(labels: Tensor, groups: Tensor) -> int:
    """Return a number of samples that whole groups with a sample of every class do with.

    Where every group is of one class, no smaller number does.

    >>> smallest_cover(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 2, 2]))
    3
    """
    table = _Table(labels, groups, 0)
    table.cover(range(len(table.members)), leave=False)
    return len(table.indices())


class _Table:
    """Groups by class, and what has been taken so far; in whole numbers, so that no rounding decides."""

    def __init__(self, labels: Tensor, groups: Tensor, size: int):
        if groups.shape != labels.shape:
            raise ValueError(f"groups must have one entry for each of the {len(labels)} samples, got {len(groups)}")
        self.groups = groups.cpu().numpy()
        classes, class_index, counts = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
        cells, cell_counts = np.unique(self.groups * len(classes) + class_index, return_counts=True)
        self.members: list[list[tuple[int, int]]] = [[] for _ in range(int(self.groups.max(initial=-1)) + 1)]
        self.of_class: list[list[int]] = [[] for _ in classes]
        for cell, number in zip(cells.tolist(), cell_counts.tolist()):
            group, place = divmod(cell, len(classes))
            self.members[group].append((place, number))
            self.of_class[place].append(group)
        self.left = [len(found) for found in self.of_class]
        self.total, self.size = len(labels), size
        self.targets = [size * count for count in counts.tolist()]  # in units of 1/total
        self.taken_samples = [0] * len(classes)
        self.taken_total = 0
        self.taken = [False] * len(self.members)

    def cost(self, group: int) -> int:
        """Return by how much the distance to the targets would grow."""
        change = 0
        for place, number in self.members[group]:
            missing = self.targets[place] - self.total * self.taken_samples[place]
            change += abs(missing - self.total * number) - abs(missing)
        return change

    def balance(self, group: int, leave: bool) -> None:
        """Take a group, or drop it, if that brings the total nearer to the size and no class a group or more off."""
        sign = -1 if self.taken[group] else 1
        excess = self.taken_total - self.size
        if abs(excess + sign * sum(number for _, number in self.members[group])) >= abs(excess):
            return
        if self.drops_last(group) if self.taken[group] else leave and self.takes_last(group):
            return
        for place, number in self.members[group]:
            after = self.targets[place] - self.total * (self.taken_samples[place] + sign * number)
            if abs(after) >= self.total * number:
                return
        self.take(group, sign)

    def drops_last(self, group: int) -> bool:
        """Whether some class would have no group taken."""
        return any(len(self.of_class[place]) - self.left[place] == 1 for place, _ in self.members[group])

    def takes_last(self, group: int) -> bool:
        """Whether some class would have no group left."""
        return any(self.left[place] == 1 for place, _ in self.members[group])

    def take(self, group: int, sign: int = 1) -> None:
        """Take a group; with a sign of -1, drop it."""
        self.taken[group] = sign > 0
        self.taken_total += sign * sum(number for _, number in self.members[group])
        for place, number in self.members[group]:
            self.taken_samples[place] += sign * number
            self.left[place] -= sign

    def cover(self, order: Sequence[int], leave: bool) -> None:
        """Take a group of every class that has none taken, where that is possible; the scarcest classes first."""
        rank = {group: place for place, group in enumerate(order)}
        for place in sorted(range(len(self.of_class)), key=lambda place: (len(self.of_class[place]), place)):
            if self.taken_samples[place]:
                continue
            found = [group for group in self.of_class[place] if not (leave and self.takes_last(group))]
            if found:
                self.take(min(found, key=lambda group: (self.cost(group), rank[group])))

    def indices(self) -> Tensor:
        taken = np.array(self.taken, dtype=bool)
        return torch.from_numpy(taken[self.groups].nonzero()[0])
