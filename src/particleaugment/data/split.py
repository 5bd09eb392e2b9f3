"""Keyed stratified subsets and permutations: pure functions of (labels, sizes, seed, step).

Every sample gets two uniforms. The first ranks it within its class, and each subset takes the next few ranks of every
class; the second decides where it stands in the subset that it falls into.

How many a class gives to a subset is its exact quota, size x (class count) / (all samples), rounded down or up at
random such that the subset's size is exact, no class is asked for more than it has, and the expected number *is* the
quota (Cox, "A constructive procedure for unbiased controlled rounding", JASA 1987). So every sample is in a subset
with the same probability, also where the classes differ in size: largest-remainder rounding would favour the same
classes in every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from particleaugment.core.random import Stream, uniform
from particleaugment.data.groups import whole_groups

__all__ = [
    "batch_count",
    "batch_sizes",
    "disjoint_stratified_subsets",
    "epoch_permutation",
    "held_out_split",
    "stratified_subset",
    "train_validation_split",
]

# Steps count up from 0; the splits of the training set itself must not share their draws with any of them.
_HOLDOUT_STEP = 2**32 - 1
SUBSET_STEP = 2**32 - 2
_KEY_BITS = 40


def stratified_subset(
    labels: Tensor,
    size: int | float,
    seed: int,
    step: int,
    stream: Stream = Stream.SPLIT,
    exclude: Tensor | None = None,
) -> Tensor:
    """Return the indices of ``size`` samples with the class proportions of ``labels``, in keyed random order.

    ``size`` is a number of samples, or a fraction of ``len(labels)`` as a float in (0, 1). Indices in ``exclude`` are
    left out; the proportions are then those of the remaining samples.

    >>> labels = torch.arange(100) % 4
    >>> chosen = stratified_subset(labels, 20, seed=0, step=3)
    >>> labels[chosen].bincount().tolist()
    [5, 5, 5, 5]
    >>> fresh = stratified_subset(labels, 0.5, seed=0, step=3, exclude=chosen)
    >>> len(fresh), torch.isin(fresh, chosen).any().item()
    (50, False)
    """
    _check_labels(labels)
    ids = torch.arange(len(labels), dtype=torch.int64, device="cpu")
    if exclude is not None:
        _check_indices(exclude, len(labels))
        keep = torch.ones(len(labels), dtype=torch.bool, device="cpu")
        keep[exclude.cpu()] = False
        ids = ids[keep]
    sizes = _absolute_sizes([size], len(labels), available=len(ids))
    return _draw(labels.cpu()[ids], ids, sizes, seed, step, stream)[0].to(labels.device)


def disjoint_stratified_subsets(labels: Tensor, sizes: Sequence[int | float], seed: int, step: int) -> list[Tensor]:
    """Return one index tensor per size, no two sharing a sample, each stratified and in keyed random order.

    Each size is a number of samples, or a fraction of ``len(labels)`` as a float in (0, 1). In every subset each
    class is within one sample of its exact share.

    >>> labels = torch.arange(1000) % 10
    >>> train, probe = disjoint_stratified_subsets(labels, [0.5, 20], seed=0, step=1)
    >>> len(train), len(probe), torch.isin(train, probe).any().item()
    (500, 20, False)
    >>> labels[probe].bincount().tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    _check_labels(labels)
    absolute = _absolute_sizes(sizes, len(labels), available=len(labels))
    ids = torch.arange(len(labels), dtype=torch.int64, device="cpu")
    return [subset.to(labels.device) for subset in _draw(labels.cpu(), ids, absolute, seed, step, Stream.SPLIT)]


