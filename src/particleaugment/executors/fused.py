"""The GPU executor: one kernel launch from a resident uint8 batch to the network's input.

:func:`run` is the executor behind ``apply``. :class:`FusedPipeline` does a whole training augmentation in the same
launch: it draws the program, crops and flips, runs the ops, erases and normalises, and can be captured in a CUDA graph,
since epoch, seed and policy live in device tensors.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from particleaugment.executors.nvrtc import Kernel, KernelError
from particleaugment.ops import check_size, op_indices
from particleaugment.policies import (
    AutoAugment,
    Identity,
    ParticlePolicy,
    Policy,
    RandAugment,
    SubPolicies,
    TrivialAugment,
)
from particleaugment.policies.base import get_semantics, ops_of
from particleaugment.policies.subpolicies import _tables
from particleaugment.program import Program
from particleaugment.transforms import HorizontalFlip, Normalize, PadCrop, RandomErasing, Transform

__all__ = ["FusedPipeline", "run", "unavailable_reason"]

_GIVEN, _RANDOM_OPS, RANDOM_LEVELS, _ROWS, _PARTICLES = range(5)
_OUTPUTS = {torch.uint8: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
_MAX_SLOTS = 64
_MAX_SIDE = 1024
_STATIC_SHARED = 18 * 1024

_POINTERS = (
    "images", "index", "ids", "epoch", "seed", "op", "arg", "code", "edges", "particle",
    "gate", "table_op", "table_arg", "out", "scratch", "drawn",
)  # fmt: skip
_DOUBLES = ("flip", "erase", "area_low", "area_span", "log_aspect_low", "log_aspect_span")
_INTS = (
    "draw", "batch", "slots", "channels", "height", "width", "rows", "choices", "levels", "random_code",
    "default_code", "pad", "crops", "flips", "erases", "normalises", "output", "channels_last", "image_in_shared",
    "both_in_shared",
)  # fmt: skip


class _Params(ctypes.Structure):
    """The kernel's ``struct Params``, field by field."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in _POINTERS]
        + [(name, ctypes.c_double) for name in _DOUBLES]
        + [("scale", ctypes.c_float * 3), ("shift", ctypes.c_float * 3)]
        + [(name, ctypes.c_int) for name in _INTS]
        + [("fill", ctypes.c_uint32)]
    )


@cache
def _kernel(device: torch.device, threads: int) -> Kernel:
    source = resources.files("particleaugment.executors").joinpath("fused_kernel.cu").read_text()
    options = ["--fmad=false", "--std=c++17", f"-DTHREADS={threads}"]
    return Kernel(source, "augment", options, device)


@cache
def unavailable_reason(device: torch.device) -> str:
    """Return why the executor cannot run on a device, or an empty string."""
    if device.type != "cuda":
        return "it runs on CUDA devices"
    if torch.version.hip is not None:
        return "it is written for NVIDIA's compiler"
    try:
        _kernel(device, 256)
    except KernelError as error:
        return str(error)
    return ""


def unsuitable_reason(images: Tensor, slots: int) -> str:
    """Return why a batch is beyond the kernel, or an empty string."""
    if max(images.shape[-2:]) > _MAX_SIDE:
        return f"images are larger than {_MAX_SIDE} pixels a side"
    if slots > _MAX_SLOTS:
        return f"programs have more than {_MAX_SLOTS} slots"
    return ""


def run(images: Tensor, program: Program, resample: int, fill: tuple[int, ...]) -> Tensor:
    """Run a program on CUDA images, uint8 ``[B, 3 or 1, H, W]``."""
    images = images.contiguous()
    out = torch.empty_like(images)
    parameters = _Params(
        images=images.data_ptr(),
        op=program.op.contiguous().data_ptr(),
        arg=program.arg.contiguous().data_ptr(),
        code=None if program.resample is None else program.resample.contiguous().data_ptr(),
        slots=program.op.shape[1],
        default_code=resample,
    )
    _launch(parameters, images, out, len(images), fill)
    return out


def _launch(parameters: _Params, images: Tensor, out: Tensor, batch: int, fill: Sequence[int]) -> None:
    device, pixels = images.device, images.shape[-2] * images.shape[-1]
    threads = 256 if pixels <= 64 * 64 else 1024
    kernel = _kernel(device, threads)
    limit = _shared_limit(device) - _STATIC_SHARED
    shared = 8 * pixels if 8 * pixels <= limit else 4 * pixels if 4 * pixels <= limit else 0
    buffers = 2 - shared // (4 * pixels)
    scratch = torch.empty(batch * buffers * pixels, dtype=torch.int32, device=device) if buffers else None
    kernel.allow_shared_memory(shared)
    red, green, blue = fill if len(fill) == 3 else (fill[0],) * 3
    parameters.out, parameters.scratch = out.data_ptr(), None if scratch is None else scratch.data_ptr()
    parameters.batch, parameters.channels = batch, images.shape[1]
    parameters.height, parameters.width = images.shape[-2:]
    parameters.image_in_shared, parameters.both_in_shared = int(buffers < 2), int(buffers < 1)
    parameters.fill = red | green << 8 | blue << 16
    with torch.cuda.device(device):
        kernel.launch(batch, threads, shared, parameters)


@cache
def _shared_limit(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 * 1024))


@dataclass(frozen=True)
class Plan:
    """A policy as tables that the kernel draws from; see ``draw_slot`` in ``fused_kernel.cu``."""

    draw: int
    slots: int
    table_op: Tensor
    table_arg: Tensor
    gate: Tensor | None = None
    edges: Tensor | None = None
    rows: int = 0
    choices: int = 0
    levels: int = 0
    random_code: bool = False

    def form(self) -> tuple[object, ...]:
        """What a captured launch has baked in: everything but the tables' values."""
        tables = (self.table_op, self.table_arg, self.gate, self.edges)
        shapes = (None if table is None else table.shape for table in tables)
        return self.draw, self.slots, self.rows, self.choices, self.levels, self.random_code, *shapes

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.table_op, self.table_arg, self.gate, self.edges) if tensor is not None]


