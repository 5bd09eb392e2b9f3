"""``particleaugment compare``."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from particleaugment.util.shown import printable

if TYPE_CHECKING:
    from rich.console import Console

    from particleaugment.compare.arms import Arm, Base
    from particleaugment.compare.comparison import Comparison, ComparisonFolder
    from particleaugment.compare.ray_place import RayPlace
    from particleaugment.util.stop import Stop

__all__ = ["compare"]


def compare(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE|FOLDER", help="A recipe; with --report, a comparison folder.")
    ],
    arms: Annotated[
        str,
        typer.Option(
            metavar="ARM,ARM",
            help="Arms, separated by commas; `particleaugment list` shows all. Also schedule:FILE and "
            "name:key=value,key=value.",
        ),
    ] = "none,trivialaugment,randaugment,difficulty",
    seeds: Annotated[str, typer.Option("--seeds", metavar="SEEDS", help="Seeds, such as 0-11 or 0,3,7.")] = "0-2",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Output folder (default: runs/compare-RECIPE).")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all arms; repeatable.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="ARM", help="Arm to compare with (default: the first).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Simultaneous runs (default: 1; on Ray as many as fit).")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="ray|ADDRESS", help="Train on a Ray cluster: the one here, or ray://HOST:10001."),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, metavar="N", help="On Ray: cores per run.")] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0.01, metavar="X", help="On Ray: GPUs per run; 0.25 puts four runs on one.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Train nothing: rewrite the table and the page.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Train several arms with several seeds and compare them.

    Rerun the command to resume, or with more arms or seeds to add them.
    """
    from particleaugment.util.output import Output
    from particleaugment.util.stop import Stop

    stop = Stop()
    console = Output(stop.close_output, quiet=quiet)
    if report:
        _report(Path(recipe), against, console)
        _end(0, stop)
        return

    from particleaugment.compare.arms import parse_arms, parse_seeds
    from particleaugment.compare.comparison import ComparisonFolder
    from particleaugment.compare.data_fit import check_data
    from particleaugment.training.run import locked_folder

    base, wanted, numbers = _base(recipe, assignments or []), parse_arms(arms), parse_seeds(seeds)
    _check_arms(wanted, base)
    folder = ComparisonFolder(out or Path("runs") / f"compare-{recipe}")
    command = _command_text(recipe, arms, seeds, assignments or [], jobs, on)
    folder.refuse_strangers()
    asked = {(arm.name, seed) for arm in wanted for seed in numbers}
    with ExitStack() as held:
        ray = _ray_place(on, jobs, cores, gpus)
        if ray is not None:
            held.enter_context(ray)
            base = _base(recipe, [*_device_of_cluster(ray, recipe, assignments or []), *(assignments or [])])
        new = not folder.file.exists()
        if not new:
            held.enter_context(locked_folder(folder.path))
        plan = folder.plan(base, wanted, numbers).compared_with(against)
        to_train = {run.arm for run in plan.unfinished if (run.arm, run.seed) in asked}
        to_check = [arm for arm in wanted if arm.name in to_train]
        if ray is None:
            check_data(to_check, base, quiet=quiet)
        else:
            ray.check_data(to_check, base)
        if new:
            folder.path.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked_folder(folder.path))
            plan = folder.plan(base, wanted, numbers).compared_with(against)  # another may have been faster
        code, plan = _train(folder, plan, asked, command, jobs or 1, ray, stop, console)
        folder.write(plan)
        _publish(folder, plan, console)
    if (quiet and code == 1) or stop.output_closed:
        _tell_failures(folder, plan)
    if stop.output_closed and code == stop.exit_code:
        print("particleaugment: the output was closed: stopped and saved; rerun the command to resume", file=sys.stderr)
    _end(code, stop)


def _end(code: int, stop: Stop) -> None:
    """End the command with an exit code; an output that was closed has its own."""
    if code or stop.output_closed:
        raise typer.Exit(stop.exit_code if stop.output_closed else code)


def _ray_place(on: str | None, jobs: int | None, cores: int | None, gpus: float | None) -> RayPlace | None:
    """Return the cluster that --on names, or None where runs are processes of this machine."""
    from particleaugment.training.config import ConfigError

    if on is None:
        for name, value in (("--cores", cores), ("--gpus", gpus)):
            if value is not None:
                raise ConfigError(f"{name} is for runs on Ray; add --on ray, or use --jobs to share this machine")
        return None
    from particleaugment.compare.ray_place import RayPlace

    return RayPlace(on, jobs, cores, gpus)


def _device_of_cluster(ray: RayPlace, recipe: str, assignments: list[str]) -> list[str]:
    """Return the device as a setting: what auto means there; one that is set comes later and counts more."""
    auto = _device(recipe, assignments) == "auto"
    return [f"device={ray.device()}"] if auto else []


def _device(recipe: str, assignments: list[str]) -> str:
    """Return the device that a recipe with some settings asks for, before ``auto`` is resolved."""
    from particleaugment.recipes import get_recipe
    from particleaugment.training.override import assigned

    given = [value for key, value in map(assigned, assignments) if key.rpartition(".")[2] == "device"]
    return given[-1] if given else get_recipe(recipe).config.training.device


