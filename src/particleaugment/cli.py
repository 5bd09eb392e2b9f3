"""The command line.

Exit codes: 0 done; 1 the run failed; 2 the request was not valid, and nothing was started; 130 stopped by Ctrl-C and
143 by SIGTERM, saved and ready to resume (a second signal ends the process at once, with the same codes); 141 ended
since its output was closed, runs saved too.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from particleaugment import __version__
from particleaugment.cli_policy import Epoch, add_commands
from particleaugment.compare.command import compare
from particleaugment.output import Commands, Output

if TYPE_CHECKING:
    from particleaugment.ranks import Ranks
    from particleaugment.training.display import Display
    from particleaugment.training.run import RunFolder
    from particleaugment.training.session import Session
    from particleaugment.training.stop import Stop

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    help="Learn an image-augmentation policy while a network trains.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
policy_app = typer.Typer(
    help="Look at policies, and carry them to and from other projects.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(policy_app, name="policy")

CheckpointSeconds = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="Least seconds between two checkpoints.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe; list shows them.")] = "digits",
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Run folder; runs/RECIPE-SEED if not given.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the run.")] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Repeat bit for bit on the same GPU, at some cost of speed.")
    ] = False,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="The filter: improved, or paper for the paper's to the letter.")
    ] = "improved",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the recipe; repeatable.")
    ] = None,
    checkpoint_seconds: CheckpointSeconds = 5.0,
    quiet: Quiet = False,
) -> None:
    """Train a network by a recipe and learn its policy.

    Ctrl-C saves and stops; resume continues to the identical result. A fixed
    policy takes the place of the search with --set policy=NAME. Under torchrun,
    several processes share the work, and a run that is there already goes on.
    """

    def request() -> tuple[RunFolder, bool]:
        from particleaugment.recipes import get_recipe
        from particleaugment.training.build import resolve
        from particleaugment.training.config import override
        from particleaugment.training.distributed import launched
        from particleaugment.training.run import RunFolder

        flags = [f"seed={seed}", *(["deterministic=true"] if deterministic else [])]
        config = resolve(override(get_recipe(recipe, preset), [*flags, *(assignments or [])]))
        path = out or Path("runs") / f"{recipe}-{config.seed}"
        if launched() and path.exists() and (run := RunFolder.open(path)).config == config:
            return run, False
        return RunFolder.create(path, config), True

    _go(request, checkpoint_seconds, quiet)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data are now, if they have been moved.")
    ] = None,
    checkpoint_seconds: CheckpointSeconds = 5.0,
    quiet: Quiet = False,
) -> None:
    """Continue a stopped or killed run exactly where it was."""

    def request() -> tuple[RunFolder, bool]:
        from particleaugment.training.run import RunFolder

        opened = RunFolder.open(run)
        return opened if data_dir is None else opened.with_data_in(data_dir), False

    _go(request, checkpoint_seconds, quiet)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Write a run's report.html anew."""
    with _clear_errors():
        from particleaugment.report.page import write_report
        from particleaugment.training.run import RunFolder

        print(f"wrote {write_report(RunFolder.open(run))}")


@app.command("compare")
@wraps(compare)
def _compare(*arguments: Any, **options: Any) -> None:
    with _clear_errors():
        compare(*arguments, **options)


