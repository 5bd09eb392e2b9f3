"""A whole training augmentation in one kernel launch, from resident uint8 images to the network's input.

:class:`FusedPipeline` draws the program, crops and flips, runs the ops, erases and normalises, and can be captured in a
CUDA graph, since epoch, seed and policy live in device tensors.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from particleaugment.augment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing, Transform
from particleaugment.core.op_table import Kind, check_size, lookup
from particleaugment.core.program import Program
from particleaugment.executors.fused import OUTPUTS, LaunchParameters, launch
from particleaugment.policies import Policy
from particleaugment.policies.tables import Draw, DrawTables

__all__ = ["FusedPipeline", "fusable"]


def fusable(before: Sequence[Transform], after: Sequence[Transform]) -> bool:
    """Whether always-on transforms are those, in that order, that the kernel does."""
    kinds = [type(transform) for transform in before]
    before_ok = kinds in ([], [PadCrop], [HorizontalFlip], [PadCrop, HorizontalFlip])
    after_ok = [type(t) for t in after] in ([], [RandomErasing], [Normalize], [RandomErasing, Normalize])
    black = all(transform.fill == 0 for transform in before if isinstance(transform, PadCrop))
    return before_ok and after_ok and black


class FusedPipeline:
    """Crop, flip, policy, erasing and normalisation in one launch.

    Args:
        policy: Any policy; those with noisy levels, op weights or random order draw their program in torch first.
        size: Height and width of the images.
        device: The CUDA device.
        seed: Seed of all draws.
        before: ``PadCrop`` and ``HorizontalFlip``, in this order, or a part of them.
        after: ``RandomErasing`` and ``Normalize``, in this order, or a part of them.
        resample: Code of the default resampling filter.
        fill: Fill colour of geometric ops, one value per channel.
        dtype: Type of the result: uint8, or a floating type when normalising.
        channels_last: Whether the result lies in channels-last memory.
    """

    def __init__(
        self,
        policy: Policy,
        size: tuple[int, int],
        device: torch.device,
        seed: int,
        *,
        before: Sequence[Transform] = (),
        after: Sequence[Transform] = (),
        resample: int = 1,
        fill: tuple[int, ...] = (128, 128, 128),
        dtype: torch.dtype = torch.uint8,
        channels_last: bool = False,
    ):
        if not fusable(before, after):
            raise ValueError(
                "the fused kernel supports PadCrop, HorizontalFlip, the policy, RandomErasing and Normalize only"
            )
        normalize = next((transform for transform in after if isinstance(transform, Normalize)), None)
        if dtype not in OUTPUTS or (dtype == torch.uint8) != (normalize is None):
            raise ValueError(f"the result is uint8 without Normalize and a floating type with it, got {dtype}")
        self.size, self.device, self.resample, self.fill = size, device, resample, fill
        self.dtype, self.channels_last = dtype, channels_last
        self.seed = torch.tensor(seed, dtype=torch.int64, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self._settings = self._always_on(before, after, normalize)
        self._plan: DrawTables | None = None
        self.policy: Policy | None = None
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        """Change the policy; tables of the same shape are overwritten in place, so that captured graphs see them."""
        if policy is self.policy:
            return
        check_size(policy.ops, self.size)
        if beyond := [name for name in policy.ops if lookup(name).kind in (Kind.PATCH, Kind.OWN)]:
            raise ValueError(f"the fused kernel does not do {beyond[0]}; augment with executor 'batch'")
        self.policy = policy
        plan = policy.tables(self.size)
        old = self._plan
        if plan is None:
            self._plan = None
            return
        if old is not None and old.form() == plan.form():
            for kept, new in zip(old.tensors(), plan.tensors()):
                kept.copy_(new)
            return
        moved = {
            name: None if tensor is None else tensor.to(self.device)
            for name, tensor in (("gate", plan.gate), ("edges", plan.edges))
        }
        self._plan = DrawTables(
            plan.draw, plan.slots, plan.table_op.to(self.device), plan.table_arg.to(self.device),
            rows=plan.rows, choices=plan.choices, levels=plan.levels, random_code=plan.random_code, **moved,
        )  # fmt: skip

    def table_addresses(self) -> tuple[int, ...] | None:
        """Return where the policy's tables lie, which a captured launch has baked in; None if torch draws for it."""
        return None if self._plan is None else tuple(tensor.data_ptr() for tensor in self._plan.tensors())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all draws."""
        self.epoch.fill_(epoch)

    def __call__(
        self,
        images: Tensor,
        ids: Tensor,
        index: Tensor | None = None,
        out: Tensor | None = None,
        particle: Tensor | None = None,
        drawn: Tensor | None = None,
    ) -> Tensor:
        """Augment images and return the network's input.

        Args:
            images: uint8 ``[B, C, H, W]``, or the whole data set if ``index`` is given.
            ids: Sample ids, int64 ``[B]``.
            index: Rows of ``images`` to take, int64 ``[B]``.
            out: Where to write, of the right shape, type and layout.
            particle: Particle of each sample, int64 ``[B]``, for a particle policy; drawn by weight if not given.
            drawn: Where to write the ops that the kernel draws, int64 ``[B, K]``; left alone where torch draws them.
        """
        batch, channels = len(ids), images.shape[1]
        if out is None:
            layout = torch.channels_last if self.channels_last else torch.contiguous_format
            out = torch.empty(batch, channels, *self.size, dtype=self.dtype, device=self.device, memory_format=layout)
        plan, parameters = self._plan, LaunchParameters(**self._settings)
        if plan is None:
            program = self._program(ids, particle)
            parameters.draw, parameters.slots = Draw.GIVEN, program.op.shape[1]
            parameters.op, parameters.arg = program.op.data_ptr(), program.arg.data_ptr()
            if program.resample is not None:
                parameters.code = program.resample.data_ptr()
        else:
            parameters.draw, parameters.slots = plan.draw, plan.slots
            parameters.table_op, parameters.table_arg = plan.table_op.data_ptr(), plan.table_arg.data_ptr()
            parameters.gate = None if plan.gate is None else plan.gate.data_ptr()
            parameters.edges = None if plan.edges is None else plan.edges.data_ptr()
            parameters.rows, parameters.choices, parameters.levels = plan.rows, plan.choices, plan.levels
            parameters.random_code = int(plan.random_code)
            parameters.particle = None if particle is None else particle.data_ptr()
            parameters.drawn = None if drawn is None else drawn.data_ptr()
        parameters.images = images.data_ptr()
        parameters.index = None if index is None else index.data_ptr()
        parameters.ids, parameters.epoch, parameters.seed = ids.data_ptr(), self.epoch.data_ptr(), self.seed.data_ptr()
        parameters.default_code, parameters.output = self.resample, OUTPUTS[self.dtype]
        parameters.channels_last = int(self.channels_last)
        launch(parameters, images, out, batch, self.fill)
        return out

    def _program(self, ids: Tensor, particle: Tensor | None) -> Program:
        assert self.policy is not None
        if particle is None:
            return self.policy.sample(ids, self.epoch, self.seed, self.size)
        return self.policy.sample_particle(particle, ids, self.epoch, self.seed, self.size)

    def _always_on(
        self, before: Sequence[Transform], after: Sequence[Transform], normalize: Normalize | None
    ) -> dict[str, object]:
        settings: dict[str, object] = {}
        for transform in (*before, *after):
            if isinstance(transform, PadCrop):
                settings |= {"crops": 1, "pad": transform.pad}
            if isinstance(transform, HorizontalFlip):
                settings |= {"flips": 1, "flip": transform.p}
            if isinstance(transform, RandomErasing):
                low, high = math.log(transform.aspect[0]), math.log(transform.aspect[1])
                settings |= {"erases": 1, "erase": transform.p, "area_low": transform.area[0]}
                settings |= {"area_span": transform.area[1] - transform.area[0]}
                settings |= {"log_aspect_low": low, "log_aspect_span": high - low}
        if normalize is not None:
            scale, shift = normalize.coefficients()
            settings |= {"normalises": 1, "scale": (ctypes.c_float * 3)(*scale), "shift": (ctypes.c_float * 3)(*shift)}
        return settings
