"""The paper's Table 1: what it reports, and what was reached here on the same data with the same network."""

from __future__ import annotations

from dataclasses import dataclass

from accuracy_tables import accuracies, literal_records
from common import RESULTS, table

__all__ = ["paper_table"]

ARMS = {
    "difficulty": "the default",
    "gap": "the gap filter (withdrawn)",
    "none": "no policy",
    "trivialaugment": "TrivialAugment",
    "paper": "the paper's filter, as written",
}


@dataclass(frozen=True)
class Row:
    """A row of the paper's table.

    Attributes:
        title: Data and network.
        comparison: Folder of our runs of the same length, under benchmarks/results/compare.
        quoted: What the paper quotes for other methods.
        reported: What the paper reports for itself.
        needs: What one run of ours takes.
    """

    title: str
    comparison: str
    quoted: str
    reported: str
    needs: str


ROWS = (
    Row("CIFAR-10, WRN-28-2", "cifar10-250", "AA 95.9, RA 95.8", "96.43 ± 0.11", "5 minutes on an H200"),
    Row("CIFAR-10, WRN-28-10", "cifar10-wrn28-10-250", "AA 97.4, FAA 97.3, RA 97.3, DADA 97.3", "97.8",
        "20 minutes on an H200"),
    Row("CIFAR-10, Shake-Shake 26 2x96d", "cifar10-shakeshake-750", "AA, FAA, RA and DADA 98.0", "98.2",
        "hours on an H200"),
    Row("CIFAR-100, WRN-28-2", "cifar100-250", "AA 78.5, RA 78.3", "78.8", "5 minutes on an H200"),
    Row("CIFAR-100, WRN-28-10", "cifar100-wrn28-10-250", "AA 82.9, FAA 82.7, RA 83.3, DADA 82.5", "83.3",
        "20 minutes on an H200"),
    Row("ImageNet, ResNet-50", "imagenet-210", "AA, FAA and RA 77.6, DADA 77.5", "77.5",
        "days on an H200, and ImageNet"),
)  # fmt: skip


def paper_table() -> str:
    """Return the table; where nothing was run, it says what a run needs."""
    rows = []
    for row in ROWS:
        found = accuracies(row.comparison) if (RESULTS / "compare" / row.comparison).is_dir() else {}
        if row.comparison == "cifar10-250":
            found.setdefault("paper", f"{literal_records()[0][-1]['test_accuracy']:.2f} % (1)")
        found.setdefault("difficulty", f"not run: needs {row.needs}")
        rows.append([row.title, f"{row.reported} %", row.quoted, *(found.get(arm, "–") for arm in ARMS)])
    head = ["", "the paper", "quoted there, %", *ARMS.values()]
    return f"{table(head, rows)}\n\nTest accuracy, last epoch; in brackets the number of seeds."
