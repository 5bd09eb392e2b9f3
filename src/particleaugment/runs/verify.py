"""``particleaugment verify``: what is sound in a run folder, part by part, without changing anything in it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from particleaugment.models.weight_files import open_weights
from particleaugment.policies import Policy, Schedule, load
from particleaugment.policies.policy import document
from particleaugment.search.history import unpacked
from particleaugment.search.idle_ops import without_colour
from particleaugment.training.checkpoint import CheckpointError, find_checkpoints, load_checkpoint
from particleaugment.training.checkpoint_content import network_of
from particleaugment.training.checkpoint_position import data_named
from particleaugment.training.config import Config
from particleaugment.training.records import RecordError, parse_records
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.reading import read_file
from particleaugment.util.shown import shown_command
from particleaugment.util.strict_json import clipped

__all__ = ["Finding", "Verdict", "verify"]

_LABEL = 12


class _Problem(Exception):
    """What is wrong with a part, in a sentence."""


@dataclass(frozen=True)
class Finding:
    """What was found of one part of a run.

    Attributes:
        part: ``config``, ``checkpoint``, ``given``, ``metrics``, ``policy``, ``model`` or ``report``.
        sound: Whether nothing is wrong with it.
        text: What it holds, or what is wrong.
    """

    part: str
    sound: bool
    text: str


@dataclass(frozen=True)
class Verdict:
    """The findings about a run folder, and what can be done with it.

    Attributes:
        findings: One per part.
        state: ``finished``, ``resumable`` or ``broken``.
        advice: What that means here, in a sentence.
    """

    findings: tuple[Finding, ...]
    state: str
    advice: str

    @property
    def sound(self) -> bool:
        """Whether every part is sound."""
        return all(finding.sound for finding in self.findings)

    def lines(self, width: int = 80) -> list[str]:
        """Return the verdict as lines of text."""
        rows = [(finding.part, ("" if finding.sound else "WRONG: ") + finding.text) for finding in self.findings]
        lines: list[str] = []
        for label, text in [*rows, (self.state, self.advice)]:
            lines += textwrap.wrap(
                text,
                width,
                initial_indent=f"{label:<{_LABEL}}",
                subsequent_indent=" " * _LABEL,
                break_long_words=False,
                break_on_hyphens=False,
            )
        return lines


@dataclass
class _Known:
    """What the parts checked so far have told."""

    run: RunFolder
    newest: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the newest checkpoint was written after the last epoch."""
        return self.newest is not None and self.newest["position"]["epoch"] > self.run.config.training.epochs


def verify(path: Path) -> Verdict:
    """Check every file of a run folder; nothing is written."""
    try:
        known = _Known(RunFolder.open(path))
    except RunError as error:
        return Verdict((Finding("config", False, str(error)),), "broken", "without config.json nothing can be resumed")
    config = known.run.config
    described = (
        f"{config.recipe}: {config.model} on {config.data.name}, {config.training.epochs} epochs, seed {config.seed}"
    )
    findings = [Finding("config", True, described)]
    owner = known.run.owner()
    if owner is not None:
        findings.append(Finding("in use", True, f"by {owner}: files may change while they are read"))
    if irregular := known.run.irregular():
        findings.append(Finding("files", False, irregular))
    parts: list[tuple[str, Callable[[_Known], str]]] = [
        ("checkpoint", _checkpoints), ("metrics", _metrics), ("policy", _policy), ("model", _model),
        ("report", _report),
    ]  # fmt: skip
    if config.policy_file is not None:
        parts.insert(1, ("given", _given))
    for part, check in parts:
        try:
            findings.append(Finding(part, True, check(known)))
        except _Problem as problem:
            findings.append(Finding(part, False, clipped(problem)))
    return Verdict(tuple(findings), *_state(known, findings))


def _state(known: _Known, findings: list[Finding]) -> tuple[str, str]:
    wrong = {finding.part for finding in findings if not finding.sound}
    path = known.run.path
    if known.run.finished:
        if not wrong:
            return "finished", "every file is valid"
        if known.ended and not wrong & {"metrics"}:
            return "broken", f"remove {known.run.model}, then {shown_command('resume', path)} rewrites the results"
        return "broken", f"do not trust the files named above; the others are valid ({path})"
    if known.newest is None and find_checkpoints(path):
        return "broken", "no checkpoint can be used; remove them to restart from the first epoch"
    if "files" in wrong:
        return "broken", "resume writes only to regular files; replace the links with copies of their targets"
    if "given" in wrong:
        return "broken", f"restore {known.run.given_policy}, the policy file that the run was started with"
    if "metrics" in wrong:
        return "broken", "restore metrics.jsonl, or remove the checkpoints to start from the first epoch"
    start = "in epoch {epoch}".format(**known.newest["position"]) if known.newest is not None else "from the start"
    return "resumable", f"{shown_command('resume', path)} continues {start}"


def _checkpoints(known: _Known) -> str:
    paths = find_checkpoints(known.run.path)
    problems = []
    for path in reversed(paths):
        try:
            state = load_checkpoint(path, known.run.config)
            known.newest = known.newest or state
            if data_named(state) != data_named(known.newest):
                problems.append(f"{path} names different data than a newer checkpoint")
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise _Problem("; ".join(problems))
    if not paths:
        return "none, and none needed" if known.run.finished else "none yet"
    assert known.newest is not None
    where = "after the last epoch" if known.ended else f"in epoch {known.newest['position']['epoch']}"
    return f"{', '.join(path.name for path in paths)}; checksums match, the newest is {where}"


