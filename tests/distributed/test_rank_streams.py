"""Streamed image folders on two ranks, by both filters."""

import sys

import numpy as np
import pytest
from launch import ranks_together, result
from PIL import Image

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
SETTINGS = (
    *("model=wrn-10-1", "image_size=16", "crop=2", "epochs=2", "batch_size=7", "learning_rate=0.02", "workers=1"),
    *("measure_size=5", "precision=fp32", "device=cpu", "validation=9"),
)
OF_FILTER = {"paper": ("clone_size=11", "num_particles=4"), "difficulty": ("start=1", "every=1")}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for label, name in enumerate(("ant", "bee", "cat")):
        (root / name).mkdir()
        for number in range(20):
            coarse = np.random.default_rng([label, number]).integers(0, 256, (4, 5, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((40 + number, 30), Image.Resampling.BICUBIC)
            picture.save(root / name / f"{number}.jpg", quality=90)
    return root


@pytest.mark.parametrize("filter", [pytest.param("difficulty", marks=pytest.mark.slow), "paper"])
def test_streamed_on_two_ranks_is_in_memory_on_two_ranks(pictures, tmp_path, filter):
    found = {}
    for stream in ("true", "false"):
        path = tmp_path / stream
        chosen = (*SETTINGS, *OF_FILTER[filter], f"stream={stream}", f"filter={filter}", f"data_dir={pictures}")
        settings = [part for s in chosen for part in ("--set", s)]
        where = ["--out", path]
        code, output, errors = ranks_together("-m", "particleaugment", "train", "folder", *settings, *where)
        assert code == 0, errors
        assert "DistributedDataParallel on 2 ranks" in output
        assert ("files decoded by 1 worker" in output) == (stream == "true")
        found[stream] = result(path)
    assert found["true"] == found["false"]
    assert [record["kind"] for record in found["true"][2]] == ["epoch", "filter", "epoch"]
