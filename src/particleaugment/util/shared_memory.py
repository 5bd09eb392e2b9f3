"""Memory that processes share, and what is said where there is none left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["SharedMemoryError", "ordinary_tensors", "sharing"]

# torch raises plain RuntimeErrors: "unable to open shared memory object </torch_7_8_9> in read-write mode: Too many
# open files (24)".
_REFUSED = re.compile(r"unable to .*</torch_.*: (.+?)(?: \(\d+\))?\s*")


class SharedMemoryError(RuntimeError):
    """There is no room in the memory that processes share."""


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Let tensors that are made in this block, or in the function it decorates, be changed later, anywhere.

    Under ``torch.inference_mode`` they would be such as nobody may write to outside of it.
    """
    with torch.inference_mode(False):
        yield


@contextmanager
def sharing() -> Iterator[None]:
    """Say in one sentence what is full if tensors cannot be shared in this block, or in the function it decorates."""
    try:
        yield
    except RuntimeError as error:
        refused = _REFUSED.fullmatch(str(error))
        if refused is None:
            raise
        raise SharedMemoryError(
            f"there is no shared memory left ({refused[1]}): /dev/shm is full, or the limit on "
            "open files (ulimit -n) or on their size (ulimit -f) is reached; free some, or raise the limit"
        ) from None
