"""Comparisons on a real Ray cluster of two nodes: killed, stopped, continued, and the same as on one machine."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from nodes import cluster, two_nodes
from rich.console import Console
from runs import result

from particleaugment.compare.arms import Base, parse_arms, parse_seeds
from particleaugment.compare.comparison import ComparisonFolder
from particleaugment.compare.execute import MOST_LOSSES, execute
from particleaugment.compare.ray_cluster import Hosted, RayCluster, Share, check_address
from particleaugment.compare.ray_host import Board, News, Orders, Request, folder_files, put_files
from particleaugment.compare.ray_place import RayPlace
from particleaugment.compare.runner import LocalPlace
from particleaugment.recipes import get_recipe
from particleaugment.training.checkpoint import find_checkpoints
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError
from particleaugment.util.stop import Stop

__all__ = ["cluster", "two_nodes"]

LIMIT = 240
SETTINGS = ["epochs=12", "batch_size=256", "train_size=512", "evaluate_every=1", "measure_size=32", "every=1"]


def command(path, *arguments):
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["compare", "digits", "--out", path, "--arms", "none,difficulty", "--seeds", "0", *words, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "particleaugment", *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process):
    output, _ = process.communicate(timeout=LIMIT)
    return process.returncode, output


def wait_until(condition, process=None):
    limit = time.monotonic() + LIMIT
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.02)


def epochs(path):
    metrics = path / "metrics.jsonl"
    return metrics.read_bytes().count(b'"kind": "epoch"') if metrics.exists() else 0


def results(folder):
    return {run.name: result(run) for run in sorted((folder.path / "runs").iterdir()) if run.is_dir()}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The same comparison by processes of this machine."""
    folder = ComparisonFolder(tmp_path_factory.mktemp("local") / "c")
    code, output = end(command(folder.path, "--jobs", "2"))
    assert code == 0, output
    return folder


def figures(folder):
    return [(run.arm, run.seed, run.accuracy, run.train_loss, run.ops_per_image) for run in folder.read().runs]


@pytest.mark.slow
def test_a_node_that_dies_costs_no_more_than_the_time_since_the_last_checkpoint(two_nodes, local, tmp_path):
    folder = ComparisonFolder(tmp_path / "c")
    paths = [folder.path / "runs" / name for name in ("none-0", "difficulty-0")]
    process = command(folder.path, "--on", two_nodes.address)
    wait_until(lambda: all(epochs(path) >= 2 and find_checkpoints(path) for path in paths), process)
    two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
    code, output = end(process)
    assert code == 0, output
    assert "runs to do, 2 at a time on Ray (3 nodes, 2 cores; 1 core per run)" in output
    assert output.count("; it continues from its last checkpoint") == 1, output
    assert figures(folder) == figures(local)
    assert results(folder) == results(local)
    resumed = [json.loads(path.joinpath("metrics.jsonl").read_text().splitlines()[-1]) for path in paths]
    assert sorted(record["seconds"]["resumes"] for record in resumed) == [0, 1], "the other run was left alone"


@pytest.mark.slow
def test_stopped_and_continued(two_nodes, local, tmp_path):
    folder = ComparisonFolder(tmp_path / "c")
    paths = [folder.path / "runs" / name for name in ("none-0", "difficulty-0")]
    process = command(folder.path, "--on", two_nodes.address)
    wait_until(lambda: all(epochs(path) >= 1 for path in paths), process)
    process.send_signal(signal.SIGINT)
    code, output = end(process)
    assert code == 130, output
    assert "stopped and saved; rerun the command to resume" in output
    assert all(find_checkpoints(path) for path in paths)

    # And killed, which leaves no run on the nodes either.
    process = command(folder.path, "--on", two_nodes.address)
    line = ""
    while "started from epoch" not in line:
        line = process.stdout.readline()
        assert line, "it ended before it started a run"
    process.kill()
    process.communicate()

    code, output = end(command(folder.path, "--on", two_nodes.address))
    assert code == 0, output
    assert results(folder) == results(local)
    assert all(run.at_once == 2 for run in folder.read().runs), "both nodes are this machine"
    assert folder.log_path(folder.read().runs[0]).read_text().count("epoch 12/12") == 1
    assert "Ray: 3 nodes, 2 cores" in folder.page.read_text()
    assert not list(folder.path.glob(".nodes*"))


