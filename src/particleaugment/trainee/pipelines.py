"""From uint8 images to what the network is given: step by step on any device, or in one kernel launch.

Every trainee has three pipelines: for training, for measuring under particles, and for plain images. Those of
:func:`step_pipelines` return uint8 images, which the learner's ``preprocess`` normalises; fused ones normalise too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from particleaugment.augment.module import Augment
from particleaugment.augment.pipeline import FusedPipeline, fusable
from particleaugment.augment.transforms import ColorJitter, Normalize, Transform
from particleaugment.core.program import Program, resample_code
from particleaugment.executors import apply
from particleaugment.policies import Identity, ParticlePolicy, Policy

__all__ = ["MaskPipeline", "Pipeline", "Pipelines", "are_masks", "make_pipelines", "normalised", "step_pipelines"]


class Pipeline(Protocol):
    """Makes the network's input from uint8 images on the device."""

    def set_policy(self, policy: Policy) -> None:
        """Change the policy."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all draws."""
        ...

    def table_addresses(self) -> tuple[int, ...] | None:
        """Return what a captured call has baked in; None where it cannot be captured."""
        ...

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        """Augment ``images``, or those of them that ``index`` names, under chosen particles if there are any."""
        ...


class MaskPipeline(Pipeline, Protocol):
    """One that can take the images' masks along."""

    def with_masks(
        self, images: Tensor, masks: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Augment images, or those that ``index`` names, and move their masks ``[N, H, W]`` with them."""
        ...


def are_masks(targets: Tensor, images: Tensor) -> bool:
    """Whether targets are masks, which move with their images: a whole number for each pixel.

    >>> are_masks(torch.zeros(2, 8, 9, dtype=torch.int64), torch.zeros(2, 3, 8, 9, dtype=torch.uint8))
    True
    """
    return targets.dim() >= 3 and not targets.is_floating_point() and targets.shape[-2:] == images.shape[-2:]


class Pipelines(NamedTuple):
    """The three ways in which images become the network's input.

    Attributes:
        training: With always-on transforms and the policy.
        measuring: With the policy alone.
        plain: As they are.
    """

    training: Pipeline
    measuring: Pipeline
    plain: Pipeline


class _AugmentPipeline:
    """An :class:`Augment`."""

    def __init__(self, augment: Augment):
        self.augment = augment

    def set_policy(self, policy: Policy) -> None:
        self.augment.policy = policy

    def set_epoch(self, epoch: int) -> None:
        self.augment.set_epoch(epoch)

    def table_addresses(self) -> tuple[int, ...] | None:
        return None

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        assert particle is None
        return self.augment(_chosen(images, index), ids)  # type: ignore[no-any-return]

    def with_masks(
        self, images: Tensor, masks: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        result = self.augment(_chosen(images, index), ids, masks=_chosen(masks, index))
        return result.images, result.masks


class _ParticlePipeline:
    """Chosen particles of a policy, with the executor and the fill colour of an :class:`Augment`."""

    def __init__(self, settings: Augment):
        self.settings = settings
        self.policy: Policy = Identity()
        self.epoch = 0

    def set_policy(self, policy: Policy) -> None:
        self.policy = policy

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def table_addresses(self) -> tuple[int, ...] | None:
        return None

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        images, settings = _chosen(images, index), self.settings
        program = self._program(images, ids, particle)
        return apply(images, program, settings.executor, settings.resample, settings.fill)

    def with_masks(
        self, images: Tensor, masks: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        images, settings = _chosen(images, index), self.settings
        result = apply(
            images, self._program(images, ids, particle), settings.executor, settings.resample, settings.fill,
            masks=_chosen(masks, index), mask_fill=settings.targets.mask_fill,
            erase_targets=settings.targets.erase_targets,
        )  # fmt: skip
        assert result.masks is not None
        return result.images, result.masks

    def _program(self, images: Tensor, ids: Tensor, particle: Tensor | None) -> Program:
        assert particle is not None
        policy, size = cast(ParticlePolicy, self.policy), (images.shape[-2], images.shape[-1])
        return policy.sample_particle(particle, ids, self.epoch, self.settings.seed, size)


class _PlainPipeline:
    """Images as they are."""

    def set_policy(self, policy: Policy) -> None:
        pass

    def set_epoch(self, epoch: int) -> None:
        pass

    def table_addresses(self) -> tuple[int, ...] | None:
        return None

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        return _chosen(images, index)

    def with_masks(
        self, images: Tensor, masks: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return _chosen(images, index), _chosen(masks, index)


class _JitterFirst:
    """Colour jitter in a launch of its own, and all else in the fused one."""

    def __init__(self, jitter: ColorJitter, then: FusedPipeline):
        self.jitter, self.then = jitter, then

    def set_policy(self, policy: Policy) -> None:
        self.then.set_policy(policy)

    def set_epoch(self, epoch: int) -> None:
        self.then.set_epoch(epoch)

    def table_addresses(self) -> tuple[int, ...] | None:
        return None

    def __call__(
        self, images: Tensor, ids: Tensor, index: Tensor | None = None, *, particle: Tensor | None = None
    ) -> Tensor:
        images = self.jitter(_chosen(images, index), ids, self.then.epoch, self.then.seed)
        return self.then(images, ids, particle=particle)


def step_pipelines(augment: Augment) -> Pipelines:
    """Return pipelines that run one transform after the other; ``augment`` is the one for training.

    >>> augment = Augment("rand-m9-n3", seed=0)
    >>> images, ids = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2)
    >>> pipelines = step_pipelines(augment)
    >>> torch.equal(pipelines.training(images, ids), augment(images, ids))
    True
    >>> pipelines.plain(images, ids, torch.tensor([1])).shape
    torch.Size([1, 3, 8, 8])
    """
    return Pipelines(_AugmentPipeline(augment), _ParticlePipeline(augment), _PlainPipeline())


def make_pipelines(
    device: torch.device,
    size: tuple[int, int],
    normalize: Normalize,
    seed: int,
    executor: str,
    *,
    before: Sequence[Transform],
    after: Sequence[Transform],
    resample: str,
    fill: tuple[int, int, int],
) -> tuple[Pipelines, Callable[[Tensor], Tensor]]:
    """Return the pipelines of a run, and what the learner does to their results: normalise them, or nothing.

    They are fused where that is the executor and the transforms allow it.

    Args:
        device: Where images are.
        size: Their height and width.
        normalize: Normalisation; its type is that of fused results.
        seed: Seed of all draws.
        executor: The one that was chosen for the device.
        before: Always-on transforms before the policy.
        after: Always-on transforms after it, Normalize left out.
        resample: Default resampling filter.
        fill: Fill colour.
    """
    jitter = next((transform for transform in before[:1] if isinstance(transform, ColorJitter)), None)
    rest = before if jitter is None else before[1:]
    if executor != "fused" or not fusable(rest, after):
        augment = Augment(Identity(), seed, before=before, after=after, resample=resample, fill=fill)
        return step_pipelines(augment), normalised(normalize.mean, normalize.std)

    def fused(before: Sequence[Transform] = (), after: Sequence[Transform] = ()) -> FusedPipeline:
        return FusedPipeline(
            Identity(), size, device, seed, before=before, after=(*after, normalize),
            resample=resample_code(resample), fill=fill, dtype=normalize.dtype, channels_last=True,
        )  # fmt: skip

    training = fused(rest, after)
    pipelines = Pipelines(training if jitter is None else _JitterFirst(jitter, training), fused(), fused())
    return pipelines, lambda inputs: inputs


def normalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """Return what turns uint8 images into float32 input in channels-last memory."""
    normalize = Normalize(mean, std)
    return lambda images: normalize.run(images).contiguous(memory_format=torch.channels_last)


def _chosen(images: Tensor, index: Tensor | None) -> Tensor:
    return images if index is None else images[index.to(images.device)]
