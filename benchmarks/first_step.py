"""Times ``particleaugment train`` from the command to its first training step.

    python benchmarks/first_step.py [--rounds 3] RECIPE [train's other words]

The first round may compile the network; those that follow find the compiler's cache warm. The process is timed from the
moment it is started, so Python's start and all imports count. It ends after its first step.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import write

_STARTED, _PROFILE = "PARTICLEAUGMENT_STARTED", "PARTICLEAUGMENT_PROFILE"


def main() -> None:
    """Start the command several times and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write the last round's profile here, for pstats")
    options, words = parser.parse_known_args()
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            command = [sys.executable, __file__, "train", *words, "--out", str(Path(folder) / str(number))]
            begin = time.time()
            told = {_STARTED: str(begin)}
            if options.profile is not None and number == options.rounds - 1:
                told[_PROFILE] = str(options.profile.absolute())
            done = subprocess.run(command, env=os.environ | told, capture_output=True, text=True)
            seconds = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("first-step ")]
            if not seconds:
                sys.exit(f"the run ended without a step:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            print(f"round {number + 1}: {seconds[0]:.1f} s", flush=True)
            rounds.append(round(seconds[0], 2))
    write("first_step", {"train": words, "seconds": rounds}, seed=0)


def timed() -> None:
    """Run the command line in this process, and leave it after the first step."""
    profile = cProfile.Profile() if _PROFILE in os.environ else None
    if profile is not None:
        profile.enable()
    from particleaugment.cli.main import app
    from particleaugment.training.display import Display

    def phase(self: Display, name: str, done: int, total: int) -> None:
        if name != "train":
            return
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
            torch.cuda.synchronize()
        print(f"first-step {time.time() - float(os.environ[_STARTED])}", flush=True)
        if profile is not None:
            profile.disable()
            profile.dump_stats(os.environ[_PROFILE])
        os._exit(0)

    Display.phase = phase  # type: ignore[method-assign]
    app()


if __name__ == "__main__":
    timed() if _STARTED in os.environ else main()
