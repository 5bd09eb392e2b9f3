"""Real processes, really killed: a run that was interrupted ends with the same bytes as one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from particleaugment.training.run import RunError, RunFolder

SETTINGS = ["epochs=4", "batch_size=256", "clone_size=128", "measure_size=20", "num_particles=4", "every=2"]
LIMIT = 120


def start(*arguments):
    # One thread each: OpenMP threads of several processes on few cores spend their time waiting for each other.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "particleaugment", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(path, *arguments):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return start("train", *settings, "--out", path, "--checkpoint-seconds", 0, *arguments)


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


def lines(path):
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def result(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), records


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert end(train(path, "--quiet")) == "", "--quiet prints nothing"
    assert len(result(path)[2]) == 4 + 1
    return result(path)


def test_killed_at_random_moments(undisturbed, tmp_path):
    path = tmp_path / "run"
    moments = random.Random(20240607)
    process = train(path, "--quiet")
    assert wait_until(path.exists, process)
    assert (path / "config.json").exists(), "the folder appears with its configuration"
    kill(process)

    # Whatever it is doing: loading, training, filtering, writing.
    for seconds in (moments.uniform(2.0, 4.0), moments.uniform(3.0, 6.0)):
        process = resume(path, "--quiet")
        time.sleep(seconds)
        if process.poll() is None:
            kill(process)

    # Just after it has written a line that the checkpoint does not know of.
    process = resume(path, "--quiet")
    known = lines(path)
    if wait_until(lambda: lines(path) > known, process):
        time.sleep(moments.uniform(0.0, 0.05))
        kill(process)

    assert "resuming" in end(resume(path)) or (path / "model.safetensors").exists()
    assert result(path) == undisturbed


def test_killed_while_a_checkpoint_is_written(undisturbed, tmp_path):
    path = tmp_path / "run"
    process, hits = train(path, "--quiet"), 0
    for _ in range(3):
        if not wait_until(lambda: any(path.glob(".checkpoint-*.tmp")), process):
            break
        kill(process)
        hits += 1
        process = resume(path, "--quiet")
    assert hits
    end(process)
    assert result(path) == undisturbed


def test_stopped_politely_and_locked_meanwhile(undisturbed, tmp_path):
    path = tmp_path / "run"
    process = train(path)
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
    assert result(path) == undisturbed
    assert "is finished: there is nothing to resume." in end(resume(path))