def train_validation_split(
    labels: Tensor, validation: int | float, seed: int, names: Sequence[str] = (), groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ascending indices (training, validation) that share the samples out, stratified by class.

    A class of one sample is refused; ``names`` are those of the classes, to tell it by. Where samples have ``groups``,
    int64 ``[N]`` from 0 on, these are kept whole, the sizes are approximate, and a class with a single group is left to
    training.

    >>> train, validation = train_validation_split(torch.arange(50) % 5, 0.2, seed=0)
    >>> len(train), len(validation), torch.equal(torch.cat([train, validation]).sort().values, torch.arange(50))
    (40, 10, True)
    """
    if groups is not None:
        return _split_groups(labels, groups, validation, seed)
    lonely = _lonely_samples(labels)
    if len(lonely):
        number = int(labels[lonely].min())
        raise ValueError(
            f"class {names[number] if names else number} has a single sample, but training and validation need one "
            "each; add samples or drop the class"
        )
    return _split(labels, validation, seed, lonely)


def held_out_split(
    labels: Tensor, held_out: int | float, seed: int, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return what :func:`train_validation_split` does, with classes of one sample left to training.

    >>> train, measured = held_out_split(torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 0]), 4, seed=0)
    >>> len(measured), 4 in train
    (4, True)
    """
    if groups is not None:
        return _split_groups(labels, groups, held_out, seed)
    lonely = _lonely_samples(labels)
    if len(lonely) == len(labels):
        raise ValueError(
            "every class has a single sample, so none can be held out; if the targets are quantities and not classes, "
            "pass them as floating-point numbers"
        )
    return _split(labels, held_out, seed, lonely)


def _split(labels: Tensor, held_out: int | float, seed: int, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices to train on, those to keep among them, and those that are held out."""
    size = _held_out_size(labels, held_out)
    return _two_sides(labels, stratified_subset(labels, size, seed, _HOLDOUT_STEP, exclude=kept))


def _split_groups(labels: Tensor, groups: Tensor, held_out: int | float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to train on and those that are held out, no group being on both sides."""
    _check_labels(labels)
    size = _held_out_size(labels, held_out)
    chosen = whole_groups(labels, groups, size, seed, _HOLDOUT_STEP, leave=True)
    if not len(chosen):
        raise ValueError(
            "no group can be held out, because each is the only group of some class; use smaller groups or groups=none"
        )
    return _two_sides(labels, chosen)


def _held_out_size(labels: Tensor, held_out: int | float) -> int:
    (size,) = _absolute_sizes([held_out], len(labels), available=len(labels))
    if size == len(labels):
        raise ValueError(
            f"validation takes all {size} samples and leaves none to train on; use a smaller number or a fraction"
        )
    return size


def _two_sides(labels: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    chosen = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    chosen[second] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def _lonely_samples(labels: Tensor) -> Tensor:
    """Return the indices of samples that are the only ones of their class."""
    _check_labels(labels)
    _, first, counts = np.unique(labels.cpu().numpy(), return_index=True, return_counts=True)
    return torch.from_numpy(first[counts == 1])


def epoch_permutation(n: int, seed: int, epoch: int) -> Tensor:
    """Return the int64 permutation of 0..n-1 in which epoch ``epoch`` visits the samples.

    >>> order = epoch_permutation(5, seed=0, epoch=2)
    >>> torch.equal(order.sort().values, torch.arange(5)), torch.equal(order, epoch_permutation(5, seed=0, epoch=2))
    (True, True)
    """
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}; use the number of samples")
    ids = torch.arange(n, dtype=torch.int64, device="cpu")
    keys = uniform(seed, Stream.SHUFFLE, epoch, ids, slots=1)[:, 0]
    return torch.from_numpy(keys.numpy().argsort(kind="stable"))  # numpy's takes one thread; see _draw


def batch_sizes(count: int, size: int) -> list[int]:
    """Return the sizes of the batches that ``count`` samples train in.

    A single sample that would be left over joins the batch before it, since batch norm may refuse to train on one.

    >>> batch_sizes(34, 16), batch_sizes(33, 16), batch_sizes(3, 1)
    ([16, 16, 2], [16, 17], [1, 1, 1])
    """
    whole, rest = divmod(count, size)
    if whole and rest == 1:
        return [size] * (whole - 1) + [size + 1]
    return [size] * whole + [rest] * (rest > 0)


def batch_count(count: int, size: int) -> int:
    """Return how many batches :func:`batch_sizes` gives, without making a list of them.

    >>> batch_count(34, 16), batch_count(33, 16), batch_count(1, 16), batch_count(10**12, 1)
    (3, 2, 1, 1000000000000)
    """
    whole, rest = divmod(count, size)
    return whole + (rest > 1 or (rest == 1 and not whole))


def _draw(labels: Tensor, ids: Tensor, sizes: Sequence[int], seed: int, step: int, stream: Stream) -> list[Tensor]:
    # In numpy, which takes one thread: torch's would wait for each other where processes share the cores.
    _, class_index, class_counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    keys = uniform(seed, stream, step, ids, slots=2).numpy()
    # Class and key in one integer, so that a single sort groups by class and ranks within it.
    by_class = ((class_index << _KEY_BITS) + (keys[:, 0] * 2.0**_KEY_BITS).astype(np.int64)).argsort(kind="stable")
    sorted_class = class_index[by_class]
    rank = np.arange(len(ids)) - (class_counts.cumsum() - class_counts)[sorted_class]

    counts = np.array(_rounded_quotas(sizes, class_counts.tolist(), seed, step, stream))
    ends = counts.cumsum(0)
    subsets = []
    for start, end in zip(ends - counts, ends):
        members = by_class[(rank >= start[sorted_class]) & (rank < end[sorted_class])]
        subsets.append(ids[torch.from_numpy(members[keys[members, 1].argsort(kind="stable")])])
    return subsets


def _rounded_quotas(
    sizes: Sequence[int], class_counts: list[int], seed: int, step: int, stream: Stream
) -> list[list[int]]:
    """Round size x class count / total, one row per size, to integers with exact row sums and unbiased cells."""
    total = sum(class_counts)
    rows = [*sizes, total - sum(sizes)]  # the samples in no subset are a row too: it makes every column sum whole
    counts = [[size * count // total for count in class_counts] for size in rows]
    # Fractional parts, exactly, in units of 1/total. Every row and column of them sums to a multiple of total, so
    # whoever enters a row or column through one open (non-zero) cell finds another, and any walk closes into a cycle.
    parts = [[size * count % total for count in class_counts] for size in rows]
    open_in_row = [{column: None for column, part in enumerate(row) if part} for row in parts]
    cells = torch.arange(len(rows) * len(class_counts), dtype=torch.int64, device="cpu")
    coins = iter(uniform(seed, stream, step, cells, slots=3)[:, 2].tolist())
    for row in range(len(rows)):
        while open_in_row[row]:
            cycle = _open_cycle(parts, open_in_row, row)
            # Shifting a cycle alternately up and down keeps all sums. Both directions go as far as a cell allows, and
            # are chosen with the odds that leave each cell's expectation where it was.
            rising, falling = cycle[0::2], cycle[1::2]
            up = min(min(total - parts[r][c] for r, c in rising), min(parts[r][c] for r, c in falling))
            down = min(min(parts[r][c] for r, c in rising), min(total - parts[r][c] for r, c in falling))
            shift = up if next(coins) * (up + down) < down else -down
            for sign, cells_of_sign in ((1, rising), (-1, falling)):
                for r, c in cells_of_sign:
                    parts[r][c] += sign * shift
                    if parts[r][c] in (0, total):
                        counts[r][c] += parts[r][c] // total
                        parts[r][c] = 0
                        del open_in_row[r][c]
    return counts[:-1]


def _open_cycle(parts: list[list[int]], open_in_row: list[dict[int, None]], row: int) -> list[tuple[int, int]]:
    """Return open cells (row, column), neighbours sharing by turns a column and a row, the last one with the first."""
    rows, columns = [row], list[int]()
    while True:
        row = rows[-1]
        columns.append(next(c for c in open_in_row[row] if not columns or c != columns[-1]))
        onward = [r for r in range(len(parts)) if r != row and parts[r][columns[-1]]]
        # Closing at the row visited last keeps a column that was passed before from entering the cycle twice.
        visited = [place for place, r in enumerate(rows) if r in onward]
        if visited:
            rows, columns = rows[visited[-1] :], columns[visited[-1] :]
            steps = zip(rows, columns, rows[1:] + rows[:1])
            return [cell for r, column, following in steps for cell in ((r, column), (following, column))]
        rows.append(onward[0])


def _absolute_sizes(sizes: Sequence[int | float], count: int, available: int) -> list[int]:
    absolute = [_absolute_size(size, count) for size in sizes]
    if sum(absolute) > available:
        raise ValueError(
            f"subsets of {' + '.join(map(str, absolute))} samples do not fit into {available}; ask for fewer samples"
        )
    return absolute


def _absolute_size(size: int | float, count: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int | float):
        raise TypeError(
            f"a subset's size must be an int or a float, got {type(size).__name__}; "
            "use a number of samples or a fraction of the data"
        )
    if isinstance(size, int):
        if size < 1:
            raise ValueError(f"a subset must have at least 1 sample, got {size}; leave out empty subsets")
        return size
    if not 0 < size < 1:
        raise ValueError(
            f"a fraction must be strictly between 0 and 1, got {size}; for a number of samples pass an int"
        )
    # Rounding down keeps fractions that sum to 1 within the data; the small term mends 0.29 * 100 = 28.999999999999996.
    absolute = math.floor(size * count + 1e-6)
    if absolute < 1:
        raise ValueError(f"a fraction of {size} of {count} samples is less than one sample; use a larger fraction")
    return absolute


def _check_labels(labels: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.dim() != 1:
        kind = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a 1-D int64 tensor, got {kind}; use torch.tensor([...], dtype=torch.int64)")


def _check_indices(indices: Tensor, count: int) -> None:
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.dim() != 1:
        kind = f"{indices.dtype} {list(indices.shape)}" if isinstance(indices, Tensor) else type(indices).__name__
        raise TypeError(
            f"exclude must be a 1-D int64 tensor of sample indices, got {kind}; use tensor.nonzero().flatten()"
        )
    if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= count):
        raise ValueError(
            f"exclude must contain indices in 0..{count - 1}, got {int(indices.min())}..{int(indices.max())}"
        )
