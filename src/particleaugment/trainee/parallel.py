"""DistributedDataParallel around a network whose whole training step is captured in a CUDA graph.

What a capture asks of it beyond an eager step (PyTorch's notes on CUDA graphs, NCCL's user guide):

- it is made on the stream that captures, since it keeps the nodes that accumulate gradients, and these run where they
  were made;
- it times its first ten passes, which waits for the device, and orders its buckets of gradients after the first one:
  both must be over before a capture, so :data:`WARM_UP` passes come first, and no later one is timed;
- its gradients are views of the buckets, which stay where they are from step to step;
- all ranks capture, or none does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["WARM_UP", "CapturableParallel"]

WARM_UP = 12
"""Passes before the first capture; PyTorch asks for 11."""

_NEVER = 2**30
_BUFFERS = "forward_sync_buffers"
if _BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _BUFFERS = "broadcast_buffers"


class CapturableParallel:
    """A network wrapped for training (DDP), as whole steps call it.

    Running statistics are not exchanged before every pass: a training pass does not read them, those of rank 0 are the
    ones that count, and all ranks get them after the last pass (:meth:`Ranks.equalise_buffers`).

    Args:
        model: The network.
        forward: The network as passes of a whole share call it, such as its compiled form.
        whole: Images in a whole share of this rank.
        stream: The stream that captures; None on the CPU.
    """

    def __init__(
        self, model: nn.Module, forward: Callable[[Tensor], Tensor], whole: int, stream: torch.cuda.Stream | None
    ):
        self.model, self.whole, self.stream = model, whole, stream
        self._wrapped = self._wrap(forward)

    def __call__(self, images: Tensor) -> Any:
        """Run the network; the backward pass leaves the mean over ranks of the gradients."""
        return self._wrapped(images)

    def apart(self) -> AbstractContextManager[None]:
        """Leave the gradients of a block as they are on each rank."""
        return self._wrapped.no_sync()  # type: ignore[no-any-return]

    def renew(self) -> None:
        """Wrap the plain network again: a capture that fails in mid-pass leaves a pass that never ends behind."""
        self._wrapped._remove_autograd_hooks()
        self._wrapped = self._wrap(self.model)

    def _wrap(self, forward: Callable[[Tensor], Tensor]) -> DistributedDataParallel:
        options: dict[str, Any] = {"gradient_as_bucket_view": True, _BUFFERS: False}
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            wrapped = DistributedDataParallel(_BySize(self.model, forward, self.whole), **options)
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        wrapped._set_ddp_runtime_logging_sample_rate(_NEVER)
        return wrapped


class _BySize(nn.Module):
    """A network of two forms, one for passes of one size."""

    def __init__(self, network: nn.Module, form: Callable[[Tensor], Tensor], size: int):
        super().__init__()
        self.network, self.size = network, size
        self._form = (form,)  # in a tuple, so that a module with the same parameters is not counted as another part

    def forward(self, images: Tensor) -> Any:
        return (self._form[0] if len(images) == self.size else self.network)(images)
