"""What trains: a network with its way of taking a step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from particleaugment.trainee.ranks import Ranks

__all__ = ["Learner", "NonFiniteLoss"]


class NonFiniteLoss(ArithmeticError):
    """The training loss is infinite or not a number; raised before the optimizer takes the step."""


@dataclass(slots=True)
class Learner:
    """How a network takes one step and how it is judged; the clone is trained by the same object as the network.

    Attributes:
        model: The network; it returns logits, or an object or a dict that has them as ``logits``.
        optimizer: Its optimizer; of one wrapped by Accelerate or Fabric, the one inside is used.
        loss: ``loss(logits, targets)`` returning one value per sample.
        preprocess: Turns augmented uint8 images into the network's input.
        autocast: Makes the context of the forward pass, for mixed precision.
        scaler: A GradScaler, where one is used.
        accumulate: Batches whose gradients are summed for one optimizer step.
        max_grad_norm: Longest gradient; longer ones are shortened to it.
        ranks: The processes that train it together.
        averages: Whether gradients are averaged over ranks here, before each optimizer step, and not by
            DistributedDataParallel as they come: slower, but the network may be anyone's.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    preprocess: Callable[[Tensor], Tensor]
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: torch.amp.GradScaler | None = None
    accumulate: int = 1
    max_grad_norm: float | None = None
    ranks: Ranks = field(default_factory=Ranks)
    averages: bool = False
    _pending: int = 0
    _trained: nn.Module | None = None

    def __post_init__(self) -> None:
        # Accelerate's wrapper leaves steps out while gradients accumulate; the clone does its own accumulation.
        while isinstance(inner := getattr(self.optimizer, "optimizer", None), torch.optim.Optimizer):
            self.optimizer = inner
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(
                f"{type(self.optimizer).__name__} needs a closure to take steps, which the clone's training cannot "
                "provide; use an optimizer whose step() needs no closure, such as SGD or AdamW"
            )

    def train_batch(self, images: Tensor, targets: Tensor, weight: float = 1.0) -> float:
        """Take a training step on augmented uint8 images and return the mean loss of the batch.

        Where several ranks share the batch, these are the images of this one, and ``weight`` is the weight of their
        mean loss in the mean over ranks.
        """
        if self._trained is None:
            self._trained = self.model if self.averages else self.ranks.parallel(self.model)
        if len(images) == 1 and self.ranks.world > 1 and self.may_refuse_one():
            # On this rank only, and the others would wait; the mean of both is what it was.
            images, targets = torch.cat([images, images]), torch.cat([targets, targets])
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
        if self.averages:
            moved = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
            self.ranks.average_gradients(dict.fromkeys((*self.model.parameters(), *moved)))
        if self.max_grad_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def losses_through(self, forward: Callable[[Tensor], Any], images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample through the network or another form of it, such as the compiled one."""
        with self.autocast():
            return self._losses(forward, images, targets)

    @torch.no_grad()
    def losses(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, on the network's device, in the model's present mode."""
        return self.losses_through(self.model, images, targets)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits, in float32 or better, in the model's present mode."""
        with self.autocast():
            return self._forward(self.model, images)

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return next(self.model.parameters()).device

    def may_refuse_one(self) -> bool:
        """Whether the network may refuse a share of one image: batch norm does unless ranks normalise together."""
        kinds = {type(module) for module in self.model.modules()} - {nn.SyncBatchNorm}
        return self.averages or any(issubclass(kind, _BatchNorm) for kind in kinds)

    def _forward(self, model: Callable[[Tensor], Any], images: Tensor) -> Tensor:
        logits = _logits(model(self.preprocess(images.to(self.device))))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _losses(self, model: Callable[[Tensor], Any], images: Tensor, targets: Tensor) -> Tensor:
        losses = self.loss(self._forward(model, images), targets.to(self.device))
        if losses.dim() == 2 and losses.shape[1] == 1:
            losses = losses.squeeze(1)
        if losses.dim() != 1 or len(losses) != len(images):
            over = "classes: .mean(1)" if losses.dim() == 2 else "pixels: .flatten(1).mean(1)"
            advice = f"average it over {over}" if losses.dim() >= 2 else "use reduction='none'"
            raise ValueError(
                f"loss(logits, targets) must return one value per sample, [{len(images)}], got {tuple(losses.shape)}; "
                f"{advice}"
            )
        return losses


def _logits(output: Any) -> Tensor:
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if isinstance(found, Tensor):
        return found
    kind = type(output).__name__
    if isinstance(output, Mapping):
        kind = f"a dict with {', '.join(map(str, output)) or 'nothing'}"
    raise TypeError(
        f"a model must return logits, or an object or a dict that has them as 'logits', got {kind}; "
        "wrap it in a module that returns them"
    )
