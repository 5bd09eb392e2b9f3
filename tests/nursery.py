"""What forked.py starts once: it imports what training needs, and forks a process for every command that it is given.

Reads lines of JSON, each a command to start, answered with a process id, or a process id, answered with its exit code.
"""

import contextlib
import importlib
import json
import os
import runpy
import sys

import torch._dynamo  # noqa: F401  every optimizer imports it

import particleaugment.cli.main
import particleaugment.runs.train  # noqa: F401

for drawing in ("matplotlib.figure", "matplotlib.pyplot", "matplotlib.backends.backend_svg"):
    importlib.import_module(drawing)
for optional in ("numba", "torch.utils.tensorboard"):
    with contextlib.suppress(ImportError):
        importlib.import_module(optional)


def become(command):
    """Run a command in this process: a script, or ``-m`` and a module, or ``-c`` and a program."""
    os.environ.update(command["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(command[name], os.O_WRONLY | os.O_CREAT), number)
    program, *arguments = command["arguments"]
    if program == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(arguments[0], {"__name__": "__main__"})
    else:
        sys.argv = [program, *arguments]
        sys.path[0] = os.path.dirname(program)
        runpy.run_path(program, run_name="__main__")


def main():
    codes = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            if asked not in codes:
                ended, status = os.waitpid(asked, os.WNOHANG)
                if ended:
                    codes[asked] = os.waitstatus_to_exitcode(status)
            answer = codes.get(asked)
        else:
            for name in asked["imports"]:
                importlib.import_module(name)
            answer = os.fork()
            if answer == 0:
                return become(asked)
        print(answer if answer is not None else "null", flush=True)


if __name__ == "__main__":
    main()
