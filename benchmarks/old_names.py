"""What committed result files call otherwise than the package does now: arms, and the settings of comparisons."""

from __future__ import annotations

import json
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

__all__ = ["OLD_ARMS", "read_comparison"]

OLD_ARMS: Mapping[str, str] = {
    "improved": "gap",
    "improved-frozen": "gap-frozen",
    "particles": "paper",
    "particles-authors": "paper-authors",
    "particles-frozen": "paper-frozen",
    "particles-shuffled": "paper-shuffled",
}
"""Arms, and policies of benchmarks, by their old names."""


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
        commands=tuple(data["commands"]),
    )


def _arm(data: dict[str, Any]) -> Arm:
    name = OLD_ARMS.get(data["name"], data["name"])
    settings = dict(setting.split("=", 1) for setting in data["settings"])
    policy = settings.get("policy", "particles")
    if policy != "particles":
        return Arm(name, policy, meaning=data["meaning"])
    return Arm(name, LEARNED, name if name in FILTERS else "gap", meaning=data["meaning"])


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
