"""A file of TensorBoard's events, written as all files of a run are.

TensorBoard's own writer follows links and writes in a thread, whose errors nobody hears of.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from particleaugment.util.atomic import own_folder, regular_file, saving

__all__ = ["EventFile"]


class EventFile:
    """A new file of events in a folder, which is made if need be; needs tensorboard.

    Args:
        folder: The folder, which must not be a link.

    Raises:
        SaveError: if the file cannot be written, here and in every method.
    """

    def __init__(self, folder: Path):
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        with saving(folder):
            own_folder(folder)
        self._path = folder / f"{name}.{secrets.token_hex(8)}"
        with saving(self._path):
            # Without a buffer: what a full disk did not take must not be tried again when the file is closed.
            self._file = io.FileIO(self._path, "x", opener=regular_file)
        self._write(file_version="brain.Event:2")

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write a number."""
        from torch.utils.tensorboard.summary import scalar

        self._write(summary=scalar(name, value), step=step)

    def add_images(self, name: str, images: Any, step: int) -> None:
        """Write a batch of images, uint8 ``[N, C, H, W]``."""
        from torch.utils.tensorboard.summary import image

        self._write(summary=image(name, images), step=step)

    def add_figure(self, name: str, figure: Any, step: int) -> None:
        """Write a figure of matplotlib's."""
        from torch.utils.tensorboard._utils import figure_to_image

        self.add_images(name, figure_to_image(figure)[None], step)

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
        with saving(self._path):
            if self._file.write(record.getvalue()) < len(record.getvalue()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
