"""Real processes, really killed: a run that was interrupted ends with the same bytes as one that never was."""

import json
import random
import signal
import time

import pytest
from forked import Forked

from particleaugment.training.run import RunError, RunFolder

SETTINGS = ["epochs=3", "batch_size=256", "clone_size=128", "measure_size=20", "num_particles=4"]
LIMIT = 120


def start(*arguments, program=("-m", "particleaugment")):
    return Forked(*program, *arguments)


def train(path, filter, *arguments):
    unknown = {"difficulty": ("clone_size", "num_particles")}.get(filter, ())
    known = [each for each in SETTINGS if not each.startswith(unknown)]
    settings = [part for setting in known for part in ("--set", setting)]
    return start("train", "--set", f"filter={filter}", *settings, "--out", path, "--checkpoint-seconds", 0, *arguments)


def resume(path, *arguments):
    return start("resume", path, "--checkpoint-seconds", 0, *arguments)


def end(process, code=0):
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, errors
    assert errors == ""
    return output


def wait_until(condition, process):
    """Look often until something is true; False if the process ends first."""
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    raise TimeoutError


def kill(process):
    process.kill()
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL


# Ends its own process, unasked, when half of a checkpoint is on disk.
DIES_WHILE_WRITING = """
import os, signal
from particleaugment.cli.main import main

sync = os.fsync

def fsync(file):
    if "/.checkpoint-" in os.readlink(f"/proc/self/fd/{file}"):
        os.ftruncate(file, os.fstat(file).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    sync(file)

os.fsync = fsync
main()
"""


def die_while_writing(path):
    process = start("resume", path, "--checkpoint-seconds", 0, "--quiet", program=["-c", DIES_WHILE_WRITING])
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGKILL
    (left,) = path.glob(".checkpoint-00000000.pt.*.tmp")
    assert left.stat().st_size > 100_000


def lines(path):
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def result(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), records


@pytest.fixture(scope="module", params=[pytest.param("difficulty", marks=pytest.mark.slow), "paper"])
def undisturbed(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert end(train(path, request.param, "--quiet")) == "", "--quiet prints nothing"
    assert [record["kind"] for record in result(path)[2]] == ["epoch", "filter", "epoch", "filter", "epoch"]
    return request.param, result(path)


def test_killed_at_any_moment(undisturbed, tmp_path):
    path, moments = tmp_path / "run", random.Random(0)
    filter, expected = undisturbed
    process = train(path, filter, "--quiet")
    assert wait_until(path.exists, process)
    assert (path / "config.json").exists(), "the folder appears with its configuration in it"
    kill(process)

    die_while_writing(path)
    assert not list(path.glob("checkpoint-*")), "half a checkpoint has no name yet"

    # Just after a line of metrics that no checkpoint knows of.
    known, process = lines(path), resume(path, "--quiet")
    assert wait_until(lambda: lines(path) > known, process)
    kill(process)

    # Whatever it is doing.
    seconds = moments.uniform(0.2, 3.0)
    process = resume(path, "--quiet")
    time.sleep(seconds)
    if process.poll() is None:
        kill(process)

    end(resume(path))
    assert not list(path.glob(".*.tmp")), "what was left half-written is removed"
    assert result(path) == expected, f"killed {seconds} s after the last resume"


@pytest.mark.slow
def test_stopped_politely_and_locked_meanwhile(undisturbed, tmp_path):
    path, (filter, expected) = tmp_path / "run", undisturbed
    process = train(path, filter)
    assert wait_until(lambda: lines(path) >= 1, process)
    with pytest.raises(RunError, match=f"is in use by process {process.pid} on "), RunFolder.open(path).locked():
        pass
    process.send_signal(signal.SIGTERM)
    output = end(process, code=128 + signal.SIGTERM)
    assert output.splitlines()[-1] == f"stopped and saved; continue with: particleaugment resume {path}"

    before = lines(path)
    process = resume(path)
    assert wait_until(lambda: lines(path) > before, process)
    process.send_signal(signal.SIGINT)
    output = end(process, code=128 + signal.SIGINT)
    assert f"resuming {path} in epoch " in output
    assert output.splitlines()[-1] == f"stopped and saved; continue with: particleaugment resume {path}"

    end(resume(path))
    assert result(path) == expected