@pytest.mark.slow
def test_parts_killed_at_random_moments(tmp_path):
    """A few of the kills of ``benchmarks/attack_ray.py``."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'particleaugment[ray]'")
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from attack_ray import attack

    found = attack(tmp_path, most=4, seconds=300, seed=1)
    assert sum(found["kills"].values()) >= 1
    assert found["comparisons"] >= 1
    assert found["findings"] == []


@pytest.mark.slow
def test_on_this_machine_alone(local, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'particleaugment[ray]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folder = ComparisonFolder(tmp_path / "c")
    code, output = end(command(folder.path, "--on", "local"))
    assert code == 0, output
    assert "at a time on Ray (1 node, " in output
    assert results(folder) == results(local)


def test_the_slurm_example_is_a_shell_script():
    script = Path(__file__).parents[2] / "examples" / "slurm_ray.sh"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


class StopWhen(Stop):
    """Asks for a stop once a condition holds."""

    condition = staticmethod(lambda: False)

    @property
    def asked(self):
        return signal.SIGINT if self.signal_number or self.condition() else 0


def executed(folder, place, stop=None, jobs=None):
    """Execute the comparison in this process; returns what was said."""
    base = Base.of(get_recipe("digits"), SETTINGS)
    plan = folder.plan(base, parse_arms("none"), (0,))
    folder.path.mkdir(exist_ok=True)
    console = Console(file=io.StringIO(), width=200)
    folder.write(execute(folder, plan, [run for run in plan.runs if not run.finished], place, stop or Stop(), console))
    return console.file.getvalue()


@pytest.mark.slow
def test_nodes_that_do_not_see_the_folder(two_nodes, local, tmp_path, monkeypatch):
    """They work in copies: a stopped run comes back whole, a lost one starts again and says so."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = ComparisonFolder(tmp_path / "c")
    with RayPlace(two_nodes.address) as place:
        place.share("cpu")
        place._mark = (str(tmp_path / "elsewhere"), "a file that no node has")
        children = []
        start = place.start
        place.start = lambda *arguments: children.append(start(*arguments)) or children[-1]

        stop = StopWhen()
        stop.condition = lambda: bool(children) and children[0].epochs_done >= 2
        said = executed(folder, place, stop)
        assert "stopped and saved, epoch " in said
        (run,) = folder.read().runs
        path = folder.run_path(run)
        assert 2 <= run.epochs_done < 12
        assert find_checkpoints(path)
        assert folder_files(path)["metrics.jsonl"].count(b'"kind": "epoch"') == run.epochs_done

        two_nodes.ray_killed = False

        class KillOnce(StopWhen):
            """Never stops, but takes both nodes away once the run is under way, and brings one back."""

            @property
            def asked(self):
                if not two_nodes.ray_killed and children[-1].epochs_done > run.epochs_done:
                    two_nodes.ray_killed = True
                    for node in list(two_nodes.worker_nodes):
                        two_nodes.remove_node(node, allow_graceful=False)
                    two_nodes.add_node(num_cpus=1, num_gpus=0)
                return 0

        said = executed(folder, place, KillOnce())
        assert "it continues from its last checkpoint in this folder, which the node " in said, said
        assert result(path) == result(local.path / "runs" / "none-0")


@pytest.mark.slow
def test_processes_and_their_ends(two_nodes, tmp_path):
    with RayCluster(two_nodes.address) as cluster:
        greeter = (
            "import sys\nfor line in sys.stdin: print('hello', line, end='', flush=True)\nprint('bye', file=sys.stderr)"
        )
        share = cluster.usual_share(on_gpu=False)
        assert share == Share(1, 0.0)
        request = Request(("-c", greeter), folder=str(tmp_path / "f"), copies=False, speaks=True)
        process = cluster.start(request, share, tmp_path / "log")
        process.send("you\n")
        said = []

        def looked(condition):
            def look():
                cluster.look()
                said.extend(process.lines())
                return condition()

            return look

        wait_until(looked(lambda: said))
        process.stop()
        wait_until(looked(lambda: process.code is not None))
        assert (said, process.code, process.lost) == (["hello you\n"], 0, "")
        assert (tmp_path / "log").read_text() == "bye\n"

        killer = Request(("-c", "import os; os.kill(os.getppid(), 9)"), folder=str(tmp_path), copies=False)
        process = cluster.start(killer, share, tmp_path / "log")
        wait_until(looked(lambda: process.code is not None))
        assert process.lost == "its worker died"

        old = Request(("-c", ""), folder=str(tmp_path), version="0.0")
        process = cluster.start(old, share, tmp_path / "old")
        wait_until(looked(lambda: process.code is not None))
        assert process.code == 2
        assert "has particleaugment " in (tmp_path / "old").read_text()
        assert "install the same version on all nodes" in (tmp_path / "old").read_text()

        for wanted in ({"cores": 64}, {"gpus": 2.0}):
            with pytest.raises(ConfigError, match=r"^no node of the Ray cluster has .* for a run; it has 3 nodes"):
                cluster.usual_share(on_gpu="gpus" in wanted, **wanted)
        with pytest.raises(ConfigError, match=r"^'x' is not a seed or a range of seeds; write them as 0-11 or 0,3,7$"):
            cluster.call(parse_seeds, share, "x")


