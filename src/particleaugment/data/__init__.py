"""Data sets as tensors, and keyed ways to split and order them."""

from particleaugment.data.dataset import ImageData, channel_statistics
from particleaugment.data.digits import load_digits
from particleaugment.data.split import (
    disjoint_stratified_subsets,
    epoch_permutation,
    stratified_subset,
    train_validation_split,
)

__all__ = [
    "ImageData",
    "channel_statistics",
    "disjoint_stratified_subsets",
    "epoch_permutation",
    "load_digits",
    "stratified_subset",
    "train_validation_split",
]