@runtime_checkable
class HasPlan(Protocol):
    """A policy that makes its own tables."""

    def plan(self, size: tuple[int, int]) -> Plan:
        """Return the tables for images of this height and width."""
        ...


def both_signs(semantics: str, names: tuple[str, ...], choice: Tensor, levels: Tensor, size: tuple[int, int]) -> Tensor:
    """Arguments with sign + and -, as the last dimension."""
    mapping = get_semantics(semantics)
    signs = torch.ones_like(levels)
    pair = [mapping.arguments(names, choice, levels, sign, size) for sign in (signs, -signs)]
    return torch.stack(pair, -1).contiguous()


def plan_of(policy: Policy, size: tuple[int, int]) -> Plan | None:
    """Return the tables of a policy, on the CPU, or None if only its own ``sample`` can draw it."""
    if isinstance(policy, HasPlan):
        return policy.plan(size)
    if isinstance(policy, AutoAugment):
        policy = policy.sub_policies
    if isinstance(policy, Identity):
        return Plan(
            _RANDOM_OPS,
            0,
            torch.zeros(1, dtype=torch.int64, device="cpu"),
            torch.zeros(1, 2, dtype=torch.float64, device="cpu"),
        )
    if isinstance(policy, RandAugment) and policy.m_std == 0 and policy.op_weights is None:
        highest = get_semantics(policy.semantics).top if policy.m_max is None else policy.m_max
        choice = torch.arange(len(policy.ops), device="cpu")
        levels = torch.full((len(policy.ops),), float(min(policy.m, highest)), dtype=torch.float64, device="cpu")
        return Plan(
            _RANDOM_OPS,
            policy.n,
            torch.tensor(op_indices(policy.ops), device="cpu"),
            both_signs(policy.semantics, policy.ops, choice, levels, size),
            gate=torch.tensor([policy.p], dtype=torch.float64, device="cpu") if policy.p < 1 else None,
            choices=len(policy.ops),
            random_code=policy.resample == "random",
        )
    if isinstance(policy, TrivialAugment):
        count = int(get_semantics(policy.semantics).top) + 1
        choice = torch.arange(len(policy.ops), device="cpu").repeat_interleave(count)
        levels = torch.arange(count, dtype=torch.float64, device="cpu").repeat(len(policy.ops))
        return Plan(
            RANDOM_LEVELS,
            policy.n,
            torch.tensor(op_indices(policy.ops), device="cpu"),
            both_signs(policy.semantics, policy.ops, choice, levels, size),
            choices=len(policy.ops),
            levels=count,
            random_code=policy.resample == "random",
        )
    if isinstance(policy, SubPolicies) and policy.m_std == 0 and policy.weights is None:
        tables = _tables(policy.sub_policies, torch.device("cpu"))
        return Plan(
            _ROWS,
            tables.choice.shape[1],
            torch.tensor(op_indices(tables.names), device="cpu")[tables.choice].contiguous(),
            both_signs(policy.semantics, tables.names, tables.choice, tables.level, size),
            gate=tables.probability,
            rows=len(tables.choice),
            random_code=policy.resample == "random",
        )
    if isinstance(policy, ParticlePolicy) and policy.order == "fixed":
        particles, edges = policy._constants(torch.device("cpu"))
        choice = torch.arange(len(policy.ops), device="cpu")
        levels = torch.full((len(policy.ops),), policy.m, dtype=torch.float64, device="cpu")
        return Plan(
            _PARTICLES,
            len(policy.ops),
            torch.tensor(op_indices(policy.ops), device="cpu"),
            both_signs(policy.semantics, policy.ops, choice, levels, size),
            gate=particles,
            edges=edges,
            rows=len(particles),
            random_code=policy.resample == "random",
        )
    return None


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
                "the fused kernel does PadCrop, HorizontalFlip, the policy, RandomErasing and Normalize only"
            )
        normalize = next((transform for transform in after if isinstance(transform, Normalize)), None)
        if dtype not in _OUTPUTS or (dtype == torch.uint8) != (normalize is None):
            raise ValueError(f"the result is uint8 without Normalize and a floating type with it, got {dtype}")
        self.size, self.device, self.resample, self.fill = size, device, resample, fill
        self.dtype, self.channels_last = dtype, channels_last
        self.seed = torch.tensor(seed, dtype=torch.int64, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self._settings = self._always_on(before, after, normalize)
        self._plan: Plan | None = None
        self.policy: Policy | None = None
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        """Change the policy; tables of the same shape are overwritten in place, so that captured graphs see them."""
        if policy is self.policy:
            return
        check_size(ops_of(policy), self.size)
        self.policy = policy
        plan = plan_of(policy, self.size)
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
        self._plan = Plan(
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
        plan, parameters = self._plan, _Params(**self._settings)
        if plan is None:
            program = self._program(ids, particle)
            parameters.draw, parameters.slots = _GIVEN, program.op.shape[1]
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
        parameters.default_code, parameters.output = self.resample, _OUTPUTS[self.dtype]
        parameters.channels_last = int(self.channels_last)
        _launch(parameters, images, out, batch, self.fill)
        return out

    def _program(self, ids: Tensor, particle: Tensor | None) -> Program:
        assert self.policy is not None
        if particle is None:
            return self.policy.sample(ids, self.epoch, self.seed, self.size)
        if not isinstance(self.policy, ParticlePolicy):
            raise ValueError(f"a policy of kind {self.policy.kind!r} has no particles to choose")
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
