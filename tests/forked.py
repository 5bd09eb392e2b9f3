"""Commands in real processes that start at once: forks of one that has imported torch and the package.

A process of its own imports for two or three seconds, which is most of what a small run takes.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""OpenMP threads of several processes on few cores spend their time waiting for each other."""


@functools.cache
def _nursery():
    command = [sys.executable, Path(__file__).with_name("nursery.py")]
    return subprocess.Popen(
        command, env=os.environ | ONE_THREAD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _answer(asked):
    nursery = _nursery()
    nursery.stdin.write(json.dumps(asked) + "\n")
    nursery.stdin.flush()
    return json.loads(nursery.stdout.readline())


def end_nursery():
    """End the process that others are forks of, if there is one."""
    if _nursery.cache_info().currsize:
        _nursery().communicate()
        _nursery.cache_clear()


class Forked:
    """A command as ``python`` would run it, with the methods of ``subprocess.Popen``.

    Args:
        arguments: A script, or ``-m`` and a module, or ``-c`` and a program, and what it is given.
        imports: Modules that it takes long to import.
        environment: Variables to set.
    """

    def __init__(self, *arguments, imports=(), environment=()):
        self._folder = tempfile.TemporaryDirectory()
        self._texts = {name: Path(self._folder.name) / name for name in ("output", "errors")}
        command = {"arguments": [str(word) for word in arguments], "imports": list(imports)}
        command |= {"environment": {name: str(value) for name, value in dict(environment).items()}}
        self.pid = _answer(command | {name: str(path) for name, path in self._texts.items()})
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            self.returncode = _answer(self.pid)
        return self.returncode

    def communicate(self, timeout=600):
        limit = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > limit:
                self.kill()
                raise TimeoutError(f"it has not ended within {timeout} s: {self._read('errors')}")
            time.sleep(0.01)
        return self._read("output"), self._read("errors")

    def _read(self, name):
        path = self._texts[name]
        return path.read_text() if path.exists() else ""

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(9)
