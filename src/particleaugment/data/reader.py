"""Worker processes that decode images by id, in the order asked for, and stay alive between epochs."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from particleaugment.data.folder import FolderDataset
from particleaugment.util.shared_memory import ordinary_tensors, sharing

__all__ = ["ReadError", "Reader", "default_workers"]

_CHUNK = 32  # images that a worker decodes at a time: all workers share in every batch, and the first one comes soon
_MOST_WORKERS = 32
_SHARED_MEMORY = "/dev/shm"


class ReadError(RuntimeError):
    """An image cannot be read, or a process that read images has died."""


def default_workers() -> int:
    """Return how many workers suit this machine: one core is left to the training."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_WORKERS, max(1, cores - 1))


class Reader:
    """Decodes images of several data sets in one pool of processes.

    What comes out does not depend on the number of workers. A file that cannot be read, and the one that a worker died
    on, are named by a :class:`ReadError`.

    Args:
        parts: Data sets by name.
        workers: Processes; 0 decodes in this one.
        ahead: How many images may be decoded before they are asked for.
        pin_memory: Whether images come in page-locked memory, from which a GPU copies in the background.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from particleaugment.data.listing import list_folder
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name, colour in (("lime", "#BFFF00"), ("plum", "#8E4585")):
    ...         Path(root, name).mkdir()
    ...         for number in range(5):
    ...             Image.new("RGB", (60, 40), colour).save(Path(root, name, f"{number}.png"))
    ...     reader = Reader({"train": FolderDataset(list_folder(root)[0], 16, train=False)}, workers=0)
    ...     [(ids, chunks)] = reader.batches("train", [torch.tensor([3, 4])])
    >>> ids, chunks[0][:, 0, 8, 8]
    (tensor([3, 4]), tensor([191, 142], dtype=torch.uint8))
    """

    def __init__(
        self, parts: Mapping[str, FolderDataset], workers: int = 0, *, ahead: int = 0, pin_memory: bool = False
    ):
        self.workers = workers
        self._files = _Files(parts, workers)
        self._requests: list[tuple[str, list[int]]] = []
        self._ahead, self._pin_memory = ahead, pin_memory
        self._loader: DataLoader[Any] | None = None
        self._chunk = self._chunk_size()

    def batches(self, part: str, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Decode batches of ids of one data set, in order; each comes with its images in one or more pieces."""
        split = [batch.split(self._chunk) for batch in batches]
        self._requests[:] = [(part, piece.tolist()) for pieces in split for piece in pieces]
        pieces_read = self._pieces()
        for batch, pieces in zip(batches, split):
            yield batch, [next(pieces_read) for _ in pieces]

    def _pieces(self) -> Iterator[Tensor]:
        for piece in map(self._files.__getitem__, self._requests) if self.workers == 0 else self._from_workers():
            if isinstance(piece, str):
                raise ReadError(piece)
            yield piece

    def _from_workers(self) -> Iterator[Tensor | str]:
        if self._loader is not None:
            return iter(self._loader)
        self._loader = DataLoader(
            self._files,
            batch_size=None,
            sampler=self._requests,
            num_workers=self.workers,
            collate_fn=nn.Identity(),
            pin_memory=self._pin_memory,
            persistent_workers=True,
            prefetch_factor=self._pieces_ahead(self._chunk),
            worker_init_fn=_leave_signals_to_the_parent,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )
        with _signals_held():
            pieces = iter(self._loader)
        # Registered after the loader's own, so run before it: that one waits for workers it has not told to end.
        atexit.register(self.close)
        return pieces

    def _pieces_ahead(self, chunk: int) -> int:
        return max(2, math.ceil(self._ahead / (chunk * max(1, self.workers))))

    def _chunk_size(self) -> int:
        """Return how many images go at a time, fewer where the memory that processes share is small."""
        try:
            status = os.statvfs(_SHARED_MEMORY)
        except (AttributeError, OSError):
            return _CHUNK
        room = status.f_bavail * status.f_frsize // 2
        each = max(3 * part.size**2 for part in self._files.parts.values())
        return max(1, min(_CHUNK, room // (each * max(1, self.workers) * self._pieces_ahead(_CHUNK))))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the death of a worker, which is reported wherever the main process happens to be, into a ReadError."""
        try:
            yield
        except RuntimeError as error:
            message = str(error)
            if "DataLoader worker" not in message:
                raise
            self.close()
            raise ReadError(self._files.obituary(message)) from None

    def close(self) -> None:
        """End the workers; they start again when needed."""
        loader, self._loader = self._loader, None
        if loader is None:
            return
        atexit.unregister(self.close)
        iterator: Any = loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()  # the loader has no public way, and its own waits for a collection of garbage


class _Files(Dataset[Any]):
    """Pieces of several data sets: an item is (name of the part, ids), its value the images or what went wrong."""

    def __init__(self, parts: Mapping[str, FolderDataset], workers: int):
        self.parts = dict(parts)
        self._names = tuple(self.parts)
        # What each worker is reading: its process id, the part's number and the image's.
        with ordinary_tensors(), sharing():
            self._reading = torch.full((max(1, workers), 3), -1, dtype=torch.int64).share_memory_()

    def __getitem__(self, request: tuple[str, list[int]]) -> Tensor | str:
        name, ids = request
        worker = get_worker_info()
        row = self._reading[0 if worker is None else worker.id].numpy()
        row[:2] = os.getpid(), self._names.index(name)

        def note(index: int) -> None:
            row[2] = index

        try:
            return self.parts[name].read(ids, note)
        except ValueError as error:
            return str(error)
        finally:
            row[2] = -1

    def obituary(self, message: str) -> str:
        """Return a sentence on the workers whose process ids a loader's message holds."""
        named = re.search(r"pid(?:\(s\))? ([\d, ]+)", message)
        dead = {int(number) for number in named[1].replace(",", " ").split()} if named else set()
        reading = [(part, index) for pid, part, index in self._reading.tolist() if pid in dead and index >= 0]
        files = [self.parts[self._names[part]].images.path(index) for part, index in reading]
        where = f" while it read {files[0]}" if files else ""
        return (
            f"a decoding process died{where}; if that file opens elsewhere, memory ran out: "
            "set fewer workers (a started run's are in its config.json) and try again"
        )


_STOPS = (signal.SIGINT, signal.SIGTERM)
_has_masks = hasattr(signal, "pthread_sigmask")


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Keep signals waiting, also in processes that are started meanwhile: a worker that has just begun would die."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS) if _has_masks else set()
    try:
        yield
    finally:
        if _has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C and a stop sent to the whole group reach workers too, which must go on until the parent has saved."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    if _has_masks:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
