"""What the scripts of speed add to ``particleaugment bench``."""

import sys
from pathlib import Path

import pytest

from particleaugment.recipes import get_recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cpu_threads import scaling, threads_table
from cpu_throughput import beside_timm
from loader_throughput import images_table, loaders_table, rows_without_numba
from targets import LIMIT, cpu_rows, targets_table
from training_work import flops_per_image, work


def test_operations_are_those_of_the_layers():
    # WRN-10-1 by hand: multiply-adds of the stem, three blocks with their shortcuts, and the head.
    stem = 32 * 32 * 27 * 16
    stages = [(16, 16, 32), (16, 32, 16), (32, 64, 8)]
    blocks = sum(
        side * side * (9 * narrow * wide + 9 * wide * wide + (narrow * wide if narrow != wide else 0))
        for narrow, wide, side in stages
    )
    forward, backward = flops_per_image("wrn-10-1", 10, (3, 32, 32))
    assert forward == 2 * (stem + blocks + 64 * 10)
    # Each layer once for its input and once for its weights; the images need no gradient.
    assert backward == 2 * forward - 2 * stem


def test_work_per_second():
    found = work(get_recipe("digits").config, {"train": 2.0, "evaluate": 0.5, "measure": 1.0})
    forward, backward = flops_per_image("wrn-10-1", 10, (3, 32, 32))
    assert found["training_tflops"] == found["tflops"]["train"] > 0
    assert set(found["tflops"]) == {"train", "evaluate", "measure"}
    ratio = found["tflops"]["train"] / found["tflops"]["evaluate"]
    assert ratio == pytest.approx(0.25 * 1437 / 360 * (1 + backward / forward), rel=0.01)


def test_result_rows_keep_the_names_that_the_tables_read():
    row = beside_timm(32, 4, repeats=1, seed=0)
    assert {"size", "batch", "peer", "timm", "ours_1_thread", "ours_2_threads", "ratio_1_thread"} < set(row)


def test_rows_of_threads():
    rows = scaling(32, 16, [1, 2], repeats=1, seed=0)
    assert [row["threads"] for row in rows] == [1, 2]
    assert rows[0]["times_one_thread"] == 1
    assert rows[1]["times_one_thread"] > 0
    assert len(threads_table().splitlines()) > 4


def test_rows_of_targets():
    rows = cpu_rows(repeats=2, seed=0)
    assert [row["what"] for row in rows[:2]] == ["three ops", "one rotation"]
    for row in rows:
        assert row["cost_with_masks"] > 0
        assert row["images"]["median"] > 0
    assert len(targets_table().splitlines()) > 4
    assert LIMIT == 1.4


def test_single_images_without_numba(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = rows_without_numba(rounds=2, seed=0)
    assert {(row["size"], row["input"]) for row in rows} == {
        (s, kind) for s in (32, 224) for kind in ("Pillow", "tensor")
    }
    assert all(row["ours"]["median"] > 0 for row in rows)


def test_tables_of_loaders():
    assert len(images_table().splitlines()) >= 16
    assert len(loaders_table().splitlines()) >= 10