@app.command()
def verify(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Check every file of a run folder and say what is sound.

    The exit code is 1 if anything is wrong.
    """
    with _clear_errors():
        from particleaugment.verify import verify as verify_run

        verdict = verify_run(run)
        print("\n".join(verdict.lines(min(shutil.get_terminal_size().columns, 100))))
        if not verdict.sound:
            raise typer.Exit(1)


@policy_app.command("show")
def policy_show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Policy file, or a run's folder.")], epoch: Epoch = None
) -> None:
    """Print a policy file's policy in a few lines."""
    with _clear_errors():
        from particleaugment.policies import Schedule, load
        from particleaugment.report.summary import leading_ops

        policy = load(file / "policy.json" if file.is_dir() else file)
        if epoch is not None and isinstance(policy, Schedule):
            policy = policy.at_or_last(epoch)
        console = Output()
        console.print(repr(policy))
        for name, share in leading_ops(policy, count=15):
            console.print(f"{name:<13} {'█' * round(40 * share):<40} {100 * share:5.1f} %")


@policy_app.command("gallery")
def policy_gallery(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Policy file; without one, every op and several policies."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="PNG", help="Picture to write.")] = Path("gallery.png"),
) -> None:
    """Write a PNG that shows what a policy does to embedded images."""
    with _clear_errors():
        from particleaugment.policies import load
        from particleaugment.report.gallery import write_gallery

        print(f"wrote {write_gallery(out, None if file is None else load(file))}")


@app.command()
def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist, fashion-mnist, cifar10 or cifar100.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where its folder goes.")],
    quiet: Quiet = False,
) -> None:
    """Download a data set, or unpack its archive.

    An archive of CIFAR that is in DIR already is checked and unpacked.
    """
    with _clear_errors():
        from particleaugment.data.download import DownloadError, fetch

        try:
            folder = fetch(name, directory, quiet=quiet)
        except DownloadError as error:
            _fail(str(error), 1)
        except KeyboardInterrupt:
            _fail("stopped; the same command goes on from what has arrived", 130)
        if not quiet:
            print(f"{name} is in {folder}")


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: under a minute on two CPU cores.")] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of CIFAR-10, for the epochs on a GPU.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="JSON", help="File to write the results to.")] = None,
) -> None:
    """Time augmentation and training on this machine.

    Peers that are installed are timed beside it.
    """
    with _clear_errors():
        from particleaugment.bench import suite

        if out is not None and not out.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {out.absolute().parent} to write {out.name} to; make it first")
        console = Output()
        with console.status("") as status:
            settings = suite.QUICK if quick else suite.FULL
            document = suite.run_suite(settings, data, seed=0, say=lambda what: status.update(f"timing: {what}"))
        if out is not None:
            options = ["--quick"] * quick + (["--data", str(data)] if data else [])
            command = shlex.join(["particleaugment", "bench", *options])
            out.write_text(json.dumps({"command": command} | document, indent=1) + "\n")
        console.print(suite.table(document))
        console.print(suite.describe(document))
        if data is not None and document["machine"]["gpu"] is None:
            console.print("There is no GPU here, so the epochs are of the small network on the digits, not of --data.")
        if out is not None:
            print(f"wrote {out}")


@app.command("list")
def list_all() -> None:
    """List recipes, policies, arms and models, one line each."""
    from particleaugment.compare.arms import ARMS
    from particleaugment.models import MODELS, PATTERNS
    from particleaugment.policies.parse import SHORT_STRINGS
    from particleaugment.recipes import RECIPES

    print("Recipes (particleaugment train NAME)")
    for name, recipe in RECIPES.items():
        print(f"  {name:<20} {(recipe.__doc__ or '').strip().splitlines()[0]}")
    print("Policies (--set policy=NAME; 'particles' learns one)")
    for name, meaning in SHORT_STRINGS.items():
        print(f"  {name:<20} {meaning}")
    print("Arms (particleaugment compare RECIPE --arms NAME,NAME)")
    for name, arm in ARMS.items():
        print(f"  {name:<20} {arm.meaning}")
    print("Models (--set model=NAME)")
    print(f"  {', '.join(MODELS)}")
    print(f"  other depths and widths: {', '.join(PATTERNS)}")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _go(request: Callable[[], tuple[RunFolder, bool]], checkpoint_seconds: float, quiet: bool) -> None:
    """Begin or continue a run; ``request`` returns its folder, and whether it was made just now."""
    from particleaugment.training.config import Config
    from particleaugment.training.display import Display
    from particleaugment.training.distributed import StopTogether, joined, on_own_device
    from particleaugment.training.loop import train as run_session
    from particleaugment.training.run import RunFolder
    from particleaugment.training.stop import Stopped

    def opened() -> tuple[Path, bool, str, bool]:
        run, fresh = request()
        return run.path, fresh, run.config.to_json(), run.finished

    with _clear_errors(), joined() as all_ranks, ExitStack() as held:
        path, fresh, config, finished = all_ranks.on_first(opened)
        ranks = all_ranks.everywhere(lambda: on_own_device(all_ranks, Config.from_json(config).device))
        stop = held.enter_context(StopTogether(ranks))
        run, quiet = RunFolder(path, Config.from_json(config)), quiet or not ranks.first
        display = Display(quiet, closed=stop.close_output)
        if finished:
            display.say(f"{path} is finished: there is nothing to resume.")
            _show_result(run, display, stop)
            return
        with _clear_errors(path), _stopped_politely(path, display, stop):
            ranks.on_first(lambda: held.enter_context(run.locked()))
            session = _open_session(run, display, stop, checkpoint_seconds, fresh, ranks)
            with _clear_errors(path, started=True):
                stop.check()
                if session.restore():
                    display.say(f"resuming {path} in epoch {session.position.epoch} of {run.config.epochs}")
                ranks.on_first(run.note_data)
                minutes = session.estimate_seconds() / 60
                stop.check()
                display.say(
                    f"{run.config.recipe}: {run.config.model} on {run.config.data}, {run.config.epochs} epochs, "
                    f"policy {run.config.policy}; {session.chosen}; about {minutes:.1f} minutes"
                )
                if not run_session(session):
                    raise Stopped
                _show_result(run, display, stop)


