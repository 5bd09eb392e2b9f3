"""Where attacks happen: sound runs to copy, files that nothing may change, and processes that may hang.

Every attack works in a forked process, so that one that blocks, crashes or fills the memory ends with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PIL import Image
from typer.testing import CliRunner

import particleaugment as pa
import particleaugment.runs.train as train_commands
from particleaugment.cli.main import app
from particleaugment.compare.arms import Base, parse_arms
from particleaugment.compare.comparison import Comparison, ComparisonFolder
from particleaugment.compare.run_record import RunRecord
from particleaugment.recipes import get_recipe
from particleaugment.report.report_and_events import ReportAndEvents
from particleaugment.training import loop
from particleaugment.training.config import Config
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop, Stopped

SECONDS = 60.0
"""The longest that an attack may take; nearly all end within one or two."""
MEMORY_KIB = 500 << 10
"""The most memory that an attack may take beyond what it began with."""
LONGEST_MESSAGE = 2000
KINDS: Mapping[str, tuple[str, ...]] = {
    "memory": ("filter=paper", "clone_size=8", "measure_size=6", "num_particles=3"),
    "streamed": ("filter=difficulty", "measure_size=8", "every=1", "stream=true", "workers=0"),
    "difficulty": ("filter=difficulty", "measure_size=8", "every=1"),
    "fixed": ("policy=file:{}/trivial.json",),
}
"""The runs: images in memory by each filter, files decoded while training, and a policy that was given."""
WRITTEN = (".lock", "config.json", "metrics.jsonl", "policy.json", "model.safetensors", "report.html", "tensorboard")
STATES = ("stopped", "finished")
_STATE = re.compile(r"^(finished|resumable|broken) ", re.MULTILINE)


class Finding(Exception):
    """Something that does not hold."""


class _StopInEpoch(Stop):
    """Asks for a stop in an epoch of a session."""

    def __init__(self, epoch: int):
        super().__init__()
        self.epoch = epoch
        self.session: Session | None = None

    def check(self) -> None:
        if self.session is not None and self.session.position.epoch == self.epoch:
            raise Stopped


class Workshop:
    """Sound folders, made once: ``pictures``, a run of each kind in each state, and ``compare``.

    Args:
        folder: Where they are made.
        kinds: The kinds of runs that are wanted.
    """

    def __init__(self, folder: Path, kinds: tuple[str, ...] = tuple(KINDS)):
        self.folder, self.kinds = folder, kinds
        _draw_pictures(folder / "pictures")
        pa.TrivialAugment().save(folder / "trivial.json")
        self.results = {kind: self._make_runs(kind) for kind in kinds}
        self._make_comparison()

    def settings(self, kind: str) -> list[str]:
        """The settings of a kind of run."""
        common = ["epochs=3", "model=wrn-10-1", "image_size=8", "batch_size=16", "device=cpu", "precision=fp32"]
        return [f"data_dir={self.folder / 'pictures'}", *common, *(text.format(self.folder) for text in KINDS[kind])]

    def config(self, kind: str) -> Config:
        """The configuration of a kind of run."""
        return get_recipe("folder").override(self.settings(kind))

    def _make_runs(self, kind: str) -> Any:
        """Make a run that was stopped in its last epoch, with two checkpoints, and carry on a copy of it."""
        stopped, finished = (self.folder / f"{kind}-{state}" for state in STATES)
        run = RunFolder.create(stopped, self.config(kind))
        quiet = Display(quiet=True)
        stop = _StopInEpoch(3)
        stop.session = session = Session(run, quiet, stop, checkpoint_seconds=0.0, extras=ReportAndEvents(run))
        assert not loop.train(session), "it was to be stopped"
        assert len(list(stopped.glob("checkpoint-*.pt"))) == 2
        shutil.copytree(stopped, finished)
        pa.resume(finished, quiet=True)
        return result(finished)

    def _make_comparison(self) -> None:
        base, arms = Base.of(get_recipe("digits"), ["epochs=3"]), parse_arms("none,paper")
        health: dict[str, float | None] = {
            "steps": 2,
            "skipped": 1,
            "resampled": 0,
            "effective_sample_size": 3.5,
            "ops_per_image": 0.7,
        }
        records = [
            RunRecord(
                arm=arm.name,
                seed=seed,
                epochs=3,
                finished=True,
                accuracy=(80.0, 85.0, 90.0 + seed),
                train_loss=(2.0, 1.5, 1.0),
                ops_per_image=(0.5, 0.6, 0.7) if arm.learned else (),
                seconds={"train": 10.0, "evaluate": 1.0} | ({"clone": 3.0} if arm.learned else {}),
                filter=health if arm.learned else {},
            )
            for arm in arms
            for seed in range(2)
        ]
        records.append(RunRecord(arm="none", seed=2, epochs=3, problem="it failed"))
        made_by = {"command": "particleaugment compare", "machine": {"cpu": "a CPU", "cores": 2, "versions": {}}}
        folder = ComparisonFolder(self.folder / "compare")
        folder.path.mkdir()
        (folder.path / "runs").mkdir()
        (folder.path / "logs").mkdir()
        folder.write(Comparison(base, arms, "none", (), (made_by,)).with_runs(records))


def _draw_pictures(folder: Path) -> None:
    draw = random.Random(0)
    for name in ("lime", "plum"):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            image = Image.frombytes("RGB", (8, 8), draw.randbytes(192))
            image.save(folder / name / f"{number:02}.png", compress_level=0)


def result(run: Path) -> Any:
    """Everything of a finished run that must be a function of its configuration alone."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds", None)
    return (run / "model.safetensors").read_bytes(), (run / "policy.json").read_bytes(), records


