"""The command line.

Exit codes: 0 done; 1 the run failed; 2 the request was not valid, and nothing was started; 130 stopped by Ctrl-C and
143 by SIGTERM, saved and ready to resume (a second signal ends the process at once, with the same codes); 141 ended
since its output was closed, runs saved too.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from particleaugment import __version__
from particleaugment.cli.policy import Epoch, PolicyFile, add_commands, policy_in
from particleaugment.compare.command import compare
from particleaugment.util.atomic import write_atomically
from particleaugment.util.output import Commands, Output, say
from particleaugment.util.shown import printable

if TYPE_CHECKING:
    from particleaugment.training.config import Config

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
    help="Show, export and import policies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(policy_app, name="policy")

CheckpointSeconds = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="Minimum seconds between checkpoints.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe; `particleaugment list` shows all.")
    ] = "digits",
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Run folder (default: runs/RECIPE-SEED).")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the run.")] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bit-identical results on the same GPU; slower.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe; repeatable."),
    ] = None,
    checkpoint_seconds: CheckpointSeconds = 5.0,
    quiet: Quiet = False,
) -> None:
    """Train a network with a recipe and learn its policy.

    Ctrl-C saves and stops; `resume` continues to the identical result. Use
    --set policy=NAME for a fixed policy instead of a search. Under torchrun,
    several processes share the work, and an existing run resumes.
    """

    def config() -> Config:
        from particleaugment.recipes import get_recipe

        flags = [f"seed={seed}", *(["deterministic=true"] if deterministic else [])]
        return get_recipe(recipe).override([*flags, *(assignments or [])])

    with _clear_errors():
        from particleaugment.runs.train import train as train_run

        train_run(config, out, checkpoint_seconds=checkpoint_seconds, quiet=quiet)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New directory of the data, if they have moved.")
    ] = None,
    checkpoint_seconds: CheckpointSeconds = 5.0,
    quiet: Quiet = False,
) -> None:
    """Resume a stopped or killed run exactly where it was."""

    with _clear_errors():
        from particleaugment.runs.train import resume as resume_run

        resume_run(run, data_dir=data_dir, checkpoint_seconds=checkpoint_seconds, quiet=quiet)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Rewrite a run's report.html."""
    with _clear_errors():
        from particleaugment.report.page import write_report
        from particleaugment.training.run import RunFolder

        say(f"wrote {write_report(RunFolder.open(run))}")


@app.command("compare")
@wraps(compare)
def _compare(*arguments: Any, **options: Any) -> None:
    with _clear_errors():
        compare(*arguments, **options)


