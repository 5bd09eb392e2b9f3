"""``Augment``: any policy as the one extra line in a training loop."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack

import torch
from torch import Tensor, nn

from particleaugment.augment.one_image import OneImage
from particleaugment.augment.transforms import Normalize, Transform
from particleaugment.augment.worker_state import LiveState
from particleaugment.core.program import Program, resample_code
from particleaugment.core.random import checked_ids, checked_seed
from particleaugment.core.registry import check_places, names_in
from particleaugment.executors import (
    apply,
    check_executor,
    check_images,
    checked_fill,
    choose_executor,
    native,
    one_by_one,
)
from particleaugment.executors.steps import Move, Steps
from particleaugment.executors.targets import Augmented, TargetOptions, checked, moved, settings_of
from particleaugment.policies.parse import parse
from particleaugment.policies.plan import DrawPlan
from particleaugment.policies.policy import Policy

__all__ = ["Augment", "one_id", "whole_id"]

Given = ParamSpec("Given")
Made = TypeVar("Made")

_eager: dict[Callable[..., Any], Callable[..., Any]] = {}


def _left_to_python(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Let torch's compiler go around a method: it cannot follow counters in shared memory and executors of our own."""

    @functools.wraps(function)
    def method(*given: Given.args, **options: Given.kwargs) -> Made:
        if "torch._dynamo" not in sys.modules:  # which takes long to import, and without which nothing is compiled
            return function(*given, **options)
        if function not in _eager:
            _eager[function] = torch.compiler.disable(function)
        return _eager[function](*given, **options)  # type: ignore[no-any-return]

    return method