def _show_result(run: RunFolder, display: Display, stop: Stop) -> None:
    from particleaugment.policies import load
    from particleaugment.report.summary import print_summary

    if not display.quiet:
        print_summary(run, load(run.policy), display.console)
    if stop.output_closed:
        raise typer.Exit(stop.exit_code)


@contextmanager
def _stopped_politely(path: Path, display: Display, stop: Stop) -> Iterator[None]:
    """End with the signal's exit code; what there was to save is saved by now."""
    from particleaugment.training.checkpoint import find_checkpoints
    from particleaugment.training.stop import Stopped

    try:
        yield
    except Stopped:
        what = "stopped and saved" if find_checkpoints(path) else "stopped before the first batch"
        message = f"{what}; continue with: particleaugment resume {shlex.quote(str(path))}"
        if stop.output_closed:
            _fail(f"the output was closed: {message}", stop.exit_code)
        display.say(message)
        raise typer.Exit(stop.exit_code) from None


def _open_session(
    run: RunFolder, display: Display, stop: Stop, checkpoint_seconds: float, fresh: bool, ranks: Ranks
) -> Session:
    """Make the session; a folder made for a request that turns out not to fit its data goes away again."""
    from particleaugment.ranks import RankError
    from particleaugment.shared_memory import SharedMemoryError
    from particleaugment.training.session import Session

    try:
        return Session(run, display, stop, checkpoint_seconds, ranks)
    except (ValueError, RankError, SharedMemoryError):
        if fresh and ranks.first:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


@contextmanager
def _clear_errors(run: Path | None = None, *, started: bool = False) -> Iterator[None]:
    """Turn what users can mend into one sentence and an exit code; anything else stays a traceback.

    Args:
        run: The run's folder, where there is one.
        started: Whether the run has started, so that the request cannot be what is wrong.
    """
    from particleaugment.data.reader import ReadError
    from particleaugment.ranks import RankError, ReportedByFirst
    from particleaugment.shared_memory import SharedMemoryError
    from particleaugment.training.checkpoint import CheckpointError, SaveError, last_good
    from particleaugment.training.run import RunError
    from particleaugment.training.stop import StopNow

    try:
        yield
    except ReportedByFirst:
        raise typer.Exit(1) from None
    except (RunError, CheckpointError, ReadError, RankError, SharedMemoryError) as error:
        _fail(str(error), 1)
    except SaveError as error:
        _fail(f"{error}; {last_good(run)}" if run else str(error), 1)
    except (ValueError, TypeError, ImportError) as error:
        if not started or run is None:
            _fail(str(error), 2)
        else:
            _fail(f"the run failed ({type(error).__name__}: {error}); {last_good(run)}", 1)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and run is None:
            raise  # that of standard output
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}", 1)
    except StopNow as stop:
        _fail("stopped at once; what the last checkpoint holds is kept", stop.exit_code)
    except KeyboardInterrupt:
        _fail("stopped at once; what the last checkpoint holds is kept", 130)


add_commands(policy_app, _clear_errors)


def _fail(message: str, code: int) -> None:
    with suppress(BrokenPipeError):  # where nobody reads it, the code is left
        print(f"particleaugment: {message}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """Run the command line."""
    app()
