"""The command line, on ranks that are not given the same: rank 1 has one other pixel, or was given another seed."""

import os
import sys

from particleaugment.cli.main import main
from particleaugment.training import build

load_data = build.load_data


def with_another_pixel(*arguments, **options):
    data = load_data(*arguments, **options)
    data.test_images[-1, 0, 0, 0] ^= 1
    return data


if __name__ == "__main__":
    what = sys.argv.pop(1)
    if os.environ["RANK"] == "1" and what == "data":
        build.load_data = with_another_pixel
    if os.environ["RANK"] == "1" and what == "seed":
        sys.argv += ["--seed", "12345"]
    main()
