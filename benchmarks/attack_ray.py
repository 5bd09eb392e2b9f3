"""A comparison on a real Ray cluster whose parts are killed at random moments; its figures must be the local ones.

    python benchmarks/attack_ray.py --kills 12 --seconds 600

Needs Ray: ``pip install 'particleaugment[ray]'``. The cluster is two nodes of one core each on this machine. While a
comparison of two arms trains on it, one part after the other is drawn and killed with SIGKILL:

- ``worker``: a Ray worker that hosts a run;
- ``run``: the process that trains;
- ``raylet``: a node's raylet, after which the node is removed and another one joins;
- ``board``: the actor that runs report to;
- ``command``: ``particleaugment compare`` itself.

A command that ends before all runs have finished is started again. When they have, weights, policies, metrics and the
figures of ``compare.json`` are compared with those of a comparison on this machine alone, and ``verify`` must find
every run sound. A finding is anything that differs, hangs or ends in a traceback. The last comparison is left alone
once the kills are done.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack_sandbox import result
from common import RESULTS, write

from particleaugment.compare.comparison import ComparisonFolder
from particleaugment.compare.runner import epochs_done
from particleaugment.runs.verify import verify

PARTS = ("worker", "raylet", "run", "command", "worker", "board", "raylet", "worker")
ARMS = ("none", "difficulty")
SETTINGS = ("epochs=6", "batch_size=64", "train_size=128", "evaluate_every=1", "measure_size=16", "every=1")
LIMIT = 1200.0
"""The longest that a command may take without a kill; a machine that does much else is slow."""
MOST_STARTS = 12
"""How often a comparison may be started; more would mean that it does not get anywhere."""


class Finding(Exception):
    """Something that does not hold."""


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the comparison, or continue it; its output goes to a file beside the folder."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["compare", "digits", "--out", str(folder), "--arms", ",".join(ARMS), "--seeds", "0", *settings, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    with open(folder.with_suffix(".log"), "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "particleaugment", *words], env=environment, stdout=log, stderr=log, text=True
        )


def children(parent: int, title: str = "") -> list[int]:
    """Return the children of a process whose command begins with a title."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            same = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if same and (entry / "cmdline").read_bytes().decode(errors="replace").startswith(title):
                found.append(int(entry.name))
        except (OSError, IndexError):  # it has just ended
            continue
    return sorted(found)


def figures(folder: Path) -> Any:
    """Return the figures of a comparison and the results of its runs."""
    comparison = ComparisonFolder(folder).read()
    assert comparison is not None
    table = [(run.arm, run.seed, run.accuracy, run.train_loss, run.ops_per_image) for run in comparison.runs]
    return table, {path.name: result(path) for path in run_folders(folder)}


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of a comparison's runs."""
    return [folder / "runs" / f"{arm}-0" for arm in ARMS]


class Nodes:
    """Two Ray nodes of one core each, and a head that trains nothing."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quick = {"health_check_failure_threshold": 10, "health_check_period_ms": 1000}
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.fill()

    @property
    def address(self) -> str:
        """What the command connects to."""
        return str(self.cluster.address)

    def fill(self) -> None:
        """Let nodes join until there are two."""
        while len(self.cluster.worker_nodes) < 2:
            self.cluster.add_node(num_cpus=1, num_gpus=0)

    def raylet(self, node: Any) -> int:
        """Return the process of a node's raylet."""
        return int(node.all_processes["raylet"][0].process.pid)

    def victims(self, part: str) -> list[int]:
        """Return the processes of one kind that there are now."""
        if part == "board":
            return children(self.raylet(self.cluster.head_node), "ray::Board")
        raylets = [self.raylet(node) for node in self.cluster.worker_nodes]
        hosts = [pid for raylet in raylets for pid in children(raylet, "ray::host")]
        if part == "worker":
            return hosts
        if part == "run":
            return [pid for host in hosts for pid in children(host)]
        return [raylet for raylet in raylets if children(raylet, "ray::host")]  # those that have something to lose

    def replace(self, raylet: int) -> None:
        """Remove the node of a raylet that was killed, and let another one join."""
        for node in list(self.cluster.worker_nodes):
            if self.raylet(node) == raylet:
                self.cluster.remove_node(node, allow_graceful=False)
        self.fill()


