"""A model of data-parallel training on many GPUs, from the step times that ``ranks.py --gpus`` measures on one.

A step on n GPUs computes what a step on one computes and sums the gradients in a ring (or in rings of the same bytes):
each GPU sends and receives 2 (n - 1) / n of them over its slowest link, in 2 (n - 1) messages, or, where machines
first sum among themselves, in messages between machines. Part of it runs while the backward pass computes.

Bandwidths are what makers document, less a share that NCCL does not reach; nothing of them is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common import RESULTS, result, table

__all__ = ["ASSUMED", "Assumptions", "efficiency", "ring_seconds", "scaling_table", "step_seconds", "steps_table"]

NOT_YET = "Not measured yet: `python benchmarks/ranks.py --gpus` writes the step times that this table is made from."
GPUS = (8, 64, 512)
NETWORKS = ("wrn-28-10", "resnet-50")


@dataclass(frozen=True)
class Assumptions:
    """What the model takes from documents, and what it supposes.

    Attributes:
        nvlink: Bytes per second of one GPU in one direction within a machine: 450 GB/s, NVLink 4 (H100, H200).
        network: Bytes per second of one GPU in one direction between machines: 50 GB/s, 400 Gb/s InfiniBand (NDR), one
            adapter per GPU.
        reached: Share of these that sums of gradients reach.
        latency: Seconds per message of a ring.
        per_machine: GPUs in a machine.
        backward: Share of a step that is the backward pass, during which sums may run.
        overlap: Share of that time in which they do.
    """

    nvlink: float = 450e9
    network: float = 50e9
    reached: float = 0.8
    latency: float = 5e-6
    per_machine: int = 8
    backward: float = 2 / 3
    overlap: float = 0.5


ASSUMED = Assumptions()


def ring_seconds(size: float, gpus: int, assumed: Assumptions = ASSUMED) -> float:
    """Return the time to sum ``size`` bytes over GPUs.

    >>> ring_seconds(1e9, 1)
    0.0
    >>> plain = Assumptions(nvlink=100e9, network=10e9, reached=1.0, latency=0.0)
    >>> round(ring_seconds(1e9, 8, plain), 6), round(ring_seconds(1e9, 16, plain), 6)
    (0.0175, 0.1875)
    >>> round(ring_seconds(0.0, 16, Assumptions(latency=1e-6)), 9)  # 14 messages within a machine, 2 between two
    1.6e-05
    """
    if gpus == 1:
        return 0.0
    machines = -(-gpus // assumed.per_machine)
    link = assumed.nvlink if machines == 1 else min(assumed.nvlink, assumed.network)
    messages = 2 * (min(gpus, assumed.per_machine) - 1) + 2 * (machines - 1)
    return 2 * (gpus - 1) / gpus * size / (assumed.reached * link) + messages * assumed.latency


def step_seconds(alone: float, size: float, gpus: int, assumed: Assumptions = ASSUMED) -> float:
    """Return the time of a step on GPUs of which one alone takes ``alone`` seconds for its share.

    >>> hidden = Assumptions(nvlink=100e9, reached=1.0, latency=0.0, backward=0.5, overlap=1.0)
    >>> step_seconds(0.1, 1e9, 8, hidden), round(step_seconds(0.02, 1e9, 8, hidden), 6)
    (0.1, 0.0275)
    """
    return alone + max(0.0, ring_seconds(size, gpus, assumed) - assumed.overlap * assumed.backward * alone)


def efficiency(alone: float, size: float, gpus: int, assumed: Assumptions = ASSUMED) -> float:
    """Return the images per second and GPU, as a share of those of one GPU.

    >>> efficiency(0.1, 0.0, 1)
    1.0
    """
    return alone / step_seconds(alone, size, gpus, assumed)


def measured_rows() -> list[dict[str, Any]]:
    """Return the rows of the result file; none if it does not exist yet."""
    if not (RESULTS / "ranks_gpu.json").exists():
        return []
    return result("ranks_gpu")["results"]["rows"]  # type: ignore[no-any-return]


def steps_table() -> str:
    """Return the table of measured step times."""
    rows = measured_rows()
    if not rows:
        return NOT_YET
    lines = [
        [
            row["network"],
            f"{row['ranks']}, NCCL" if row["group"] else "1, no group",
            "captured" if row["trainee"] == "GraphTrainee" and not row["said"] else "eager",
            f"{row['milliseconds_per_step']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{row['bytes_reduced'] / 1e6:.1f}",
            "yes" if row["weights_equal"] and row["policy_equal"] is not False else "no",
        ]
        for row in rows
    ]
    header = ["network", "ranks", "step", "ms per step", "MB of gradients", "ranks equal"]
    document = result("ranks_gpu")
    slower = ", ".join(
        f"{name} {share:+.1f} %" for name, share in document["results"]["group_of_one_slower_percent"].items()
    )
    return (
        f"{table(header, lines)}\n\n{document['machine']['gpu']}, {rows[0]['images_per_rank_and_step']} images per "
        f"rank and step. A group of one against none, captured: {slower}. Command: `{document['command']}`."
    )


def scaling_table() -> str:
    """Return the table of modelled steps on many GPUs."""
    found = {row["network"]: row for row in measured_rows() if row["group"] and row["ranks"] == 1 and row["captured"]}
    chosen = [found[name] for name in NETWORKS if name in found]
    if not chosen:
        return NOT_YET
    lines = []
    for row in chosen:
        alone, size = row["milliseconds_per_step"] / 1e3, row["bytes_reduced"]
        for gpus in GPUS:
            lines.append(
                [
                    row["network"],
                    f"{gpus}",
                    f"{1e3 * alone:.1f}",
                    f"{1e3 * ring_seconds(size, gpus):.1f}",
                    f"{1e3 * step_seconds(alone, size, gpus):.1f}",
                    f"{100 * efficiency(alone, size, gpus):.0f} %",
                ]
            )
    header = ["network", "GPUs", "ms per step on one (measured)", "ms of the sum", "ms per step", "speed per GPU"]
    return f"{table(header, lines)}\n\nA model: only the step on one GPU is measured. {assumptions_text(ASSUMED)}"


def assumptions_text(assumed: Assumptions) -> str:
    """Return what the model assumes, in words."""
    return (
        f"Documented, not measured: {assumed.nvlink / 1e9:.0f} GB/s per GPU and direction within a machine of "
        f"{assumed.per_machine} (NVLink 4), {assumed.network / 1e9:.0f} GB/s between machines (400 Gb/s InfiniBand, "
        f"one adapter per GPU). Assumed: sums reach {100 * assumed.reached:.0f} % of that, "
        f"{1e6 * assumed.latency:.0f} µs per message, the backward pass is "
        f"{100 * assumed.backward:.0f} % of a step, and sums run during "
        f"{100 * assumed.overlap:.0f} % of it."
    )
