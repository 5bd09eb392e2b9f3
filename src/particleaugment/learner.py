"""What trains: samples by index, and a network with its way of taking a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from particleaugment.ranks import Ranks

__all__ = ["Learner", "NonFiniteLoss", "Samples"]


class NonFiniteLoss(ArithmeticError):
    """The training loss is infinite or not a number; raised before the optimizer takes the step."""


class Samples:
    """Training samples by index: uint8 images, targets for the loss, and class labels for stratification.

    Args:
        dataset: ``(images, targets)`` with images uint8 ``[N, C, H, W]`` and targets ``[N]`` or soft ``[N, classes]``;
            or any object with ``len`` whose items are ``(uint8 image, target)``. Labels of such an object are taken
            from its ``targets`` or ``labels`` attribute if it has one, else by reading it through once.

    >>> samples = Samples((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])))
    >>> samples.gather(torch.tensor([2, 3]))[1]
    tensor([0, 1])
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if isinstance(dataset, torch.utils.data.TensorDataset):
            dataset = dataset.tensors
        self.tensors: tuple[Tensor, Tensor] | None = None
        if isinstance(dataset, (tuple, list)) and len(dataset) == 2 and isinstance(dataset[0], Tensor):
            images, targets = dataset[0], torch.as_tensor(dataset[1])
            if images.dtype != torch.uint8 or images.dim() != 4:
                raise TypeError(f"images must be uint8 [N, C, H, W], got {images.dtype} of shape {tuple(images.shape)}")
            if len(images) != len(targets):
                raise ValueError(f"the data set has {len(images)} images but {len(targets)} targets")
            self.tensors = (images, targets)
        self.labels = self._labels()

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and targets of some samples."""
        if self.tensors is not None:
            images, targets = self.tensors
            return images[indices.to(images.device)], targets[indices.to(targets.device)]
        items = [self.dataset[i] for i in indices.tolist()]
        pictures = [item[0] for item in items]
        if not isinstance(pictures[0], Tensor) or pictures[0].dtype != torch.uint8:
            kind = pictures[0].dtype if isinstance(pictures[0], Tensor) else type(pictures[0]).__name__
            raise TypeError(f"the data set must give uint8 image tensors, got {kind}; return the image unnormalised")
        return torch.stack(pictures), torch.stack([torch.as_tensor(item[1]) for item in items])

    def _labels(self) -> Tensor:
        if self.tensors is not None:
            targets = self.tensors[1]
        else:
            known = getattr(self.dataset, "targets", getattr(self.dataset, "labels", None))
            if known is None:
                known = [self.dataset[i][1] for i in range(len(self.dataset))]
            rows = [torch.as_tensor(target) for target in known]
            targets = torch.stack(rows)
        # Soft targets are stratified by their likeliest class.
        return (targets.argmax(1) if targets.dim() == 2 else targets).to("cpu", torch.int64)


@dataclass(slots=True)
class Learner:
    """How a network takes one step and how it is judged; the clone is trained by the same object as the network.

    Attributes:
        model: The network.
        optimizer: Its optimizer.
        loss: ``loss(logits, targets)`` returning one value per sample.
        preprocess: Turns augmented uint8 images into the network's input.
        autocast: Makes the context of the forward pass, for mixed precision.
        scaler: A GradScaler, where one is used.
        accumulate: Batches whose gradients are summed for one optimizer step.
        ranks: The processes that train it together.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    preprocess: Callable[[Tensor], Tensor]
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: torch.amp.GradScaler | None = None
    accumulate: int = 1
    ranks: Ranks = field(default_factory=Ranks)
    _pending: int = 0
    _trained: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self._trained = self.ranks.parallel(self.model)

    def train_batch(self, images: Tensor, targets: Tensor, weight: float = 1.0) -> float:
        """Take a training step on augmented uint8 images and return the mean loss of the batch.

        Where several ranks share the batch, these are the images of this one, and ``weight`` is the weight of their
        mean loss in the mean over ranks.
        """
        with self.autocast():
            loss = self._losses(self._trained, images, targets).mean() * weight
        mean = self.ranks.sum(float(loss.detach()))[0] / self.ranks.world
        if not math.isfinite(mean):
            raise NonFiniteLoss(f"the training loss is {mean}")
        if self._pending == 0:
            self.optimizer.zero_grad(set_to_none=True)
        scaled = loss / self.accumulate
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]
        self._pending += 1
        if self._pending >= self.accumulate:
            self.flush()
        return mean

    def flush(self) -> None:
        """Take the optimizer step for gradients that are waiting, if any."""
        if self._pending == 0:
            return
        self._pending = 0
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @torch.no_grad()
    def losses(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, float64 on the CPU, in the model's present mode."""
        with self.autocast():
            return self._losses(self.model, images, targets).to("cpu", torch.float64)

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.model.parameters()).device

    def _losses(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        logits = model(self.preprocess(images.to(self.device)))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = self.loss(logits, targets.to(self.device))
        if losses.dim() != 1 or len(losses) != len(images):
            raise ValueError(
                f"loss(logits, targets) must return one value per sample, [{len(images)}], got {tuple(losses.shape)}; "
                "use reduction='none'"
            )
        return losses
