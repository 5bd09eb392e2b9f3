"""The paper's ablations on CIFAR-10 with WRN-28-2: particles, strength of the update, velocity and order of the ops.

    python benchmarks/paper_ablations.py --data DIR --out FOLDER [--epochs 60] [--seeds 0-1] [--jobs 4]

Trains them as one comparison, and resumes it where it was stopped. The paper trains 250 epochs with four seeds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

ARMS = (
    "paper",  # r = 50, eta = 1, c = 0, fixed order
    *(f"r{count}:filter=paper,num_particles={count}" for count in (25, 100, 200)),
    *(f"eta{eta}:filter=paper,eta={eta}" for eta in (0.01, 0.1, 4)),
    "velocity:filter=paper,velocity=-0.001",
    "random-order:filter=paper,order=random",
    "paper-unskipped",
)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="where CIFAR-10 is")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder of the comparison")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    command = [sys.executable, "-m", "particleaugment", "compare", "cifar10-wrn28-2", "--arms", ",".join(ARMS)]
    command += ["--seeds", options.seeds, "--out", options.out, "--jobs", str(options.jobs)]
    command += ["--set", f"data_dir={options.data}", "--set", f"epochs={options.epochs}"]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
