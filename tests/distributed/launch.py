"""Starting real ranks on the loopback device, with torchrun or as it would, and looking at what they do."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from forked import ONE_THREAD, Forked
from torch.distributed import TCPStore

LIMIT = 240
COMMON = ("epochs=3", "validation=1000", "batch_size=40", "learning_rate=0.02", "momentum=0.5", "measure_size=30")
SETTINGS = (*COMMON, "clone_size=120", "num_particles=6")


def torchrun(*arguments, ranks=2, restarts=0, nodes=(), **environment):
    """Start ``torchrun``; ``nodes`` are the rendezvous options of one of several nodes."""
    launcher = nodes or ["--standalone"]
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", *map(str, arguments)]
    environment = os.environ | ONE_THREAD | environment
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ranks_together(*arguments, ranks=2, imports=()):
    """Run a program on several ranks; return the first exit code that is not 0, if any, and all output and errors.

    It finds the environment and the store that torchrun gives it. What torchrun itself does has other tests.

    Args:
        arguments: A script, or ``-m`` and a module, and what it is given.
        ranks: Their number.
        imports: Modules that the program takes long to import.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    common |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": ranks, "TORCHELASTIC_RUN_ID": store.port}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    processes = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank}
        processes.append(Forked(*arguments, imports=imports, environment=common | own))
    try:
        ends = [end(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes, outputs, errors = zip(*ends)
    return next((code for code in codes if code), 0), "".join(outputs), "".join(errors)


def two_nodes():
    """Return torchrun's options for a rendezvous of two nodes on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id=test-{port}"]


def training(path, *settings, filter="paper"):
    """Return the words of a command after ``particleaugment``."""
    common = SETTINGS if filter == "paper" else COMMON
    assignments = [part for setting in (*common, *settings) for part in ("--set", setting)]
    return ["train", "--set", f"filter={filter}", *assignments, "--out", path, "--checkpoint-seconds", 0]


def train(path, *settings, filter="paper", **options):
    return torchrun("-m", "particleaugment", *training(path, *settings, filter=filter), **options)


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
