"""Whole runs on several ranks: really killed, stopped and corrupted, on one node and on two."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from launch import end, ending, ranks_together, records, result, train, training, two_nodes, wait_until, workers

from particleaugment.training.checkpoint import find_checkpoints

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    process = train(path)
    with ending(process):
        code, output, errors = end(process)
    assert code == 0, errors
    assert "particleaugment" not in errors
    return path, output


def wait_into_the_next_epoch(path, *processes):
    """Wait for a checkpoint that is not there yet, and then for a moment of the epoch after it."""
    known = find_checkpoints(path)[-1:]
    wait_until(lambda: find_checkpoints(path)[-1:] != known, *processes)
    time.sleep(random.uniform(0.0, 0.4))


def wait_for_new_workers(process, old):
    def are_there():
        new = workers(process)
        return len(new) == len(old) and not {*old.values()} & {*new.values()}

    wait_until(are_there, process)


def test_one_rank_speaks_and_writes(undisturbed):
    path, output = undisturbed
    said = output.splitlines()
    assert said[0] == "Color changes nothing on grey images and is left out"
    assert said[1].startswith("digits: wrn-10-1 on digits, 3 epochs, filter paper; ")
    assert "step by step, DistributedDataParallel on 2 ranks" in said[1]
    assert [line.split()[1] for line in said if line.startswith("epoch ")] == ["1/3", "2/3", "3/3"]
    found = records(path)
    assert [record["kind"] for record in found] == ["epoch", "filter", "epoch", "filter", "epoch"]
    assert {record["seconds"]["ranks"] for record in found} == {2}
    assert any(record["kind"] == "filter" and record["skip_reason"] is None for record in found)


@pytest.mark.slow
def test_stopped_and_killed_workers_come_back_and_end_alike(undisturbed, tmp_path):
    path = tmp_path / "run"
    process = train(path, restarts=3)
    with ending(process):
        wait_into_the_next_epoch(path, process)
        running = workers(process)
        os.kill(running[1], signal.SIGTERM)
        wait_for_new_workers(process, running)
        wait_into_the_next_epoch(path, process)
        os.kill(workers(process)[0], signal.SIGKILL)
        code, output, errors = end(process)
    assert code == 0, errors
    assert "failed (exitcode: 143)" in errors, "a worker that saved before it stopped"
    assert "failed (exitcode: -9)" in errors
    assert f"stopped and saved; continue with: particleaugment resume {path}" in output
    assert output.count(f"resuming {path} in epoch ") == 2
    assert result(path) == result(undisturbed[0])


@pytest.mark.slow
def test_the_difficulty_filter_stopped_and_killed_on_two_ranks_ends_alike(tmp_path):
    whole, path = tmp_path / "whole", tmp_path / "run"
    settings = ("epochs=6", "every=1", "start=1.5", "speed=4")
    process = train(whole, *settings, filter="difficulty")
    with ending(process):
        code, _, errors = end(process)
    assert code == 0, errors
    strengths = {record["strength"] for record in records(whole) if record["kind"] == "filter"}
    assert len(strengths) > 2, "it is steered"
    process = train(path, *settings, filter="difficulty", restarts=4)
    with ending(process):
        for rank, number in ((1, signal.SIGTERM), (0, signal.SIGKILL), (1, signal.SIGKILL)):
            running = workers(process)
            wait_into_the_next_epoch(path, process)
            os.kill(workers(process)[rank], number)
            wait_for_new_workers(process, running)
        code, _, errors = end(process)
    assert code == 0, errors
    assert result(path) == result(whole)


@pytest.mark.slow
def test_two_nodes_and_a_worker_killed_on_one_of_them(undisturbed, tmp_path):
    path, nodes = tmp_path / "run", two_nodes()
    processes = [train(path, ranks=1, restarts=3, nodes=nodes) for _ in range(2)]
    with ending(*processes):
        wait_into_the_next_epoch(path, *processes)
        running = [workers(process) for process in processes]
        assert sorted(rank for found in running for rank in found) == [0, 1]
        os.kill(*running[1].values(), signal.SIGKILL)
        ends = [end(process) for process in processes]
    assert [code for code, *_ in ends] == [0, 0], ends
    assert sum(output.count(f"resuming {path} in epoch ") for _, output, _ in ends) == 1
    assert result(path) == result(undisturbed[0])


def test_a_rank_that_computes_wrongly_stops_the_run(tmp_path):
    path = tmp_path / "run"
    code, _, errors = ranks_together(HERE / "corrupted.py", *training(path))
    assert code == 1
    message = "the filter's state or measurements on rank 1 differ from those on rank 0 after filter step 1"
    assert errors.count(message) == errors.count("particleaugment: ") == 1
    assert [record["kind"] for record in records(path)] == ["epoch"]
    assert not (path / "policy.json").exists()


def test_ranks_with_other_data_do_not_start(tmp_path):
    code, _, errors = ranks_together(HERE / "unlike.py", "data", *training(tmp_path / "run"))
    assert code == 2
    message = "the data of rank 1 differ from rank 0's in classes, labels, files or images"
    assert errors.count(message) == errors.count("particleaugment: ") == 1
    assert not (tmp_path / "run").exists()


def test_the_seed_is_that_of_rank_0(undisturbed, tmp_path):
    code, _, errors = ranks_together(HERE / "unlike.py", "seed", *training(tmp_path / "run"))
    assert code == 0, errors
    assert result(tmp_path / "run") == result(undisturbed[0])


def test_an_error_before_long_work_appears_once(tmp_path):
    code, _, errors = ranks_together("-m", "particleaugment", *training(tmp_path / "run", "clone_size=99999"))
    assert code == 2
    assert errors.count("particleaugment: the search does not fit the data: ") == 1
    assert errors.count("particleaugment: ") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_runs_of_other_numbers_of_ranks_killed_again_and_again(ranks, tmp_path):
    whole, path = tmp_path / "whole", tmp_path / "run"
    process = train(whole, ranks=ranks)
    with ending(process):
        code, _, errors = end(process)
    assert code == 0, errors
    process, kills = train(path, ranks=ranks, restarts=100), 0
    with ending(process):
        while not (path / "model.safetensors").exists() and kills < 8:
            wait_until(lambda: len(workers(process)) == ranks, process)
            running = workers(process)
            time.sleep(random.uniform(2.0, 20.0))
            if workers(process) == running and process.poll() is None:
                os.kill(random.choice(list(running.values())), signal.SIGKILL)
                kills += 1
                wait_for_new_workers(process, running)
        code, _, errors = end(process)
    print(f"{ranks} ranks, {kills} kills")
    assert code == 0, errors
    assert result(path) == result(whole)


@pytest.mark.slow
def test_a_run_may_go_on_with_another_number_of_ranks(undisturbed, tmp_path):
    path = tmp_path / "run"
    process = train(path)
    with ending(process):
        wait_into_the_next_epoch(path, process)
        process.send_signal(signal.SIGTERM)
        code, output, _ = end(process)
    assert "stopped and saved" in output
    process = train(path, ranks=3)
    with ending(process):
        code, output, errors = end(process)
    assert code == 0, errors
    assert "ranks: 2 before, 3 now; the results will differ in the last digits" in output
    assert [record["seconds"]["ranks"] for record in records(path)][-1] == 3