@app.command()
def verify(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Check every file of a run folder.

    The exit code is 1 if a file is damaged or missing.
    """
    with _clear_errors():
        from particleaugment.runs.verify import verify as verify_run

        verdict = verify_run(run)
        say("\n".join(verdict.lines(min(shutil.get_terminal_size().columns, 100))))
        if not verdict.sound:
            raise typer.Exit(1)


@policy_app.command("show")
def policy_show(file: PolicyFile, epoch: Epoch = None) -> None:
    """Print a policy in a few lines."""
    with _clear_errors():
        from particleaugment.report.summary import leading_ops

        policy = policy_in(file)
        if epoch is not None:
            policy = policy.at_or_last(epoch)
        console = Output()
        console.print(repr(policy))
        leading = leading_ops(policy, count=15)
        if not leading:
            console.print("no op is applied to more than 0.5 % of the images")
        for name, share in leading:
            console.print(f"{name:<13} {'█' * round(40 * share):<40} {100 * share:5.1f} %")


@policy_app.command("gallery")
def policy_gallery(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Policy file or run folder (default: every op and several policies)."),
    ] = None,
    epoch: Epoch = None,
    out: Annotated[Path, typer.Option(metavar="PNG", help="Output file.")] = Path("gallery.png"),
) -> None:
    """Write a PNG that shows what a policy does to two sample photos."""
    with _clear_errors():
        from particleaugment.report.gallery import write_gallery

        if file is None and epoch is not None:
            raise ValueError("--epoch is for the schedule of a policy file; name the file too")
        say(f"wrote {write_gallery(out, None if file is None else policy_in(file).at_or_last(epoch))}")


@app.command()
def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist, fashion-mnist, cifar10 or cifar100.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to put its folder in.")],
    quiet: Quiet = False,
) -> None:
    """Download and unpack a data set.

    A CIFAR archive that is already in DIR is checked and unpacked.
    """
    with _clear_errors():
        from particleaugment.data.download import DownloadError, fetch

        try:
            folder = fetch(name, directory, quiet=quiet)
        except DownloadError as error:
            _fail(str(error), 1)
        except KeyboardInterrupt:
            _fail("stopped; rerun the command to resume the download", 130)
        if not quiet:
            say(f"{name} is in {folder}")


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter: under a minute on two CPU cores.")] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="CIFAR-10 directory, to time epochs on a GPU.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="JSON", help="Write the results to this file.")] = None,
) -> None:
    """Time augmentation and training on this machine.

    Also times timm and torchvision if they are installed.
    """
    with _clear_errors():
        from particleaugment.bench import suite

        if out is not None and not out.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {out.absolute().parent} to write {out.name} to; create it first")
        console = Output()
        with console.status("") as status:
            settings = suite.QUICK if quick else suite.FULL
            document = suite.run_suite(settings, data, seed=0, say=lambda what: status.update(f"timing: {what}"))
        if out is not None:
            options = ["--quick"] * quick + (["--data", str(data)] if data else [])
            command = shlex.join(["particleaugment", "bench", *options])
            write_atomically(out, json.dumps({"command": command} | document, indent=1) + "\n")
        console.print(suite.table(document))
        console.print(suite.describe(document))
        if data is not None and document["machine"]["gpu"] is None:
            console.print("There is no GPU here, so training was timed on digits, without --data.")
        if out is not None:
            say(f"wrote {out}")


@app.command("list")
def list_all() -> None:
    """List recipes, policies, filters, arms and models."""
    from particleaugment.compare.arms import ARMS
    from particleaugment.models import MODELS, PATTERNS
    from particleaugment.policies.parse import SHORT_STRINGS
    from particleaugment.recipes import RECIPES
    from particleaugment.search.filters import FILTERS, meaning_of

    print("Recipes (particleaugment train NAME)")
    for name, recipe in RECIPES.items():
        print(f"  {name:<20} {(recipe.__doc__ or '').strip().splitlines()[0]}")
    print("Policies (--set policy=NAME; the default is 'learned')")
    for name, meaning in SHORT_STRINGS.items():
        print(f"  {name:<20} {meaning}")
    print("Filters, which learn a policy (--set filter=NAME)")
    for name in FILTERS:
        print(f"  {name:<20} {meaning_of(name)}")
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


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn what users can mend into one sentence and an exit code; anything else stays a traceback."""
    from particleaugment.data.reader import ReadError
    from particleaugment.runs.train import Interrupted
    from particleaugment.trainee.ranks import RankError, ReportedByFirst
    from particleaugment.training.checkpoint import CheckpointError
    from particleaugment.training.run import RunError
    from particleaugment.util.atomic import SaveError
    from particleaugment.util.shared_memory import SharedMemoryError
    from particleaugment.util.stop import StopNow

    try:
        yield
    except ReportedByFirst:
        raise typer.Exit(1) from None
    except (RunError, CheckpointError, ReadError, RankError, SharedMemoryError, SaveError) as error:
        _fail(str(error), 1)
    except (ValueError, TypeError, ImportError) as error:
        _fail(str(error), 2)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise  # that of standard output
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}", 1)
    except Interrupted as stop:
        if stop.output_closed and str(stop):
            _fail(f"the output was closed: {stop}", stop.exit_code)
        raise typer.Exit(stop.exit_code) from None
    except StopNow as stop:
        _fail("stopped immediately; the last checkpoint is kept", stop.exit_code)
    except KeyboardInterrupt:
        _fail("stopped immediately; the last checkpoint is kept", 130)


add_commands(policy_app, _clear_errors)


def _fail(message: str, code: int) -> None:
    with suppress(BrokenPipeError):  # where nobody reads it, the code is left
        say(f"particleaugment: {printable(message)}", error=True)
    raise typer.Exit(code)


def main() -> None:
    """Run the command line."""
    app()