def _given(known: _Known) -> str:
    path = known.run.given_policy
    if known.run.finished and not os.path.lexists(path):
        return "missing, but no longer needed"
    try:
        identity = known.run.policy_identity()
    except ValueError as error:
        raise _Problem(str(error)) from None
    if known.newest is not None and known.newest["policy"] != identity:
        raise _Problem(f"{path} is not the policy that the run was started with")
    return f"{path.name}, as when the run was started"


def _metrics(known: _Known) -> str:
    try:
        content = read_file(known.run.metrics)
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise _Problem(f"{known.run.metrics} cannot be read: {error.strerror}") from None
    known_bytes, extra = 0, ""
    if known.newest is not None:
        known_bytes = known.newest["position"]["metrics_bytes"]
        if len(content) < known_bytes:
            raise _Problem(f"{known.run.metrics} is shorter than when its checkpoint was written")
        if known.run.metrics_digest(known_bytes) != known.newest["metrics_sha256"]:
            raise _Problem(f"{known.run.metrics} has changed since its checkpoint was written")
    if not known.run.finished:
        # What no checkpoint knows of is computed again, so a line cut short by a crash is no harm.
        newer = content[known_bytes:]
        lines = newer.count(b"\n")
        extra = f"; {lines} lines newer than the checkpoint, which resume rewrites" if newer else ""
        content = content[:known_bytes]
    try:
        records = parse_records(content, known.run.config.training.evaluate_every)
    except RecordError as error:
        raise _Problem(f"{known.run.metrics}: {error}") from None
    epochs = [record for record in records if record["kind"] == "epoch"]
    steps = [record for record in records if record["kind"] == "filter"]
    last = epochs[-1]["epoch"] if epochs else 0
    if known.run.finished and last != known.run.config.training.epochs:
        raise _Problem(f"{known.run.metrics} ends with epoch {last} of {known.run.config.training.epochs}")
    wanted = getattr(known.run.config.filter, "num_particles", 0)
    for step in steps:
        if len(step.get("delta", range(wanted))) != wanted:
            raise _Problem(f"{known.run.metrics}: step {step['step']} has {len(step['delta'])} of {wanted} particles")
    skipped = sum(step["skip_reason"] is not None for step in steps)
    filter_text = f", {len(steps)} filter steps ({skipped} skipped)" if known.run.config.searches else ""
    evaluated = "" if len(epochs) == last else f" ({len(epochs)} evaluated)"
    return f"{last} epochs{evaluated}{filter_text}{extra}"


def _policy(known: _Known) -> str:
    if not known.run.policy.exists():
        if known.run.finished:
            raise _Problem(f"{known.run.policy} is missing")
        return "not written yet: written when the run stops or ends"
    config, path = known.run.config, known.run.policy
    try:
        schedule = Schedule.load(path) if config.searches else None
        policy = load(path) if schedule is None else schedule
    except ValueError as error:
        raise _Problem(str(error)) from None
    if schedule is not None:
        if schedule.ops not in _possible_ops(config) or schedule.epochs != config.training.epochs:
            raise _Problem(f"{path} has different ops or a different number of epochs than config.json")
        if known.ended and schedule != _learned(config, known.newest["search"]):  # type: ignore[index]
            raise _Problem(f"{path} differs from the policy in the checkpoint")
    elif known.run.finished and document(policy) != _fixed(known):
        raise _Problem(f"{path} differs from the policy that the run was started with")
    return f"{policy!r}{', as in the checkpoint' if known.ended and config.searches else ''}"


def _fixed(known: _Known) -> str | None:
    """Return the policy that a run was given, or None where it cannot be read."""
    try:
        return document(known.run.config.fixed_policy(known.run.given_policy))
    except ValueError:
        return None


def _possible_ops(config: Config) -> list[tuple[str, ...]]:
    """Return the ops that a learned policy may have: those of the filter, all of them or as grey images leave them."""
    filter, ops, epochs = config.filter, config.ops, config.training.epochs
    return [filter.init(config.seed, given, epochs).ops for given in (ops, without_colour(filter, ops, epochs))]


def _learned(config: Config, search: Any) -> Policy | None:
    """Return what a checkpoint's search has learned, or None where it cannot be read."""
    try:
        epochs = config.training.epochs
        history = unpacked(search["history"], config.filter.init(config.seed, tuple(search["ops"]), epochs))
        return config.filter.schedule(history, epochs)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def _model(known: _Known) -> str:
    if not os.path.lexists(known.run.model):
        return "not written yet: written when the run ends"
    try:
        content = open_weights(known.run.model)
        weights = content.read(network_of(known.run.config, content.tensors).state_dict())
    except OSError as error:
        raise _Problem(f"{known.run.model} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _Problem(f"{known.run.model}: {clipped(error)}") from None
    same = ""
    if known.ended:
        assert known.newest is not None
        differing = [name for name, tensor in known.newest["model"].items() if not torch.equal(tensor, weights[name])]
        if differing:
            raise _Problem(f"{known.run.model} differs from the checkpoint in {differing[0]}")
        same = ", as in the checkpoint"
    return f"{sum(tensor.numel() for tensor in weights.values()):,} numbers in {len(weights)} tensors{same}"


def _report(known: _Known) -> str:
    path = known.run.path / "report.html"
    if not path.exists():
        if known.run.finished:
            raise _Problem(f"{path} is missing; {shown_command('report', known.run.path)} writes it")
        return "not written yet: written when the run ends"
    try:
        content = read_file(path)
    except OSError as error:
        raise _Problem(f"{path} cannot be read: {error.strerror}") from None
    if not content.startswith(b"<!doctype html>") or not content.endswith(b"</body></html>\n"):
        raise _Problem(f"{path} is truncated; {shown_command('report', known.run.path)} rewrites it")
    return f"{len(content):,} bytes, whole"