class Augment(nn.Module):
    """Augment batches of uint8 images with a policy.

    If you pass sample ids (each sample's index in its data set) and call :meth:`set_epoch`, the result is a pure
    function of (seed, epoch, id): the same for every batch size, number of workers and device, and after every resume.
    Without ids, a counter in the ``state_dict`` replaces them: every call draws new numbers, and a sample's
    augmentation depends on its position in the stream of batches. Each loader worker has its own counter, which
    outlives the worker, so epochs do not repeat each other. Workers prepare batches ahead, so a state saved during an
    epoch may count a few batches that were never used. :class:`particleaugment.IndexedDataset` adds ids to any data
    set.

    Masks, boxes, keypoints and labels passed with the images follow them, also through the transforms before and after
    the policy; see :func:`particleaugment.apply`.

    In ``eval()`` mode images are returned unchanged, except for a :class:`Normalize` in ``after``.

    Args:
        policy: A policy, or a string for :func:`particleaugment.parse`.
        seed: Seed of all draws.
        before: Transforms before the policy, such as ``PadCrop(4), HorizontalFlip()``.
        after: Transforms after it, such as ``RandomErasing(), Normalize(mean, std)``.
        executor: See :func:`particleaugment.apply`, as for ``resample`` and ``fill``.
        resample: Interpolation of the geometric ops.
        fill: Fill colour of the geometric ops.
        options: How targets are read and moved, such as ``box_format="xywh"``: the fields of
            :class:`particleaugment.executors.targets.TargetSettings`.

    >>> import particleaugment as pa
    >>> augment = pa.Augment(pa.RandAugment(n=2, m=5), seed=0)
    >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> augment.set_epoch(1)
    >>> augment(images, ids=torch.tensor([10, 11, 12, 13])).shape
    torch.Size([4, 3, 32, 32])
    >>> masks = torch.zeros(4, 32, 32, dtype=torch.int64)
    >>> images, masks, *_ = augment(images, ids=torch.tensor([10, 11, 12, 13]), masks=masks)
    """

    def __init__(
        self,
        policy: Policy | str,
        seed: int = 0,
        *,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        executor: str = "auto",
        resample: str = "bilinear",
        fill: tuple[int, int, int] = (128, 128, 128),
        **options: Unpack[TargetOptions],
    ):
        super().__init__()
        chosen = parse(policy) if isinstance(policy, str) else policy
        if not isinstance(chosen, Policy):
            raise TypeError(f"expected a policy or a policy string, got {type(policy).__name__}")
        self.seed = checked_seed(seed)
        for name, given in (("before", before), ("after", after)):
            if isinstance(given, Transform):
                raise TypeError(f"{name} must be a list of transforms, got {type(given).__name__}; write [{given!r}]")
        self.before, self.after = tuple(before), tuple(after)
        if executor != "fused" or not torch.cuda.is_available():  # else the images say on which GPU it is to run
            check_executor(executor, torch.device("cpu"))
        self._code, self._colour = resample_code(resample), checked_fill(fill)
        self.executor, self.resample, self.fill = executor, resample, fill
        self._planned: tuple[Policy | None, DrawPlan | None] = None, None
        self.targets = settings_of(options)
        self._live = LiveState(chosen)

    @property
    def policy(self) -> Policy:
        """The current policy; a new one of the same form (other particles or weights) also reaches running workers."""
        return self._live.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            raise TypeError(f"expected a policy, got {type(policy).__name__}; make one of a string with pa.parse")
        self._live.policy = policy

    @property
    def epoch(self) -> int:
        """The epoch that draws are made for."""
        return self._live.epoch

    @property
    def counter(self) -> int:
        """Images augmented without ids so far in this process (workers not counted)."""
        return int(self._live.counters[0])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, part of every draw's key; call it before each epoch."""
        self._live.epoch = checked_epoch(epoch)

    @_left_to_python
    def forward(
        self,
        images: Tensor,
        ids: Tensor | None = None,
        *,
        masks: Tensor | None = None,
        boxes: Sequence[Tensor] | Tensor | None = None,
        keypoints: Sequence[Tensor] | Tensor | None = None,
        labels: Sequence[Tensor] | Tensor | None = None,
    ) -> Tensor | Augmented:
        """Augment a batch ``[B, C, H, W]`` of uint8 images, with their targets.

        For one image ``[C, H, W]``, masks are ``[H, W]`` or ``[M, H, W]``, and boxes, keypoints and labels are one
        tensor each.

        Args:
            images: The images.
            ids: Their sample ids, int64 ``[B]``.
            masks: See :func:`particleaugment.apply`, as for the others.
            boxes: Boxes of each image.
            keypoints: Keypoints of each image.
            labels: Labels of the boxes.

        Returns:
            The images, or with at least one target an :class:`particleaugment.Augmented`.
        """
        given = {"masks": masks, "boxes": boxes, "keypoints": keypoints, "labels": labels}
        if isinstance(images, Tensor) and not images.is_nested and images.dim() == 3:
            one = None if ids is None else one_id(ids)
            return _first(self._augmented(images.unsqueeze(0), one, _as_batch(given)))
        return self._augmented(images, ids, given)

    def with_steps(
        self, images: Tensor | OneImage, ids: Tensor | int | None = None, *, wanted: bool = True
    ) -> tuple[Any, Steps | None]:
        """Augment a batch, or one image; return it with the steps that its targets are to follow.

        Args:
            images: A batch, or one image, which comes back as the kind that it was given as.
            ids: The sample ids of a batch, or that of the image.
            wanted: Whether there are targets; else None is returned for the steps.
        """
        if isinstance(images, OneImage):
            assert not isinstance(ids, Tensor)
            return self._one_with_steps(images, ids, wanted)
        if isinstance(ids, int):
            raise TypeError(f"sample ids must be an int64 tensor, one id per image of the batch, got the number {ids}")
        return self._batch_with_steps(images, ids, wanted)

    def _one_with_steps(self, image: OneImage, id: int | None, wanted: bool) -> tuple[Any, Steps | None]:
        epoch = self.epoch  # read once: it may change while a worker is at it
        plan = self._plan_of(epoch) if self.training and image.usual and not self.before and not self.after else None
        if plan is None or self.executor in ("batch", "fused"):
            ids = None if id is None else torch.tensor([id], device="cpu")
            images, steps = self._batch_with_steps(image.tensor().unsqueeze(0), ids, wanted)
            return image.like(images.squeeze(0)), steps
        number = self._live.next_id() if id is None else id
        compiled = self.executor != "pil" and one_by_one() == "native"
        drawn = plan.draw(number, epoch, checked_seed(self.seed), image.size, self._code)
        result = image.run(drawn, self._colour, compiled)
        return result, Steps.of(drawn.program(), erases=self.targets.erase_targets) if wanted else None

    def _plan_of(self, epoch: int) -> DrawPlan | None:
        """The plan of the policy in force in an epoch; None for policies that have none, or registered ops."""
        policy = self.policy.at(epoch)
        if self._planned[0] is not policy:
            plan = policy.plan()
            self._planned = policy, plan if plan is not None and plan.built_in else None
        return self._planned[1]

    def _program(self, ids: Tensor, epoch: int, size: tuple[int, int]) -> Program:
        """Draw the programs of a batch, in compiled code where that also runs them."""
        on_cpu = ids.device.type == "cpu" and self.executor in ("auto", "native")
        plan = self._plan_of(epoch) if on_cpu and not native.unavailable_reason() else None
        return (self.policy if plan is None else plan).sample(ids, epoch, self.seed, size)

    def _batch_with_steps(self, images: Tensor, ids: Tensor | None, wanted: bool) -> tuple[Tensor, Steps | None]:
        if not self.training:
            nothing = torch.zeros(len(images), 0, dtype=torch.int64, device=images.device)
            for transform in self.after:
                images = transform.run(images) if isinstance(transform, Normalize) else images
            return images, Steps(nothing, nothing.to(torch.float64)) if wanted else None
        check_images(images)
        ids = self._live.next_ids(len(images)) if ids is None else checked_ids(ids)
        if ids.shape != images.shape[:1]:
            raise ValueError(f"there must be one id per image, got {tuple(ids.shape)} ids for {len(images)} images")
        ids = ids.to(images.device, non_blocking=images.is_cuda)
        epoch = self.epoch  # read once: it may change while a worker is at it
        images, before = self._transformed(self.before, images, ids, epoch, wanted)
        program = self._program(ids, epoch, _size(images))
        if wanted:
            check_places(names_in(program.op))
        images = apply(images, program, self.executor, self.resample, self.fill)
        images, after = self._transformed(self.after, images, ids, epoch, wanted)
        if not wanted:
            return images, None
        return images, Steps.of(program.to(images.device), before, after, erases=self.targets.erase_targets)

    def _augmented(self, images: Tensor, ids: Tensor | None, given: Mapping[str, Any]) -> Tensor | Augmented:
        if self.training:
            check_images(images)
        targets = checked(images, self.targets, given)
        images, steps = self.with_steps(images, ids, wanted=targets is not None)
        if targets is None or steps is None:
            return images
        return moved(images, targets, steps, self.targets, choose_executor(self.executor, images.device))

    def _transformed(
        self, transforms: Sequence[Transform], images: Tensor, ids: Tensor, epoch: int, with_moves: bool
    ) -> tuple[Tensor, list[Move]]:
        """Run always-on transforms; return the images and, for their targets, how the pixels moved."""
        moves: list[Move] = []
        for transform in transforms:
            size = _size(images)
            draws = transform.sample(ids, epoch, self.seed, size)
            move = transform.move(draws, size) if with_moves else None
            moves += [] if move is None else [move]
            images = transform.run(images, draws)
            if with_moves and _size(images) != size:
                raise ValueError(
                    f"{type(transform).__name__} changes the size of the images, which their targets cannot follow; "
                    "resize images and targets in the data set"
                )
        return images, moves

    def part_from_other_ranks(self) -> None:
        """Copy what lies in shared memory: ranks that were forked or spawned share what is meant for workers.

        Call it before the workers of a loader start, which would go on with what was shared before.
        """
        self._live = copy.deepcopy(self._live)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": (None, None)}

    def get_extra_state(self) -> Tensor:
        """Return the epoch and the counters for ``state_dict``."""
        return torch.cat([torch.tensor([self.epoch], device="cpu"), self._live.counters])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the epoch and the counters from ``state_dict``."""
        self._live.epoch, self._live.counters = int(state[0]), state[1:]

    def extra_repr(self) -> str:
        """Return the settings for ``repr``."""
        return f"{self.policy}, seed={self.seed}, before={list(self.before)}, after={list(self.after)}"


def _size(images: Tensor) -> tuple[int, int]:
    return int(images.shape[-2]), int(images.shape[-1])


def _as_batch(given: Mapping[str, Any]) -> dict[str, Any]:
    """Targets of one image as those of a batch of one."""
    masks = given["masks"]
    listed = {name: None if given[name] is None else [given[name]] for name in ("boxes", "keypoints", "labels")}
    return {"masks": masks.unsqueeze(0) if isinstance(masks, Tensor) else masks, **listed}


def _first(result: Tensor | Augmented) -> Tensor | Augmented:
    if isinstance(result, Tensor):
        return result.squeeze(0)
    return Augmented(*[None if part is None else part[0] for part in result])  # type: ignore[arg-type]


def checked_epoch(epoch: object) -> int:
    """Return an epoch as a number, or raise a TypeError or ValueError."""
    try:
        if isinstance(epoch, bool) or (isinstance(epoch, Tensor) and epoch.dtype == torch.bool):
            raise TypeError
        number = operator.index(epoch)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        raise TypeError(f"the epoch must be a whole number, got {epoch!r}") from None
    if number < 0:
        raise ValueError(f"the epoch must not be negative, got {number}")
    if number >= 1 << 32:
        raise ValueError(f"the epoch must be below 2^32, got {number}")
    return number


def whole_id(number: object) -> int:
    """Return the id of a single image as a number."""
    if type(number) is int and 0 <= number < 1 << 63:
        return number
    return int(checked_ids(one_id(number)))


def one_id(number: object) -> Tensor:
    """Return the id of a single image as a batch's."""
    try:
        found = number if isinstance(number, Tensor) else torch.tensor(number, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"the id of an image must be a whole number, got {number!r}") from None
    if (
        found.is_nested
        or found.layout is not torch.strided
        or found.numel() != 1
        or found.is_floating_point()
        or found.is_complex()
        or found.dtype == torch.bool
    ):
        raise TypeError(f"the id of an image must be a whole number, got {number!r}")
    return found.to(torch.int64).reshape(1)