def test_a_run_that_costs_its_machine_too_often_is_given_up(tmp_path):
    """The worst that a place can do, played by processes that die and tell so."""
    folder = ComparisonFolder(tmp_path / "c")

    class Deadly(LocalPlace):
        def start(self, record, run, log):
            log.parent.mkdir(exist_ok=True)
            process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(143)"], stdin=subprocess.PIPE)
            child = Doomed(record, run, log, process)
            return child

    from particleaugment.compare.runner import LocalChild

    class Doomed(LocalChild):
        lost = "its node died"

    said = executed(folder, Deadly())
    assert said.count("[1/1] none, seed 0: its node died; it starts again\n") == MOST_LOSSES
    assert "[1/1] none, seed 0: failed\n" in said
    (run,) = folder.read().runs
    assert (run.finished, run.problem) == (False, "its node died")


def test_the_board_keeps_what_was_not_collected():
    board = Board()
    board.order("a", stop=False, lines=("one\n",))
    assert board.report("a", News("n1", True, 1, b"first ", ("x\n",))) == Orders(lines=("one\n",))
    assert board.report("a", News("n1", True, 2, b"second", ("y\n",))) == Orders()
    board.report("b", News("n1", True))
    board.report("c", News("n2", False))
    board.end("b")
    board.order("a", stop=True)
    news = board.collect()
    assert news["a"] == News("n1", True, 2, b"first second", ("x\n", "y\n"), at_once=2)
    assert (news["b"].at_once, news["c"].at_once) == (2, 1)
    assert board.collect() == {}
    assert board.report("a", News("n1", True)).stop
    assert board.report("a", News("n1", True)).stop, "a stop stays one"


def test_a_folder_travels_whole(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    files = {"config.json": b"{}", "events/1": b"\0\1", "model.safetensors": b"w"}
    put_files(first, files)
    (first / ".lock").touch()
    assert folder_files(first) == files
    put_files(second, {"config.json": b"old", "checkpoint-1.pt": b"x"})
    put_files(second, folder_files(first))
    assert folder_files(second) == files
    with pytest.raises(RunError, match="outside the run folder"):
        put_files(second, {"../escaped": b""})
    assert not Path(tmp_path, "escaped").exists()


def test_what_nodes_send_is_not_written_through_links(tmp_path):
    elsewhere, run, linked = tmp_path / "elsewhere", tmp_path / "run", tmp_path / "linked"
    elsewhere.mkdir()
    run.mkdir()
    (run / "events").symlink_to(elsewhere)
    linked.symlink_to(elsewhere)
    with pytest.raises(RunError, match="remove the link, if it is one"):
        put_files(run, {"events/1": b"x"})
    with pytest.raises(OSError, match="it is a link"):
        put_files(linked, {"config.json": b"{}"})

    class Waiting:
        """Stands where a cluster would that has no room yet."""

        def submit(self, key, request, share):
            return None

    process = Hosted(Waiting(), "a", linked / "none-0.log", Request(("-c", "")), Share())
    with pytest.raises(OSError, match="it is a link"):
        process.hear(News("n1", True, log=b"first line"))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("share", "cores", "gpus", "expected"),
    [
        (Share(1), 8, 0, 8),
        (Share(3), 8, 4, 2),
        (Share(2, 1), 16, 4, 4),
        (Share(4, 0.5), 16, 4, 4),
        (Share(1, 0.1), 64, 1, 10),
    ],
)
def test_room_for_runs(share, cores, gpus, expected):
    assert share.times(cores, gpus) == expected


@pytest.mark.parametrize("found", [None, ModuleType("ray")], ids=["nothing", "a folder of that name"])
def test_without_ray_one_sentence_says_so(monkeypatch, found):
    monkeypatch.setitem(sys.modules, "ray", found)
    with pytest.raises(ConfigError) as caught:
        RayPlace("ray")
    assert str(caught.value).startswith("--on needs Ray, which is not installed: pip install 'particleaugment[ray]'")


def test_shares_are_for_ray(tmp_path):
    code, output = end(command(tmp_path / "c", "--cores", "2"))
    assert code == 2
    assert output == "particleaugment: --cores is for runs on Ray; add --on ray, or use --jobs to share this machine\n"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_there_is_no_cluster(address):
    with pytest.raises(ConfigError) as caught:
        check_address(address)
    message = str(caught.value)
    assert message.startswith(f"there is no Ray cluster at {address!r} (Connection refused); start one with 'ray start")
    for unclear in ("ray", "auto"):
        check_address(unclear)  # Ray finds out itself
