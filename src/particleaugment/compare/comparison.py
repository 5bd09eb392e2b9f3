"""A comparison: its plan and its figures, in one file, ``compare.json``, beside the folders of its runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from particleaugment.compare.arm_summary import arm_summaries, differences
from particleaugment.compare.arms import Arm, Base, arm_name
from particleaugment.compare.recommendation import Recommendation, recommend
from particleaugment.compare.run_record import RunRecord
from particleaugment.training.config import Config, ConfigError, settings_of
from particleaugment.training.run import RunError, RunFolder, locked_folder
from particleaugment.util.atomic import own_folder, write_atomically
from particleaugment.util.hints import nearest_name
from particleaugment.util.reading import read_file
from particleaugment.util.strict_json import JSONError, parse_json
from particleaugment.util.typed import rebuilt

__all__ = ["Comparison", "ComparisonFolder"]

FORMAT, VERSION = "particleaugment comparison", 2


@dataclass(frozen=True)
class Comparison:
    """What is compared and what came of it.

    Attributes:
        base: What its arms share: a recipe with the comparison's settings.
        arms: The arms, in the order in which they were first asked for.
        against: Name of the arm that the others are compared with.
        runs: Every run that was ever asked for, ordered by seed and arm.
        commands: The commands that trained them, each with the machine it ran on.
    """

    base: Base
    arms: tuple[Arm, ...]
    against: str
    runs: tuple[RunRecord, ...] = ()
    commands: tuple[dict[str, Any], ...] = ()

    def arm(self, name: str) -> Arm:
        """Return an arm by its name."""
        return next(arm for arm in self.arms if arm.name == name)

    def of_arm(self, name: str) -> list[RunRecord]:
        """Return the runs of an arm, by seed."""
        return [run for run in self.runs if run.arm == name]

    @property
    def unfinished(self) -> list[RunRecord]:
        """The runs that have no result yet."""
        return [run for run in self.runs if not run.finished]

    @property
    def measured_on(self) -> str:
        """Which images the accuracy is of: the test set, or training images held out in its place."""
        return self.base.config.data.measured_on

    @property
    def recommendation(self) -> Recommendation | None:
        """Which arm to use and how sure that is, or None where fewer than two arms have a finished run."""
        return recommend(self.arms, self.runs, self.measured_on)

    def compared_with(self, name: str | None) -> Comparison:
        """Return the comparison against another arm; None keeps the present one."""
        if name is None:
            return self
        names = [arm.name for arm in self.arms]
        name = name if name in names else arm_name(name)
        if name not in names:
            hint = nearest_name(name, names) or f"; the arms are {', '.join(names)}"
            raise ConfigError(f"--against names {name!r}, which is not an arm of this comparison{hint}")
        return replace(self, against=name)

    def with_runs(self, records: Iterable[RunRecord]) -> Comparison:
        """Return the comparison with runs added or replaced."""
        order = {arm.name: place for place, arm in enumerate(self.arms)}
        merged = {(run.seed, order[run.arm]): run for run in (*self.runs, *records)}
        return replace(self, runs=tuple(merged[key] for key in sorted(merged)))

    def asked_for(self, base: Base, arms: Sequence[Arm], seeds: Sequence[int], started: Collection[str]) -> Comparison:
        """Return the comparison with more arms and seeds, or raise a ConfigError where its settings would change.

        Args:
            base: The recipe with the settings now asked for.
            arms: The arms now asked for.
            seeds: Their seeds.
            started: Names of the arms that have a run already.
        """
        if started:
            _agree("this comparison", self.base.settings, base.settings)
        known = {arm.name: arm for arm in self.arms}
        for arm in arms:
            old = known.get(arm.name, arm)
            if arm.name in started and old != arm:
                raise ConfigError(
                    f"the arm {arm.name!r} was started with {old.described}, and now is "
                    f"{arm.described}; give the new one another name or choose another --out"
                )
            known[arm.name] = arm
        against = self.against if self.against in known else arms[0].name
        extended = replace(self, base=base, arms=tuple(known.values()), against=against)
        kept = {(run.arm, run.seed) for run in self.runs if run.arm in started}
        return extended.with_runs(
            RunRecord(arm=arm.name, seed=seed, epochs=arm.config(base, seed).training.epochs)
            for arm in arms
            for seed in seeds
            if (arm.name, seed) not in kept
        )

    def to_json(self) -> str:
        """Return plan and figures as JSON text, one run a line."""
        advice = self.recommendation
        document = {
            "format": FORMAT,
            "version": VERSION,
            "recipe": self.base.config.recipe,
            "accuracy_of": f"{self.measured_on} images, in percent",
            "against": self.against,
            "arms": [arm.to_dict() for arm in self.arms],
            "summary": [summary.to_dict() for summary in arm_summaries(self.arms, self.runs)],
            "differences": [difference.to_dict() for difference in differences(self.arms, self.runs, self.against)],
            "recommendation": None if advice is None else advice.to_dict(),
            "commands": self.commands,
            "config": json.loads(self.base.config.with_data_in("").to_json()),
            "filter_settings": list(self.base.filter_settings),
            "runs": [run.to_dict() for run in self.runs],
        }
        return "{\n" + ",\n".join(f'"{key}": {_lines(value)}' for key, value in document.items()) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Comparison:
        """Rebuild a comparison from :meth:`to_json`."""
        try:
            data = parse_json(text.encode() if isinstance(text, str) else text)
        except JSONError as error:
            raise ValueError(str(error)) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise ValueError(f"its format must be {FORMAT!r}, version {VERSION}")
        found = rebuilt(_File, {name: data[name] for name in _READ if name in data})
        config = Config.from_json(json.dumps(data.get("config")))
        comparison = cls(
            base=Base(config, filter_settings=found.filter_settings),
            arms=tuple(Arm.from_dict(arm, f"arms[{place}]") for place, arm in enumerate(_listed(data, "arms"))),
            against=found.against,
            runs=tuple(RunRecord.from_dict(run, f"runs[{place}]") for place, run in enumerate(_listed(data, "runs"))),
            commands=tuple(asdict(made_by) for made_by in found.commands),
        )
        comparison._check()
        return comparison

    def _check(self) -> None:
        """Raise a ValueError where parts of a file do not fit each other."""
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError("its arms must have different names")
        if self.against not in names:
            raise ValueError("against must be one of its arms")
        if strangers := {run.arm for run in self.runs} - set(names):
            raise ValueError(f"its runs have the arm {min(strangers)}, which is none of its arms")
        if len({(run.arm, run.seed) for run in self.runs}) < len(self.runs):
            raise ValueError("its runs must have different arms or seeds")
        for name in names:
            if len({run.evaluated_epochs for run in self.of_arm(name) if run.finished}) > 1:
                raise ValueError(f"the finished runs of the arm {name} must have figures of the same epochs")
        for arm in self.arms:
            arm.config(self.base, seed=0)


@dataclass(frozen=True)
class _Machine:
    cpu: str = ""
    cores: int = 0
    gpu: str | None = None
    system: str = ""
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    ray: str | None = None


@dataclass(frozen=True)
class _MadeBy:
    command: str
    machine: _Machine


@dataclass(frozen=True)
class _File:
    """What is read of ``compare.json`` besides arms, runs and configuration; the rest of it follows from these."""

    against: str
    filter_settings: tuple[str, ...]
    commands: tuple[_MadeBy, ...]


_READ = tuple(each.name for each in fields(_File))


def _listed(data: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(data.get(name), list):
        raise ValueError(f"{name} must be a list")
    return data[name]  # type: ignore[no-any-return]


class ComparisonFolder:
    """Paths and files of a comparison: ``compare.json``, ``compare.html``, ``runs`` and ``logs``."""

    def __init__(self, path: Path):
        self.path = path
        self.file = path / "compare.json"
        self.page = path / "compare.html"

    def run_path(self, record: RunRecord) -> Path:
        """Return where a run's folder is."""
        return self.path / "runs" / f"{record.arm}-{record.seed}"

    def log_path(self, record: RunRecord) -> Path:
        """Return where the output of a run goes."""
        return self.path / "logs" / f"{record.arm}-{record.seed}.log"

    def refuse_strangers(self) -> None:
        """Raise a ConfigError where the path is taken by something else than a comparison."""
        if self.path.is_dir():
            strange = not self.file.exists() and any(item.name != ".lock" for item in self.path.iterdir())
            what = "contains files but no compare.json, so it is not a comparison folder"
        else:
            strange = self.path.exists()
            what = "is a file, not a comparison folder"
        if strange:
            raise ConfigError(f"{self.path} {what}; choose a new or an empty folder with --out")

    def read(self) -> Comparison | None:
        """Return the comparison that the folder holds, or None if it holds none yet."""
        if not self.file.exists():
            return None
        try:
            return Comparison.from_json(read_file(self.file))
        except ValueError as error:
            raise RunError(f"{self.file} is not a valid comparison file: {error}") from None
        except OSError as error:
            raise RunError(f"{self.file} cannot be read: {error.strerror}") from None

    def write(self, comparison: Comparison) -> None:
        """Write ``compare.json``."""
        write_atomically(self.file, comparison.to_json())

    def write_unless_in_use(self, comparison: Comparison) -> None:
        """Write ``compare.json``, unless a process that trains holds the folder: that one writes it itself."""
        with contextlib.ExitStack() as held:
            if (self.path / ".lock").exists():
                try:
                    held.enter_context(locked_folder(self.path))
                except RunError:
                    return
            self.write(comparison)

    def plan(self, base: Base, arms: Sequence[Arm], seeds: Sequence[int]) -> Comparison:
        """Return what the folder holds with arms and seeds added, after checking that it all agrees."""
        before = self.read()
        started = (
            {run.arm for run in before.runs if run.finished or self.run_path(run).exists()} if before else set[str]()
        )
        if before is None or not started:
            before = Comparison(base, (), arms[0].name)
        comparison = self.refresh(before.asked_for(base, arms, seeds, started))
        for record in comparison.runs:
            if self.run_path(record).exists():
                self.open_run(record, comparison.arm(record.arm).config(base, record.seed))
        return comparison

    def refreshed(self, record: RunRecord) -> RunRecord:
        """Return a run's figures as its folder has them; a finished run whose folder is gone keeps its figures."""
        path = self.run_path(record)
        blank = RunRecord(arm=record.arm, seed=record.seed, epochs=record.epochs, problem=record.problem)
        if not path.exists():
            return record if record.finished else blank
        run = RunFolder.open(path)
        try:
            return RunRecord.read(run, record.arm, at_once=record.at_once, problem=record.problem)
        except RunError:
            if run.finished:
                raise
            return blank  # a crash has torn the last line; the run cuts it off when it continues

    def refresh(self, comparison: Comparison) -> Comparison:
        """Return a comparison with all figures as the run folders have them."""
        return comparison.with_runs(self.refreshed(record) for record in comparison.runs)

    def open_run(self, record: RunRecord, config: Config) -> RunFolder:
        """Return a run's folder, made if it is not there yet; an existing one must have the same configuration."""
        path = self.run_path(record)
        own_folder(path.parent)
        if not path.exists():
            return RunFolder.create(path, config)
        run = RunFolder.open(path)
        if path.is_symlink() and not run.finished:
            raise RunError(
                f"{path} is a link, so the run would be written elsewhere; replace it with the folder itself"
            )
        before, now = run.config, config
        if run.finished:  # the directory of the data matters no more
            before, now = before.with_data_in(""), now.with_data_in("")
        _agree(str(path), settings_of(before), settings_of(now))
        return run


def _agree(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    if changed:
        was = ", ".join(f"{name}={before.get(name)}" for name in changed)
        wanted = ", ".join(f"{name}={now.get(name)}" for name in changed)
        raise ConfigError(
            f"{what} was started with {was}, and now {wanted} is requested; repeat its original settings, "
            "or choose another --out"
        )


def _lines(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
    return json.dumps(value)
