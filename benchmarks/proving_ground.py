"""Train the proving ground's runs that are missing, and write its page.

    python benchmarks/proving_ground.py --data DIR [--tasks …] [--arms …] [--seeds 0-2] [--jobs 5] [--on ray]

DIR holds cifar/, mnist/, mnist-close-tints/ (made by proving_data.py), fashion-mnist/, gtsrb/ and imagenette/, as far
as the tasks need them. Runs of one network follow each other in one process and share its compiled form; several
processes share the GPU. The command may be stopped and killed: call it again, and it resumes. Every finished run is
kept in one JSON file.

With --on the processes are tasks on a Ray cluster, whose nodes need the package, this repository and DIR at the same
paths. A process that is lost with its node is replaced; its run resumes where nodes share --runs, and starts again
where they do not.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

from common import RESULTS
from proving_places import Answers, Job, LocalPlace
from proving_results import Key, Run, add_run, key, load_runs
from proving_tasks import ARMS, TASKS

from particleaugment.compare.arms import parse_seeds
from particleaugment.compare.execute import MOST_LOSSES
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError
from particleaugment.util.hints import nearest_name
from particleaugment.util.stop import Stop

if TYPE_CHECKING:
    from proving_ray import RayPlace

DEFAULT_ARMS = (
    "none", "trivialaugment", "randaugment-1-3", "randaugment-2-6", "randaugment-3-4", "difficulty",
    "difficulty-frozen",
)  # fmt: skip


def _next_job(waiting: list[Job], last: Job | None) -> Job:
    """Take a run of the seed that comes first: one that suits what a worker has in memory, if there is one."""
    for fits in (
        lambda job: last is not None and job.task == last.task,
        lambda job: last is not None and TASKS[job.task].network == TASKS[last.task].network,
        lambda job: True,
    ):
        for job in waiting:
            if job.seed == waiting[0].seed and fits(job):
                waiting.remove(job)
                return job
    raise AssertionError("there is a run waiting")


def train(
    waiting: list[Job], command: Sequence[str], place: LocalPlace | RayPlace, results: Path, log: Path, said: str
) -> int:
    """Train runs, several at a time, adding each to the result file as it ends; return how many failed."""
    answers: Answers = Queue()
    total, failed, begin = len(waiting), 0, time.monotonic()
    losses = Counter[Job]()
    with Stop() as stop:
        running = {place.worker(command, log, answers) for _ in range(min(place.jobs, total))}
        ended = False
        while running:
            place.look()
            if stop.asked and not ended:
                ended = True
                for worker in running:
                    worker.end()
            try:
                worker, answer = answers.get(timeout=0.2)
            except Empty:
                continue
            if answer is None:
                running.discard(worker)
                if worker.lost and not stop.asked:
                    if worker.job is not None:
                        losses[worker.job] += 1
                    if worker.job is None or losses[worker.job] <= MOST_LOSSES:
                        if worker.job is not None:
                            waiting.insert(0, worker.job)
                            print(f"a worker was lost ({worker.lost}); another trains {worker.job}", flush=True)
                        if waiting:
                            running.add(place.worker(command, log, answers))
                        continue
                if worker.job is not None and not stop.asked:
                    failed += 1
                    print(f"a worker ended while it trained {worker.job}; its output is in {log}", flush=True)
                continue
            if "run" in answer:
                run: Run = answer["run"] | {"shared_gpu": worker.at_once, "command": said}
                add_run(results, run)
                failed += "failed" in run
                left = len(waiting) + sum(1 for other in running if other.job is not None and other is not worker)
                figure = run.get("failed") or f"{run['accuracy']:.2f} %"
                spent = time.monotonic() - begin
                print(
                    f"{total - left}/{total}  {run['task']}  {run['arm']}  {run['seed']}: {figure}  ({spent:.0f} s)",
                    flush=True,
                )
            worker.job = None
            if waiting and not stop.asked:
                worker.start(_next_job(waiting, worker.last))
            else:
                worker.end()
    return failed


def _names(text: str, known: Iterable[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            hint = nearest_name(name, known) or f"; there are {', '.join(known)}"
            raise SystemExit(f"there is no {what} {name!r}{hint}")
    return names


def _task_names(text: str | None, *, final: bool) -> list[str]:
    if text == "small":
        return [task.name for task in TASKS.values() if task.small]
    if text:
        return _names(text, TASKS, "task")
    return [task.name for task in TASKS.values() if not task.small and (final or not task.final_only)]


def _jobs(arguments: argparse.Namespace, arms: Mapping[str, bool], known: set[Key]) -> list[Job]:
    tasks = _task_names(arguments.tasks, final=arguments.final)
    chosen = _names(arguments.arms, arms, "arm")
    wanted = (
        Job(task, arm, seed, arguments.final)
        for seed in parse_seeds(arguments.seeds)
        for task in tasks
        for arm in chosen
        if not (TASKS[task].trap and arms[arm])
    )
    return [job for job in wanted if job.identity not in known]


@contextmanager
def _place(arguments: argparse.Namespace) -> Iterator[LocalPlace | RayPlace]:
    """The place that the command line names."""
    if arguments.on is None:
        yield LocalPlace(arguments.jobs or 1)
        return
    from proving_ray import RayPlace

    try:
        with RayPlace(arguments.on, arguments.jobs, arguments.cores, arguments.gpus, arguments.runs) as place:
            yield place
    except (ConfigError, RunError) as error:
        raise SystemExit(str(error)) from None


def run_command(arms: Mapping[str, bool], worker: Path, results: Path, default_arms: str) -> None:
    """Read the command line and do what it says.

    Args:
        arms: The arms by name, and whether each has ops of its own.
        worker: The script that trains them.
        results: The file that keeps their results, unless another is given.
        default_arms: The arms that are trained where none are named.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory with the data sets")
    parser.add_argument("--tasks", help="tasks, by comma, or small for those for a CPU; the core if not given")
    parser.add_argument("--arms", default=default_arms, help="arms, by comma")
    parser.add_argument("--seeds", default="0-1", help="seeds, such as 0-2 or 0,3")
    parser.add_argument("--jobs", type=int, help="processes at a time; 1, or on Ray what there is room for")
    parser.add_argument("--on", metavar="ray|ADDRESS", help="train on a Ray cluster: the one here, or ray://HOST:10001")
    parser.add_argument("--cores", type=int, help="on Ray: cores per process")
    parser.add_argument("--gpus", type=float, help="on Ray: GPUs per process; 0.2 puts five on one")
    parser.add_argument("--final", action="store_true", help="measure on the test sets, once, after all choices")
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--runs", type=Path, default=Path("runs/proving-ground"), help="where unfinished runs are kept")
    parser.add_argument("--no-page", action="store_true", help="train only, and leave the page as it is")
    parser.add_argument("--set", action="append", default=[], help="a setting for all runs, as key=value; for trials")
    arguments = parser.parse_args()
    try:
        known = {key(run) for run in load_runs(arguments.results) if "failed" not in run}
        waiting = _jobs(arguments, arms, known)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    arguments.runs.mkdir(parents=True, exist_ok=True)
    command = [str(worker.absolute()), arguments.data, str(arguments.runs.absolute()), *arguments.set]
    words = ["DIR" if word == arguments.data else word for word in sys.argv[1:]]
    said = "python " + shlex.join([f"{worker.parent.name}/{Path(sys.argv[0]).name}", *words])
    failed = 0
    if waiting:
        with _place(arguments) as place:
            print(f"{len(waiting)} runs to train, {place.jobs} at a time", flush=True)
            failed = train(waiting, command, place, arguments.results, arguments.runs / "workers.log", said)
    if not arguments.no_page:
        from proving_page import write_page

        print(f"page to open: {write_page(arguments.results, arguments.results.with_suffix('.html'))}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    run_command(
        {name: arm.own_ops for name, arm in ARMS.items()},
        Path(__file__).parent / "proving_worker.py",
        RESULTS / "proving-ground.json",
        ",".join(DEFAULT_ARMS),
    )