def wait_for_moment(nodes: Nodes, part: str, folder: Path, command: subprocess.Popen[str], draw: random.Random) -> int:
    """Wait until a run has reached an epoch that is drawn, and a moment longer; returns whom to kill, or 0."""
    wanted = draw.randint(0, 3)
    limit = time.monotonic() + LIMIT
    while command.poll() is None:
        if time.monotonic() > limit:
            raise Finding(f"a comparison hangs: {tail(folder)}")
        reached = max(epochs_done(path / "metrics.jsonl") for path in run_folders(folder))
        found = [command.pid] if part == "command" else nodes.victims(part)
        if reached >= wanted and found:
            time.sleep(draw.uniform(0.0, 1.5))
            still = [command.pid] if part == "command" else nodes.victims(part)
            return draw.choice(still) if still and command.poll() is None else 0
        time.sleep(0.1)
    return 0


def tail(folder: Path) -> str:
    """Return the end of what the commands have said."""
    return folder.with_suffix(".log").read_text()[-3000:]


def attacked(
    nodes: Nodes, folder: Path, parts: Callable[[], str | None], draw: random.Random, say: Callable[[str], None]
) -> Counter[str]:
    """Train one comparison to its end under kills; returns how many of each kind there were."""
    kills: Counter[str] = Counter()
    for _ in range(MOST_STARTS):
        command = start(folder, "--on", nodes.address)
        try:
            while command.poll() is None and (part := parts()) is not None:
                if victim := wait_for_moment(nodes, part, folder, command, draw):
                    os.kill(victim, signal.SIGKILL)
                    kills[part] += 1
                    say(f"{folder.name}: killed {part}")
                    if part == "raylet":
                        nodes.replace(victim)
                    if part in ("command", "board"):
                        break  # the command has nothing more to do
            command.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Finding(f"a comparison hangs: {tail(folder)}") from None
        finally:
            if command.poll() is None:
                command.kill()
                command.wait()
        if "Traceback (most recent call last)" in tail(folder):
            raise Finding(f"a traceback: {tail(folder)}")
        if command.returncode == 0:
            return kills
    raise Finding(f"a comparison was started {MOST_STARTS} times and has not ended: {tail(folder)}")


def check(folder: Path, expected: Any) -> list[str]:
    """Return what is wrong with a comparison that has ended."""
    wrong = [] if figures(folder) == expected else ["its figures, weights, policies or metrics differ"]
    for path in run_folders(folder):
        verdict = verify(path)
        wrong += [] if verdict.state == "finished" else [f"{path.name} is {verdict.state}"]
        wrong += [f"{path.name}: {finding.text}" for finding in verdict.findings if not finding.sound]
        wrong += [f"{left} was left behind" for left in path.rglob("*.tmp")]
    return wrong + [f"{left} was left behind" for left in folder.glob(".nodes*")]


def attack(root: Path, most: int, seconds: float, seed: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Kill so many parts, or for so long, and compare every comparison that ends."""
    draw = random.Random(seed)
    local = root / "local"
    command = start(local, "--jobs", "1")
    try:
        if command.wait(LIMIT):
            raise SystemExit(f"the comparison fails on this machine: {tail(local)}")
    finally:
        command.kill()  # unless it has ended
    expected = figures(local)
    begun, nodes, kills, findings, compared = time.monotonic(), Nodes(), Counter[str](), list[str](), 0
    drawn = 0

    def parts() -> str | None:
        nonlocal drawn
        if drawn >= most or time.monotonic() - begun > seconds:
            return None
        drawn += 1
        return PARTS[(drawn - 1) % len(PARTS)]

    try:
        while drawn < most and time.monotonic() - begun < seconds:
            folder = root / f"ray-{compared}"
            try:
                kills += attacked(nodes, folder, parts, draw, say)
                wrong = check(folder, expected)
            except Finding as finding:
                wrong = [str(finding)]
            compared += 1
            findings += [f"{folder.name}: {text}" for text in wrong]
            say(f"{folder.name}: {'; '.join(wrong) or 'as on this machine'}")
    finally:
        nodes.cluster.shutdown()
    return {
        "settings": list(SETTINGS),
        "arms": list(ARMS),
        "kills": dict(kills),
        "comparisons": compared,
        "runs_compared": compared * len(ARMS),
        "seconds": round(time.monotonic() - begun, 1),
        "findings": findings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=600, help="no kills after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        results = attack(Path(root), options.kills, options.seconds, options.seed, lambda text: print(text, flush=True))
    write("attack_ray", results, options.seed, options.out)
    sys.exit(1 if results["findings"] or not results["kills"] else 0)


if __name__ == "__main__":
    main()