def tree(folder: Path, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """What is in a folder: kinds, targets of links, and contents."""
    found: dict[str, Any] = {}
    for parent, folders, files in os.walk(folder):
        if parent == str(folder):
            folders[:] = [name for name in folders if name not in without]
            files = [name for name in files if name not in without]
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            content: Any = None
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, folder)] = (stat.S_IFMT(mode), content)
    return found


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


class Sandbox:
    """One attack's folder: ``run`` is attacked, and everything beside it must stay as it is.

    Args:
        root: The folder.
        workshop: Where sound runs come from.
    """

    def __init__(self, root: Path, workshop: Workshop):
        self.root, self.workshop, self.run, self.outside = root, workshop, root / "run", root / "outside"
        (self.outside / "folder").mkdir(parents=True)
        for name in ("secret", "folder/secret"):
            (self.outside / name).write_text("secret\n")

    def copy(self, name: str) -> Path:
        """Copy one of the workshop's folders to ``run``."""
        return Path(shutil.copytree(self.workshop.folder / name, self.run, symlinks=True))

    def command(self, *words: object) -> Outcome:
        """Run a command in this process and check what holds for all of them."""
        before, start = tree(self.root, ("run",)), time.process_time()
        found = CliRunner().invoke(app, [str(word) for word in words])
        seconds = time.process_time() - start
        text = " ".join(map(repr, map(str, words)))
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            trace = "".join(traceback.format_exception(found.exception))
            raise Finding(f"{text}: a traceback\n{trace}")
        if not all(line.isprintable() for line in (found.stdout + found.stderr).split("\n")):
            raise Finding(f"{text}: shows raw escapes: {found.stdout + found.stderr!r}")
        if tree(self.root, ("run",)) != before:
            raise Finding(f"{text}: something outside the folder has changed")
        if found.exit_code and "Usage:" not in found.stderr and words[0] != "verify":
            if not found.stderr.startswith("particleaugment: ") or len(found.stderr.splitlines()) != 1:
                raise Finding(f"{text}: exit code {found.exit_code} without one sentence: {found.stderr!r}")
            if len(found.stderr) > LONGEST_MESSAGE:
                raise Finding(f"{text}: a message of {len(found.stderr)} characters")
        if seconds > SECONDS / 3:
            raise Finding(f"{text}: takes {seconds:.0f} s of work")
        return Outcome(found.exit_code, found.stdout, found.stderr)

    def call(self, function: Callable[..., Any], *given: Any, errors: tuple[type[Exception], ...]) -> Any:
        """Call a function; returns its value, or one of the documented errors with a message of one line."""
        before = tree(self.root, ("run",))
        try:
            value = function(*given)
        except errors as error:
            value = error
            if "\n" in str(error) or not str(error).isprintable() or len(str(error)) > LONGEST_MESSAGE:
                raise Finding(f"{function.__name__}: not one printable sentence: {error!r}") from None
        if tree(self.root, ("run",)) != before:
            raise Finding(f"{function.__name__}: something outside the folder has changed")
        return value

    def would_resume(self, *options: object) -> Outcome:
        """Run ``resume`` up to the first batch."""
        with patch.object(train_commands, "train_session", lambda session: sys.exit(0)):
            return self.command("resume", self.run, "-q", *options)

    def finish(self, kind: str, *options: object) -> Outcome:
        """Run ``resume`` to the end; if it gets there, its result must be that of a run that was left alone."""
        found = self.command("resume", self.run, "-q", *options)
        if not found.code:
            if any((self.run / name).is_symlink() for name in WRITTEN):
                raise Finding("resume has written through a link, or left one in a result's place")
            if result(self.run) != self.workshop.results[kind]:
                raise Finding("resume was accepted and has another result")
        return found

    def agreement(self, kind: str, *, to_the_end: bool, other_data: bool = False) -> str:
        """Let ``verify`` and ``resume`` judge the run, and compare; returns whether it was accepted.

        Where checkpoints name other data than there are, ``resume`` alone can know, since ``verify`` reads no data.
        """
        before = tree(self.run)
        judged = self.command("verify", self.run)
        if tree(self.run) != before:
            raise Finding("verify has changed the run")
        states = _STATE.findall(judged.stdout)
        if len(states) != 1 or judged.code != int("WRONG" in judged.stdout):
            raise Finding(f"verify has no clear verdict: {judged}")
        over = (self.run / "model.safetensors").is_file()
        done = self.would_resume()
        if other_data and "the data differ from those that the run" in done.stderr:
            return "refused"
        if to_the_end and not done.code and not over:
            done = self.finish(kind)
            if not done.code and self.command("verify", self.run).code:
                raise Finding(f"verify finds a run wrong that was just finished: {self.command('verify', self.run)}")
        wrong = done.code if states[0] != "broken" else not done.code and not over
        if wrong:
            raise Finding(f"verify and resume disagree: {judged.stdout!r} and {done}")
        return "refused" if judged.code or done.code else "accepted"


