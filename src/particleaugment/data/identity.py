"""Which data a run was started with, as a hash that is cheap enough for a million files.

Of images in memory every pixel counts. Of files that are decoded while training, all names, labels and sizes count, and
the contents of a sample, which the run's seed draws; of a small folder that is every file. Images in the rows of a
table count likewise, but for their sizes. Where files are, and their times, play no part: data may be moved and copied.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from torch import Tensor

from particleaugment.data.listing import ImageList
from particleaugment.data.memory import ImageData
from particleaugment.data.reader import ReadError
from particleaugment.data.split import epoch_permutation
from particleaugment.data.streamed import StreamedData
from particleaugment.util.reading import open_file

__all__ = ["SAMPLED_FILES", "data_identity"]

SAMPLED_FILES = 1000
"""Files of the training set, and of the test set, whose contents are compared."""

_IMAGES_AT_ONCE = 4096
_THREADS = 16  # on a network's file system most of the time is spent waiting


def data_identity(data: ImageData | StreamedData, seed: int) -> str:
    """Return a hash of a run's data.

    Args:
        data: The data.
        seed: The run's seed, which chooses the sample of files.

    Raises:
        ReadError: if a file cannot be read.
    """
    digest = hashlib.blake2b(repr(data.classes).encode(errors="surrogateescape"), digest_size=32)
    if isinstance(data, StreamedData):
        for images in (data.train.images, data.test.images):
            _update(digest, images.labels, images.names, images.ends)
            if images.source(0) is None:
                digest.update(_file_sizes(images).tobytes())
            for content in _sampled_contents(images, seed):
                digest.update(content)
    else:
        for pixels, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels)):
            digest.update(repr(tuple(pixels.shape)).encode())
            _update(digest, labels, *pixels.split(_IMAGES_AT_ONCE))
    if data.train_groups is not None:
        _update(digest, data.train_groups)
    return digest.hexdigest()


def _update(digest: hashlib.blake2b, *tensors: Tensor) -> None:
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).reshape(-1).data)


def _file_sizes(images: ImageList) -> np.ndarray:
    sizes = np.empty(len(images), np.int64)
    names, ends, root = (
        images.names.numpy().tobytes(),
        images.ends.tolist(),
        os.path.join(os.fsencode(images.root), b""),
    )

    def look(some: np.ndarray) -> None:
        for index in some.tolist():
            try:
                sizes[index] = os.stat(root + names[ends[index - 1] if index else 0 : ends[index]]).st_size
            except OSError as error:
                raise ReadError(f"the image {images.path(index)} cannot be read: {error.strerror}") from None

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(look, some) for some in np.array_split(np.arange(len(images)), _THREADS)]:
            done.result()
    return sizes


def _sampled_contents(images: ImageList, seed: int) -> list[bytes]:
    def content(index: int) -> bytes:
        source = images.source(index)
        if source is not None:
            return hashlib.blake2b(source.read()).digest()
        try:
            with open_file(images.path(index)) as file:
                return hashlib.file_digest(file, "blake2b").digest()
        except OSError as error:
            raise ReadError(f"the image {images.path(index)} cannot be read: {error.strerror}") from None

    chosen = epoch_permutation(len(images), seed, epoch=0)[:SAMPLED_FILES].sort().values
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(content, chosen.tolist()))
