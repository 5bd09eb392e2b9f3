"""Hugging Face Trainer: a data collator that augments, and a callback that takes filter steps."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from particleaugment.augment.module import Augment
from particleaugment.data.samples import image_and_target, stacked, to_uint8
from particleaugment.integrations import require
from particleaugment.integrations.driver import SearchDriver
from particleaugment.report.loggers import SearchLogger, search_metrics
from particleaugment.search.search import ParticleAugment
from particleaugment.search.wrapped import unwrapped
from particleaugment.trainee.ranks import Ranks
from particleaugment.util.atomic import write_atomically

require("transformers", "transformers")

from transformers import TrainerCallback  # noqa: E402

__all__ = ["AugmentCollator", "EpochCallback", "ParticleAugmentCallback"]

_FILE = "particleaugment.pt"


class AugmentCollator:
    """Makes a Trainer's batches, ``pixel_values`` and ``labels``, and augments the samples that carry an id.

    A Trainer has one collator for training and evaluation. Train on ``search.training_set()``, or with a fixed policy
    on ``pa.IndexedDataset(dataset)``: their samples have ids. Leave the evaluation set as it is: its samples have none
    and stay plain.

    It runs in the loader's workers, and follows a search there, also with ``dataloader_persistent_workers``.

    Args:
        augmentation: A search, or an :class:`particleaugment.Augment` with a fixed policy.
        preprocess: Turns a uint8 batch ``[B, C, H, W]`` into ``pixel_values``.
    """

    def __init__(self, augmentation: ParticleAugment | Augment, preprocess: Callable[[Tensor], Tensor]):
        kept: Any = getattr(augmentation, "augmentation", augmentation)
        if not isinstance(kept, Augment):
            raise TypeError(f"expected a ParticleAugment or an Augment, got {type(augmentation).__name__}")
        self.augment, self.preprocess = kept, preprocess

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """Return a batch of some samples."""
        pairs = [image_and_target(item) for item in items]
        images = stacked([to_uint8(image) for image, _ in pairs])
        ids = [_id_of(item) for item in items]
        if all(number is not None for number in ids):
            images = self.augment(images, torch.tensor(ids, device="cpu"))
        elif any(number is not None for number in ids):
            raise ValueError("some samples of a batch have an id and some have none; use one data set for training")
        return {
            "pixel_values": self.preprocess(images),
            "labels": torch.stack([torch.as_tensor(target) for _, target in pairs]),
        }


class EpochCallback(TrainerCallback):  # type: ignore[misc]
    """Sets the epoch of an augmentation, counted from 1: needed with a fixed policy or a recorded schedule.

    Args:
        augment: The augmentation, the same as the collator's.
    """

    def __init__(self, augment: Augment):
        self.augment = augment

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the epoch."""
        self.augment.set_epoch(_epoch_of(state))


class ParticleAugmentCallback(TrainerCallback):  # type: ignore[misc]
    """Takes a Trainer's search through its epochs, keeps it in the checkpoints, and logs it.

    The filter step that is due after an epoch is taken when the next one begins, with the Trainer's optimizer,
    precision, gradient accumulation and clipping. Processes that train together share its work and keep one policy. Its
    state is written into each checkpoint's folder and read again when training resumes from a checkpoint in the output
    folder; for one elsewhere call :meth:`load` first.

    Args:
        search: The search, the same as the collator's.
        preprocess: The collator's ``preprocess``.
        loss: ``loss(logits, targets)`` returning one value per sample; by default cross entropy.
        batch_size: Batch size of a clone's training; by default ``per_device_train_batch_size``.
        logger: Gets numbers and figures of every filter step; the numbers are in the Trainer's ``log_history`` anyway.
    """

    def __init__(
        self,
        search: ParticleAugment,
        preprocess: Callable[[Tensor], Tensor],
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        batch_size: int | None = None,
        logger: SearchLogger | None = None,
    ):
        self._driver = SearchDriver(search, loss, preprocess, batch_size)
        self.logger = logger
        self._loaded = False
        self._hook: Any = None

    @property
    def search(self) -> ParticleAugment:
        """The search."""
        return self._driver.search

    def load(self, checkpoint: str | Path) -> None:
        """Continue from a checkpoint's folder."""
        self.search.load_state_dict(_read(Path(checkpoint) / _FILE))
        self._loaded = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Continue from the checkpoint that the Trainer resumes from."""
        # accelerate launch tells of them by the environment alone.
        launched = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        if launched or getattr(args, "fsdp", None) or args.deepspeed or getattr(args, "deepspeed_plugin", None):
            raise ValueError(
                "the callback takes filter steps on one process or under DistributedDataParallel, not with FSDP or "
                "DeepSpeed; turn those off, or train with the schedule of an earlier search and EpochCallback"
            )
        self._driver.check_epochs(None if args.max_steps > 0 else args.num_train_epochs)
        if args.world_size > 1:
            self.search.augmentation.part_from_other_ranks()
        if state.global_step > 0 and not self._loaded:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE
            self.search.load_state_dict(Ranks.together(args.device).on_first(lambda: _read(path)))
            self._loaded = True
        if self.search.filter.needs_training_loss:
            if args.label_smoothing_factor:
                raise ValueError(
                    f"the filter {self.search.filter.kind!r} needs the training losses, and with "
                    "label_smoothing_factor the Trainer does not pass labels to the model; smooth them in the loss"
                )
            self._hook = unwrapped(parts["model"], shared=False).register_forward_hook(self._observe, with_kwargs=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the model alone."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _observe(self, model: nn.Module, inputs: Any, named: Mapping[str, Any], outputs: Any) -> None:
        """Hand the losses of a training batch to the filter, from the model's own forward pass."""
        labels = named.get("labels")
        if not (model.training and torch.is_grad_enabled()) or labels is None:
            return
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
        with torch.no_grad():
            self.search.observe(labels, self._driver.loss(logits.detach().float(), labels))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Take the filter step that is due, and set the epoch."""
        optimizer, loader = parts["optimizer"], parts["train_dataloader"]
        record = self._driver.begin_epoch(
            _epoch_of(state),
            model=parts["model"],
            optimizer=optimizer,
            loader=loader,
            scaler=getattr(optimizer, "scaler", None),
            accumulate=args.gradient_accumulation_steps,
            max_grad_norm=args.max_grad_norm or None,
        )
        if record is None:
            return
        metrics: Mapping[str, float] = search_metrics(self.search, record)
        state.log_history.append({**metrics, "epoch": state.epoch, "step": state.global_step})
        if self.logger is not None and state.is_world_process_zero:
            self.logger.log(self.search, record, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the search into the checkpoint that was just saved."""
        if self.search.filter.needs_training_loss:
            self.search.gather_losses(Ranks.together(args.device))
        if not state.is_world_process_zero:
            return
        file = io.BytesIO()
        torch.save(self.search.state_dict(), file)
        write_atomically(Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE, file.getvalue())


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"the checkpoint has no {path}; resume from one that was written with this callback")
    return torch.load(path, weights_only=True)  # type: ignore[no-any-return]


def _epoch_of(state: Any) -> int:
    """The epoch that begins, or goes on, counted from 1; the Trainer counts in fractions of an epoch."""
    return int((state.epoch or 0.0) + 1e-6) + 1


def _id_of(item: Any) -> int | None:
    if isinstance(item, Mapping):
        return None if item.get("id") is None else int(item["id"])
    return int(item[2]) if len(item) > 2 else None
