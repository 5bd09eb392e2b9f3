"""Data sets as tensors, and keyed ways to split and order them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from particleaugment.data.dataset import ImageData, channel_statistics
from particleaugment.data.digits import load_digits
from particleaugment.data.split import (
    disjoint_stratified_subsets,
    epoch_permutation,
    stratified_subset,
    train_validation_split,
)
from particleaugment.ops import nearest_name

__all__ = [
    "DATA_SETS",
    "ImageData",
    "channel_statistics",
    "disjoint_stratified_subsets",
    "epoch_permutation",
    "load_data",
    "load_digits",
    "stratified_subset",
    "train_validation_split",
]

DATA_SETS: Mapping[str, Callable[[], ImageData]] = MappingProxyType({"digits": load_digits})
"""Loaders of the data sets by name."""


def load_data(name: str) -> ImageData:
    """Load a data set by name.

    >>> load_data("digits").num_classes
    10
    """
    if name not in DATA_SETS:
        hint = nearest_name(name, DATA_SETS) or f"; the data sets are {', '.join(DATA_SETS)}"
        raise ValueError(f"there is no data set {name!r}{hint}")
    return DATA_SETS[name]()
