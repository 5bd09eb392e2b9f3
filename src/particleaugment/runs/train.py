"""From a configuration to a finished run folder: what the command line and Python users call."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from particleaugment.policies import load
from particleaugment.report.report_and_events import ReportAndEvents
from particleaugment.report.summary import print_summary
from particleaugment.trainee.ranks import RankError, Ranks
from particleaugment.training.build import resolve
from particleaugment.training.checkpoint import find_checkpoints, last_good
from particleaugment.training.config import Config
from particleaugment.training.display import Display
from particleaugment.training.distributed import StopTogether, joined, launched, on_own_device
from particleaugment.training.loop import train as train_session
from particleaugment.training.run import RunError, RunFolder
from particleaugment.training.run_length import with_epochs
from particleaugment.training.session import Session
from particleaugment.util.atomic import SaveError
from particleaugment.util.shared_memory import SharedMemoryError
from particleaugment.util.stop import Stop, Stopped

__all__ = ["Interrupted", "RunFailed", "resume", "train"]


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal, or because its output was closed; its state is saved.

    Attributes:
        exit_code: The conventional exit code: 130 after Ctrl-C, 143 after SIGTERM, 141 after the output was closed.
        output_closed: Whether the output was closed.
    """

    def __init__(self, message: str, exit_code: int, output_closed: bool):
        super().__init__(message)
        self.exit_code, self.output_closed = exit_code, output_closed


class RunFailed(RunError):
    """A run failed after it had started."""


def train(
    config: Config | Callable[[], Config],
    out: str | Path | None = None,
    *,
    checkpoint_seconds: float = 5.0,
    quiet: bool = False,
) -> RunFolder:
    """Train a network by a configuration and return the finished run's folder.

    Ctrl-C saves and raises :class:`Interrupted`; :func:`resume` continues to the identical result. Under torchrun
    several processes share the work, and an existing run is resumed.

    Args:
        config: The configuration, for example from :func:`particleaugment.recipe`, or a function that returns it and
            is called by the first process only.
        out: The run folder, which must not exist yet; by default ``runs/RECIPE-SEED``.
        checkpoint_seconds: Minimum seconds between checkpoints.
        quiet: Print nothing.

    >>> import tempfile
    >>> from particleaugment import recipe
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(recipe("digits", epochs=1, policy="none", train_size=60), f"{folder}/run", quiet=True)
    ...     run.finished, resume(run.path, quiet=True).finished
    (True, True)
    """

    def request() -> tuple[RunFolder, bool]:
        resolved = with_epochs(resolve(config() if callable(config) else config))
        path = Path("runs") / f"{resolved.recipe}-{resolved.seed}" if out is None else Path(out)
        if launched() and path.exists() and (run := RunFolder.open(path)).config == resolved:
            return run, False
        return RunFolder.create(path, resolved), True

    return _carry_out(request, checkpoint_seconds, quiet)


def resume(
    run: str | Path,
    *,
    data_dir: str | Path | None = None,
    checkpoint_seconds: float = 5.0,
    quiet: bool = False,
) -> RunFolder:
    """Resume a stopped or killed run exactly where it was and return its folder; a finished run is left unchanged.

    Args:
        run: The run folder.
        data_dir: New directory of the data, if they have moved.
        checkpoint_seconds: Minimum seconds between checkpoints.
        quiet: Print nothing.

    >>> resume("no/such/run")
    Traceback (most recent call last):
    particleaugment.training.run.RunError: there is no folder no/such/run
    """

    def request() -> tuple[RunFolder, bool]:
        opened = RunFolder.open(Path(run))
        return opened if data_dir is None else opened.with_data_in(Path(data_dir)), False

    return _carry_out(request, checkpoint_seconds, quiet)


def _carry_out(request: Callable[[], tuple[RunFolder, bool]], checkpoint_seconds: float, quiet: bool) -> RunFolder:
    """Begin or continue a run; ``request`` returns its folder, and whether it was made just now."""

    def opened() -> tuple[Path, bool, str, bool]:
        run, fresh = request()
        if irregular := run.irregular():
            raise RunError(f"{irregular}; remove it, or replace it with a copy of its target")
        return run.path, fresh, run.config.to_json(), run.finished

    with joined() as all_ranks, ExitStack() as held:
        path, fresh, config, finished = all_ranks.on_first(opened)
        ranks = all_ranks.everywhere(lambda: on_own_device(all_ranks, Config.from_json(config).training.device))
        stop = held.enter_context(StopTogether(ranks))
        run, quiet = RunFolder(path, Config.from_json(config)), quiet or not ranks.first
        display = Display(quiet, closed=stop.close_output)
        if finished:
            display.say(f"{path} is finished: there is nothing to resume.")
            _show_result(run, display, stop)
            return run
        with _explained(path), _stopped_politely(path, display, stop):
            ranks.on_first(lambda: held.enter_context(run.locked()))
            session = _open_session(run, display, stop, checkpoint_seconds, fresh, ranks)
            with _failures_named(path):
                _train(session, display, stop)
                _show_result(run, display, stop)
    return run


def _train(session: Session, display: Display, stop: Stop) -> None:
    run = session.run
    stop.check()
    if session.restore():
        display.say(f"resuming {run.path} in epoch {session.position.epoch} of {run.config.training.epochs}")
    session.ranks.on_first(run.note_data)
    stop.check()
    learns = f"filter {run.config.filter.kind}" if run.config.searches else f"policy {run.config.policy}"
    display.say(
        f"{run.config.recipe}: {run.config.model} on {run.config.data.name}, {run.config.training.epochs} epochs, "
        f"{learns}; {session.chosen}"
    )
    if not train_session(session):
        raise Stopped


def _open_session(
    run: RunFolder, display: Display, stop: Stop, checkpoint_seconds: float, fresh: bool, ranks: Ranks
) -> Session:
    """Make the session; a folder made for a request that turns out not to fit its data goes away again."""
    try:
        return Session(run, display, stop, checkpoint_seconds, ranks, extras=ReportAndEvents(run))
    except (ValueError, RankError, SharedMemoryError):
        if fresh and ranks.first:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _show_result(run: RunFolder, display: Display, stop: Stop) -> None:
    if not display.quiet:
        print_summary(run, load(run.policy), display.console)
    if stop.output_closed:
        raise Interrupted("", stop.exit_code, output_closed=True)


@contextmanager
def _stopped_politely(path: Path, display: Display, stop: Stop) -> Iterator[None]:
    try:
        yield
    except Stopped:
        what = "stopped and saved" if find_checkpoints(path) else "stopped before the first batch"
        message = f"{what}; continue with: particleaugment resume {shlex.quote(str(path))}"
        if not stop.output_closed:
            display.say(message)
        raise Interrupted(message, stop.exit_code, stop.output_closed) from None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say of what could not be saved which checkpoint is left; a broken pipe here is not that of the output."""
    try:
        yield
    except SaveError as error:
        raise SaveError(f"{error}; {last_good(path)}") from None
    except BrokenPipeError as error:
        raise RunFailed(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}") from None


@contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    """Name errors of a run that has started as its own: the request cannot be what is wrong."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise RunFailed(f"the run failed ({type(error).__name__}: {error}); {last_good(path)}") from error
