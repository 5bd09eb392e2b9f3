"""Lightning: callbacks that augment batches, take filter steps, keep their state in checkpoints and log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from particleaugment.augment.module import Augment
from particleaugment.integrations import require
from particleaugment.integrations.driver import SearchDriver
from particleaugment.report.loggers import rendered, search_figures, search_metrics
from particleaugment.search.search import ParticleAugment
from particleaugment.trainee.ranks import Ranks

require("lightning", "lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy  # noqa: E402
from lightning.pytorch.strategies.xla import XLAStrategy  # noqa: E402

__all__ = ["AugmentCallback", "ParticleAugmentCallback"]


class AugmentCallback(Callback):
    """Augments a ``lightning.pytorch.Trainer``'s training batches with a fixed policy or a recorded schedule.

    Batches are augmented in place before ``training_step`` sees them, on the device they are on; images stay uint8, and
    the module converts them, in training and validation alike.

    Args:
        augment: The augmentation; its epoch is set here, counted from 1.
        image_key: Where a batch has its images: a position or, in a dict, a name. None if the data set augments them
            already, with an ``ImageTransform`` of the same augmentation.
        id_key: Where a batch has its sample ids; ``IndexedDataset`` puts them third. None if it has none.
    """

    def __init__(self, augment: Augment, *, image_key: int | str | None = 0, id_key: int | str | None = 2):
        if not isinstance(augment, Augment):
            raise TypeError(f"expected a pa.Augment, got {type(augment).__name__}")
        self.augment, self.image_key, self.id_key = augment, image_key, id_key

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the epoch: workers of the first one start before ``on_train_epoch_start``."""
        if trainer.world_size > 1:
            self.augment.part_from_other_ranks()
        self.augment.set_epoch(trainer.current_epoch + 1)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch."""
        self.augment.set_epoch(trainer.current_epoch + 1)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Augment a batch in place."""
        if self.image_key is None:
            return
        if not isinstance(batch, (list, dict)):
            raise TypeError(
                f"a batch must be a list or a dict, because it is augmented in place, got {type(batch).__name__}"
            )
        try:
            images = batch[self.image_key]  # type: ignore[index]
            ids = None if self.id_key is None else batch[self.id_key]  # type: ignore[index]
        except LookupError:
            raise ValueError(
                f"the batch has no images under {self.image_key!r} or no ids under {self.id_key!r}; load "
                "search.training_set() or a pa.IndexedDataset, or set image_key and id_key"
            ) from None
        batch[self.image_key] = self._augmented(images, ids)  # type: ignore[index]

    def _augmented(self, images: Tensor, ids: Any) -> Tensor:
        return self.augment(images, ids)  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the counters that stand in for ids, for the trainer's checkpoints."""
        return {"augment": self.augment.get_extra_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.augment.set_extra_state(state_dict["augment"])


class ParticleAugmentCallback(AugmentCallback):
    """Learns the augmentation of a ``lightning.pytorch.Trainer``'s training batches.

    Batches are augmented as :class:`AugmentCallback` does. The filter step that is due after an epoch is taken when the
    next one starts, at the learning rate that the scheduler has set by then, on the module's own ``forward``,
    optimizer, precision, gradient accumulation and clipping. A filter that needs the training losses takes those that
    ``training_step`` returns. Under ``strategy="ddp"`` and its variants the processes
    share the step's work and keep one policy.

    Args:
        search: The search.
        preprocess: What ``training_step`` does to uint8 images before it calls the module, if anything.
        loss: ``loss(logits, targets)`` returning one value per sample; by default cross entropy.
        batch_size: Batch size of a clone's training in one process; by default the loader's.
        image_key: See :class:`AugmentCallback`. None if the loader's ``search.training_set(transform=...)`` augments.
        id_key: Where a batch has its sample ids; ``search.training_set()`` puts them third.
        figures_every: Figures go to loggers that show them at every so many filter steps; 0 for none.
    """

    def __init__(
        self,
        search: ParticleAugment,
        preprocess: Callable[[Tensor], Tensor] | None = None,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        batch_size: int | None = None,
        image_key: int | str | None = 0,
        id_key: int | str = 2,
        figures_every: int = 1,
    ):
        self._driver = SearchDriver(search, loss, preprocess, batch_size)
        super().__init__(search.augmentation, image_key=image_key, id_key=id_key)
        self.figures_every = figures_every

    @property
    def search(self) -> ParticleAugment:
        """The search."""
        return self._driver.search

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that filter steps can be taken with the trainer, and begin: workers start before the first epoch."""
        if stage != "fit":
            return
        strategy = trainer.strategy
        ddp = isinstance(strategy, DDPStrategy) and not isinstance(strategy, (DeepSpeedStrategy, XLAStrategy))
        if trainer.world_size > 1 and not ddp:
            raise ValueError(
                "with several processes the callback takes filter steps under strategy='ddp' only, got "
                f"{type(strategy).__name__}; use that, or train with the schedule of an earlier search: "
                "AugmentCallback(pa.Augment(pa.Schedule.load(...)))"
            )
        if not pl_module.automatic_optimization:
            raise ValueError("the callback needs automatic optimization; in your own loop call search.step")
        if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
            raise ValueError("the clone's gradients can be clipped by norm only; use gradient_clip_algorithm='norm'")
        if not getattr(trainer, "fast_dev_run", False):  # which is a trial, of one epoch whatever max_epochs says
            self._driver.check_epochs(None if trainer.max_epochs in (None, -1) else trainer.max_epochs)
        if trainer.world_size > 1:
            self.augment.part_from_other_ranks()
        if self.search.epoch == 0:
            self.search.begin_epoch(1)

    def _augmented(self, images: Tensor, ids: Any) -> Tensor:
        result: Tensor = self.search.augment(images, ids)
        return result

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the filter step that is due, and set the epoch."""
        if len(trainer.optimizers) != 1:
            raise ValueError(f"the callback needs one optimizer, got {len(trainer.optimizers)}")
        record = self._driver.begin_epoch(
            trainer.current_epoch + 1,
            model=pl_module,
            optimizer=trainer.optimizers[0],
            loader=trainer.train_dataloader,
            autocast=trainer.precision_plugin.forward_context,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            accumulate=trainer.accumulate_grad_batches,
            max_grad_norm=trainer.gradient_clip_val or None,
        )
        if record is None:
            return
        pl_module.log_dict(search_metrics(self.search, record), sync_dist=trainer.world_size > 1)
        loggers = [logger for logger in trainer.loggers if trainer.is_global_zero and _shows_figures(logger)]
        if loggers and self.figures_every and self.search.steps_taken % self.figures_every == 0:
            for name, figure in search_figures(self.search, record).items():
                for logger in loggers:
                    _log_figure(logger, name, figure, trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Hand the batch's loss to a filter that needs it."""
        if not self.search.filter.needs_training_loss:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None:
            return  # training_step left the batch out
        self.search.observe(batch[self.id_key], loss * trainer.accumulate_grad_batches)  # Lightning divides by it

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let rank 0, which alone writes checkpoints, save the losses that all ranks have observed."""
        if self.search.filter.needs_training_loss and trainer.world_size > 1:
            self.search.gather_losses(Ranks.together(pl_module.device))
            checkpoint["callbacks"][self.state_key] = self.search.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the search's state, for the trainer's checkpoints."""
        return self.search.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.search.load_state_dict(state_dict)


def _shows_figures(logger: Any) -> bool:
    return hasattr(logger, "log_image") or hasattr(getattr(logger, "experiment", None), "add_figure")


def _log_figure(logger: Any, name: str, figure: Any, step: int) -> None:
    if hasattr(logger, "log_image"):  # as Lightning's WandbLogger has it
        logger.log_image(name, [rendered(figure)], step=step)
    else:
        logger.experiment.add_figure(name, figure, step)