def attempt(work: Callable[[], str], seconds: float = SECONDS) -> dict[str, str]:
    """Do an attack's work in a forked process; returns its ``outcome``, or the ``finding``."""
    reader, writer = os.pipe()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if child == 0:
        _work_and_exit(work, writer)
    os.close(writer)
    answered = select.select([reader], [], [], seconds)[0]
    answer = b""
    while answered and (part := os.read(reader, 1 << 16)):
        answer += part
    os.close(reader)
    if not answered:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if not answered:
        return {"finding": f"hangs: there was no answer within {seconds:.0f} s"}
    if not answer:
        return {"finding": f"the process has ended by itself, with the status {os.waitstatus_to_exitcode(status)}"}
    if usage.ru_maxrss - before > MEMORY_KIB:
        return {"finding": f"takes {(usage.ru_maxrss - before) >> 10} MiB of memory"}
    return json.loads(answer)  # type: ignore[no-any-return]


def _work_and_exit(work: Callable[[], str], writer: int) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        try:
            answer = {"outcome": work()}
        except Finding as finding:
            answer = {"finding": str(finding)}
        except BaseException:
            answer = {"finding": f"the attack failed: {traceback.format_exc()}"}
        if "finding" in answer:
            answer["finding"] = answer["finding"][-6000:]
        os.write(writer, json.dumps(answer).encode())
    finally:
        os._exit(0)
