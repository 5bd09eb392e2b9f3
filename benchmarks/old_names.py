"""What committed result files call otherwise than the package does now: arms, and the settings of comparisons."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from particleaugment.compare.arms import Arm, Base
from particleaugment.compare.comparison import Comparison
from particleaugment.compare.run_record import RunRecord
from particleaugment.search.filters import FILTERS
from particleaugment.training.config import LEARNED, Config
from particleaugment.training.settings import DataSettings, TrainingSettings, TransformSettings

__all__ = ["OLD_ARMS", "in_new_names", "read_comparison"]

OLD_ARMS: Mapping[str, str] = {
    "improved": "gap",
    "improved-frozen": "gap-frozen",
    "particles": "paper",
    "particles-authors": "paper-authors",
    "particles-frozen": "paper-frozen",
    "particles-shuffled": "paper-shuffled",
}
"""Arms, and policies of benchmarks, by their old names."""


def in_new_names(command: str) -> str:
    """Return a command of a result file as it would be given now.

    >>> in_new_names("particleaugment train digits --preset paper")
    'particleaugment train digits --set filter=paper'
    >>> in_new_names("particleaugment compare digits --arms improved-frozen,none,mine:preset=paper,m=4")
    'particleaugment compare digits --arms gap-frozen,none,mine:filter=paper,m=4'
    >>> in_new_names("python benchmarks/gpu_training.py --policies randaugment improved --epochs 25")
    'python benchmarks/gpu_training.py --policies randaugment gap --epochs 25'
    """
    command = command.replace("--preset improved", "--set filter=gap").replace("--preset paper", "--set filter=paper")
    command = command.replace("preset=paper", "filter=paper").replace("preset=improved", "filter=gap")

    def renamed(match: re.Match[str]) -> str:
        return re.sub(r"[^\s,]+", lambda name: OLD_ARMS.get(name[0], name[0]), match[0])

    return re.sub(r"--(?:arms|policies)(?: (?!--)\S+)+", renamed, command)


def read_comparison(folder: Path) -> Comparison:
    """Return the comparison of a folder; one that was written before the configuration had sections is converted."""
    text = (folder / "compare.json").read_text(encoding="utf-8")
    data = json.loads(text)
    if data["version"] != 1:
        return Comparison.from_json(text)
    return Comparison(
        base=Base(_config(data["config"])),
        arms=tuple(_arm(arm) for arm in data["arms"]),
        against=OLD_ARMS.get(data["against"], data["against"]),
        runs=tuple(RunRecord.from_dict(run | {"arm": OLD_ARMS.get(run["arm"], run["arm"])}) for run in data["runs"]),
        commands=tuple(made | {"command": in_new_names(made["command"])} for made in data["commands"]),
    )


def _arm(data: dict[str, Any]) -> Arm:
    name = OLD_ARMS.get(data["name"], data["name"])
    settings = dict(setting.split("=", 1) for setting in data["settings"])
    policy = settings.get("policy", "particles")
    if policy != "particles":
        return Arm(name, policy, meaning=data["meaning"])
    return Arm(name, LEARNED, name if name in FILTERS else "withdrawn", meaning=data["meaning"])


def _config(data: dict[str, Any]) -> Config:
    """Return what a comparison's page needs of its configuration; filters are those of its arms."""

    def section(kind: Any) -> Any:
        given = {field.name: data[field.name] for field in fields(kind) if field.name in data}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}

    return Config(
        recipe=data["recipe"],
        seed=data["seed"],
        data=DataSettings(name=data["data"], **section(DataSettings)),
        model=data["model"],
        training=TrainingSettings(**section(TrainingSettings)),
        transforms=TransformSettings(**section(TransformSettings)),
    )
