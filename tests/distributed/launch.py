"""Starting real ranks with torchrun, on the loopback device, and looking at what they do."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 240
COMMON = ("epochs=3", "validation=1000", "batch_size=40", "learning_rate=0.02", "momentum=0.5", "measure_size=30")
SETTINGS = (*COMMON, "clone_size=120", "num_particles=6")


def torchrun(*arguments, ranks=2, restarts=0, nodes=(), **environment):
    """Start ``torchrun``; ``nodes`` are the rendezvous options of one of several nodes."""
    launcher = nodes or ["--standalone"]
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", *map(str, arguments)]
    # One thread each: OpenMP threads of several processes on few cores spend their time waiting for each other.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def two_nodes():
    """Return torchrun's options for a rendezvous of two nodes on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id=test-{port}"]


def train(path, *settings, filter="paper", **options):
    common = SETTINGS if filter == "paper" else COMMON
    assignments = [part for setting in (*common, *settings) for part in ("--set", setting)]
    arguments = ["-m", "particleaugment", "train", "--set", f"filter={filter}", *assignments]
    arguments += ["--out", path, "--checkpoint-seconds", 0]
    return torchrun(*arguments, **options)


@contextlib.contextmanager
def ending(*processes):
    """End what is still running, workers included, when the block ends."""
    try:
        yield
    finally:
        for process in processes:
            for pid in (*workers(process).values(), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()


def end(process):
    """Wait for the end and return the exit code, standard output and standard error."""
    output, errors = process.communicate(timeout=LIMIT)
    return process.returncode, output, errors


def workers(process):
    """Return the process ids of a launcher's workers by their rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == process.pid:
                variables = (folder / "environ").read_bytes().split(b"\0")
                ranks = [int(variable[5:]) for variable in variables if variable.startswith(b"RANK=")]
                found[ranks[0]] = int(folder.name)
    return found


def wait_until(condition, *processes):
    """Look often until something is true; it must be before one of the processes ends."""
    limit = time.monotonic() + LIMIT
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.03)


def records(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def result(path):
    """Return everything that must be a function of the configuration and the number of ranks."""
    timeless = [{key: value for key, value in record.items() if key != "seconds"} for record in records(path)]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), timeless