def _command_text(
    recipe: str, arms: str, seeds: str, assignments: list[str], jobs: int | None, on: str | None = None
) -> str:
    """Return the command that makes these runs, as it would be given on any machine."""
    from particleaugment.data.hf import portable_place

    words = ["particleaugment", "compare", recipe, "--arms", arms, "--seeds", seeds, "--out", "FOLDER"]
    for assignment in assignments:
        key, _, value = (part.strip() for part in assignment.partition("="))
        if key.rpartition(".")[2] in ("data_dir", "data-dir"):
            assignment = "data_dir=DIR"
        elif key == "data" and value.startswith("hf:"):
            assignment = f"data=hf:{portable_place(value.removeprefix('hf:'))}"
        elif key == "data" and ":" in value:
            assignment = f"data={value.partition(':')[0]}:DIR"
        words += ["--set", assignment]
    words += ["--jobs", str(jobs)] if (jobs or 1) > 1 else []
    return printable(shlex.join([*words, *(["--on", "ray"] if on else [])]))


def _base(recipe: str, assignments: list[str]) -> Base:
    from particleaugment.compare.arms import Base
    from particleaugment.recipes import RECIPES, get_recipe
    from particleaugment.training.config import ConfigError
    from particleaugment.training.run_length import with_epochs

    if recipe not in RECIPES and (Path(recipe) / "compare.json").exists():
        raise ConfigError(
            f"{recipe} is a comparison folder, not a recipe; repeat the command that started it, "
            "or add --report to rewrite its table and page"
        )
    base = Base.of(get_recipe(recipe), assignments)
    return replace(base, config=with_epochs(base.config))


def _check_arms(arms: tuple[Arm, ...], base: Base) -> None:
    """Find what is wrong with an arm, or with a setting that none of them has, before anything is made."""
    from particleaugment.training.config import ConfigError
    from particleaugment.training.override import assigned, is_filter_setting

    configs = [arm.config(base, seed=0) for arm in arms]
    for config in configs:
        if not config.searches:
            config.fixed_policy()
    filters = [config.filter for config in configs if config.searches]
    for assignment in base.filter_settings:
        key, _ = assigned(assignment)
        if filters and not any(is_filter_setting(key, filter) for filter in filters):
            kinds = ", ".join(dict.fromkeys(filter.kind for filter in filters))
            raise ConfigError(f"none of the filters compared, {kinds}, has a setting {key}; leave it out")


def _train(
    folder: ComparisonFolder,
    plan: Comparison,
    wanted: set[tuple[str, int]],
    command: str,
    jobs: int,
    ray: RayPlace | None,
    stop: Stop,
    console: Console,
) -> tuple[int, Comparison]:
    """Train what is wanted and not finished; returns the exit code too."""
    from particleaugment.compare.execute import execute
    from particleaugment.compare.runner import LocalPlace
    from particleaugment.util.timing import machine

    todo = [run for run in plan.runs if (run.arm, run.seed) in wanted and not run.finished]
    if not todo:
        console.print(f"all {len(wanted)} runs are finished")
        return 0, plan
    made_by = {"command": command, "machine": machine() | {"ray": None if ray is None else ray.cluster.description}}
    if made_by not in plan.commands:
        plan = replace(plan, commands=(*plan.commands, made_by))
    folder.write(plan)
    local = LocalPlace(min(jobs, len(todo)))
    if ray is not None:
        ray.use(folder.path)
    how = f"{local.jobs} at a time" if ray is None else ray.describe(len(todo))
    console.print(f"{len(todo)} of {len(wanted)} runs to do, {how}", soft_wrap=True)
    with stop:
        plan = execute(folder, plan, todo, ray or local, stop, console)
    left = [run for run in plan.runs if (run.arm, run.seed) in wanted and not run.finished]
    if stop.asked:
        console.print("stopped and saved; rerun the command to resume")
        return stop.exit_code, plan
    return (1 if left else 0), plan


def _report(path: Path, against: str | None, console: Console) -> None:
    from particleaugment.compare.comparison import ComparisonFolder
    from particleaugment.training.run import RunError

    folder = ComparisonFolder(path)
    comparison = folder.read()
    if comparison is None:
        raise RunError(f"{path} is not a comparison folder: it has no compare.json")
    comparison = folder.refresh(comparison).compared_with(against)
    folder.write_unless_in_use(comparison)
    _publish(folder, comparison, console)


def _tell_failures(folder: ComparisonFolder, comparison: Comparison) -> None:
    """Print to standard error what a quiet command must not keep to itself."""
    from particleaugment.compare.arm_summary import unfinished_remark
    from particleaugment.util.output import say

    for run in comparison.unfinished:
        if run.problem is not None:
            say(f"particleaugment: {printable(unfinished_remark(run, folder))}", error=True)


def _publish(folder: ComparisonFolder, comparison: Comparison, console: Console) -> None:
    from particleaugment.compare.arm_summary import print_comparison
    from particleaugment.compare.comparison_page import render
    from particleaugment.util.atomic import write_atomically

    write_atomically(folder.page, render(comparison))
    print_comparison(comparison, console, folder)
    if comparison.recommendation is not None:
        console.print(f"\n{comparison.recommendation.text}\n\n{comparison.recommendation.verdict}", soft_wrap=True)
    console.print(f"page to open: {folder.page}", soft_wrap=True)
