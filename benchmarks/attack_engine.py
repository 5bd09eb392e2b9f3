"""Attacks on the engine: epochs, ids and images of any kind, threads, inference mode, and the compiler."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attack_sandbox import Finding, Sandbox

import particleaugment as pa

IMAGES = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
NOT_WHOLE: tuple[Any, ...] = (
    1.5, 2.0, "3", None, True, float("nan"), float("inf"), np.float64(2), -1, 1 << 32, 10**30, [], {}, 1j, b"1",
    torch.tensor(1.5), torch.tensor([1, 2]), torch.tensor([]), torch.tensor(True), np.array([1.0]), object(),
    -(1 << 70),
)  # fmt: skip
POLICIES = ("trivial", "rand-m9-n2", "none", "randaugment-n3-m4", "autoaugment-cifar10")


def _epochs(draw: random.Random) -> str:
    augment, epoch = draw.choice([pa.Augment, pa.ImageTransform])(draw.choice(POLICIES)), draw.choice(NOT_WHOLE)
    try:
        augment.set_epoch(epoch)
    except (TypeError, ValueError):
        return "refused"
    raise Finding(f"the epoch {epoch!r} is accepted")


def _ids(draw: random.Random) -> str:
    augment = pa.Augment(draw.choice(POLICIES))
    whole = torch.arange(6)
    odd = [whole + 0.5, whole.float(), whole.bool(), whole.int(), whole[:5], whole[None], whole - 9, whole.to("meta")]
    ids: Any = draw.choice([*NOT_WHOLE, *odd, whole.tolist(), whole.numpy(), whole.to_sparse()])
    one = draw.random() < 0.5
    try:
        found = augment(IMAGES[0] if one else IMAGES, ids)
    except (TypeError, ValueError):
        return "refused"
    if ids is None:
        return "accepted"
    number = ids.tolist() if hasattr(ids, "tolist") else ids
    if not (type(number) is int if one else isinstance(number, list) and [*map(type, number)] == [int] * 6):
        raise Finding(f"the ids {ids!r} are accepted")
    return "accepted" if found.shape == (IMAGES[0] if one else IMAGES).shape else "refused"


def _images(draw: random.Random) -> str:
    odd: list[Any] = [
        IMAGES.float(), IMAGES[:, :2], IMAGES[0, 0], IMAGES[None], IMAGES[:0], IMAGES[..., :0], IMAGES.to("meta"), None,
        IMAGES.int(), IMAGES.numpy(), IMAGES.to_sparse(), IMAGES[:1].expand(6, -1, -1, -1), IMAGES.transpose(2, 3),
        IMAGES.bool(), "x", IMAGES.flip(1), IMAGES[..., ::2], IMAGES.tolist(), torch.nested.nested_tensor([IMAGES[0]]),
    ]  # fmt: skip
    images, augment = draw.choice(odd), pa.Augment(draw.choice(POLICIES), seed=draw.randrange(5))
    ids = torch.arange(len(images)) if isinstance(images, torch.Tensor) and not images.is_nested else None
    try:
        found = augment(images, ids)
    except (TypeError, ValueError):
        return "refused"
    if not torch.equal(found, augment(images.contiguous().clone(), ids)):
        raise Finding("a view is augmented in another way than its copy")
    return "accepted"


def _inference(draw: random.Random) -> str:
    policy, ids = draw.choice(POLICIES), torch.arange(6)
    expected = pa.Augment(policy, seed=4)(IMAGES, ids)
    with torch.inference_mode(draw.random() < 0.8):
        made = pa.Augment(policy, seed=4)
        made(IMAGES)
    made.set_epoch(1)
    made(IMAGES)
    made.load_state_dict(made.state_dict())
    made.set_epoch(0)
    if not torch.equal(made(IMAGES, ids), expected) or made.counter != 12:
        raise Finding("what is made in inference mode differs outside of it")
    return "accepted"


def _threads(draw: random.Random) -> str:
    augment, found, count = pa.Augment("trivial"), list[torch.Tensor](), draw.randint(2, 9)
    sys.setswitchinterval(1e-6)

    def take() -> None:
        for _ in range(50):
            found.append(augment._live.next_ids(draw_count))

    draw_count = draw.randint(1, 5)
    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(torch.cat(found).unique()) != 50 * count * draw_count:
        raise Finding("threads have drawn the same ids")
    return "accepted"


def _compiled(draw: random.Random) -> str:
    """Traced, not translated: what a compiler's back end does with it is not ours."""
    augment, ids = pa.Augment(draw.choice(POLICIES), seed=draw.randrange(9)), torch.arange(6)
    compiled = torch.compile(augment, backend="eager", fullgraph=False)
    if not torch.equal(compiled(IMAGES, ids), augment(IMAGES, ids)):
        raise Finding("what is compiled augments in another way")
    return "accepted"


ENGINE: tuple[Callable[[random.Random], str], ...] = (_epochs, _ids, _ids, _images, _images, _inference, _threads)


def engine(box: Sandbox, draw: random.Random) -> str:
    """Epochs, ids and images of any kind, threads, inference mode: a TypeError or ValueError, or the right pixels."""
    return draw.choices([*ENGINE, _compiled], [1.0] * len(ENGINE) + [0.1])[0](draw)
