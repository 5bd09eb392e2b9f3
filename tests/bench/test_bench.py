import json
import time

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from particleaugment.bench import suite
from particleaugment.bench.peers import timm_transform
from particleaugment.bench.training import POLICIES, epoch_medians, time_run, write_generated_cifar10
from particleaugment.cli.main import app
from particleaugment.data import load_data
from particleaugment.training.run import RunError


@pytest.fixture
def tiny(tmp_path):
    """Settings of a suite that takes no time: few images, and networks trained on a folder of sixty."""
    generator = np.random.default_rng(0)
    for number in range(60):
        path = tmp_path / "images" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    options = {"data": "folder", "data_dir": tmp_path / "images", "image_size": 32, "batch_size": 20}
    options |= {"measure_size": 10, "precision": "fp32"}
    return suite.Settings(
        cpu_batches={32: 8, 48: 4},
        cpu_repeats=2,
        gpu_batches={32: (128,), 224: (64,)},
        images={32: 4},
        files=4,
        workers=(2,),
        rounds=2,
        epochs=3,
        warm_up=1,
        training=tuple(f"{name}={value}" for name, value in options.items()),
    )


def record(kind, epoch, **seconds):
    return {"kind": kind, "epoch": epoch, "seconds": seconds | {"resumes": 0}}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the settings are for the epochs on a CPU")
def test_the_command_measures_everything_and_fits_a_terminal(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "QUICK", tiny)
    monkeypatch.setitem(POLICIES, "paper", (*POLICIES["paper"], "--set", "clone_size=20", "--set", "num_particles=3"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "--quick", "--out", str(file)], terminal_width=80)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("wrote ")) <= 80
    document = json.loads(file.read_text())
    assert document["command"] == "particleaugment bench --quick"
    assert document["machine"]["versions"]["torch"] == torch.__version__
    cpu, training = document["results"]["cpu"], document["results"]["training"]
    for size in (32, 48):
        names = [row["name"] for row in cpu if row["size"] == size]
        assert {"batch", "pil"} < set(names)
        assert ("timm" in names) == (timm_transform() is not None)
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in cpu)
    images, loaders = document["results"]["images"], document["results"]["loaders"]
    assert [row["input"] for row in images] == ["Pillow", "tensor", "Pillow", "batch"]
    assert [row["policy"] for row in loaders] == ["no augmentation", "TrivialAugment, nearest", "rand-m7-n2-inc1"]
    for row in (*images, *loaders):
        assert 0 < row["ours"]["low"] <= row["ours"]["median"] <= row["ours"]["high"]
        assert ("peer" in row) == ("ratio" in row)
    assert ("peer" in images[0]) == (timm_transform() is not None)
    plain, steered, searching = training
    assert [row["policy"] for row in training] == ["randaugment", "difficulty", "paper"]
    assert set(plain["phases"]) == {"train", "evaluate"}
    assert set(steered["phases"]) == {"train", "evaluate", "measure", "filter"}
    assert set(searching["phases"]) == {"train", "evaluate", "clone", "measure", "filter"}
    for row in training:
        assert 0 < row["low"] <= row["seconds_per_epoch"] <= row["high"]
        assert row["epochs_measured"] == 2
    for shown in (
        "CPU, 32x32",
        "CPU, 48x48",
        "CPU, 32x32, one thread",
        "Loader over JPEG files, 2 workers",
        "difficulty filter",
        "paper's filter",
        "clone",
        f"torch {torch.__version__}",
    ):
        assert shown in " ".join(done.output.split())  # wherever this machine's name breaks the lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "no/such/folder"], "there is no folder no/such/folder"),
        (["--out", "no/such/folder/bench.json"], "to write bench.json to; create it first"),
    ],
)
def test_requests_that_cannot_be_met_are_refused_at_once(arguments, message):
    start = time.process_time()
    done = CliRunner().invoke(app, ["bench", "--quick", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert time.process_time() - start < 10


def test_phases_are_medians_after_the_warm_up():
    records = []
    for epoch, seconds in enumerate((100.0, 50.0, 1.0, 2.0, 6.0), start=1):
        records.append(record("epoch", epoch, train=seconds, evaluate=9.0))
        if epoch < 5:
            records.append(record("filter", epoch, clone=10 * seconds, measure=1.0))
    found = epoch_medians(records, warm_up=2)
    assert found["phases"] == {"train": 2.0, "evaluate": 9.0, "clone": 15.0, "measure": 1.0}
    assert found["seconds_per_epoch"] == 17.5
    assert (found["epochs_measured"], found["filter_steps_measured"]) == (3, 2)
    assert (found["low"], found["high"]) == (14.75, 20.25)  # of whole epochs: 12 and 23


def test_a_training_run_that_fails_is_named(capfd):
    with pytest.raises(RunError, match="the training run of the benchmark failed"):
        time_run("digits", "randaugment", ["epochs=-1"], seed=0, warm_up=0)
    assert "epochs must be at least 0, got -1" in capfd.readouterr().err


def test_generated_images_are_read_as_cifar10(tmp_path):
    data = load_data("cifar10", write_generated_cifar10(tmp_path, seed=0))
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert len(data.train_labels.unique()) == 10
