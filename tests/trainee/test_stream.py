"""Images decoded while a network trains: the same results for any number of workers, after any interruption."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from particleaugment.cli.main import app
from particleaugment.data import FolderDataset, list_folder
from particleaugment.data import reader as reader_module
from particleaugment.data.reader import Reader, ReadError, default_workers
from particleaugment.data.streamed import open_folder
from particleaugment.policies import RandAugment
from particleaugment.recipes import get_recipe
from particleaugment.report.report_and_events import ReportAndEvents
from particleaugment.training import build as build_module
from particleaugment.training import loop
from particleaugment.training.build import build
from particleaugment.training.checkpoint import load_latest
from particleaugment.training.config import ConfigError
from particleaugment.training.display import Display
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.util.stop import Stop

LIMIT = 120
TINY = [
    "model=wrn-10-1", "image_size=16", "epochs=2", "batch_size=8", "num_particles=3", "clone_size=12",
    "measure_size=6", "precision=fp32", "device=cpu",
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """60 JPEGs of three classes, in train and val."""
    root = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 16), ("val", 4)):
        for label, name in enumerate(("ant", "bee", "cat")):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                coarse = np.random.default_rng([label, number, count]).integers(0, 256, (4, 5, 3), dtype=np.uint8)
                picture = Image.fromarray(coarse).resize((40 + number, 30), Image.Resampling.BICUBIC)
                picture.save(root / part / name / f"{number}.jpg", quality=90)
    return root


@pytest.fixture
def pictures(made, tmp_path):
    """A copy that a test may damage."""
    root = tmp_path / "pictures"
    for file in made.glob("*/*/*.jpg"):
        copy = root / file.relative_to(made)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return root


def config_of(root, *assignments, recipe="imagenet-resnet50"):
    return get_recipe(recipe).override(["filter=paper", f"data_dir={root}", *TINY, *assignments])


def finish(path, config):
    run = RunFolder.create(path, config)
    assert loop.train(Session(run, Display(quiet=True), Stop(), 0.0, extras=ReportAndEvents(run)))
    return result(path)


def result(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), records


def reader_of(root, workers, **options):
    data = FolderDataset(list_folder(root)[0], 16, train=True, seed=3)
    return data, Reader({"train": data}, workers, **options)


# Reading.


def test_a_stop_that_reaches_workers_before_they_are_ready_does_not_end_them(made, monkeypatch):
    ready = reader_module._leave_signals_to_the_parent

    def stopped_first(worker):
        os.kill(os.getpid(), signal.SIGTERM)
        ready(worker)

    monkeypatch.setattr(reader_module, "_leave_signals_to_the_parent", stopped_first)
    _, reader = reader_of(made, 2)
    with reader.guarded():
        assert sum(len(ids) for ids, _ in reader.batches("train", torch.arange(16).split(4))) == 16
    reader.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_what_one_process_gives_in_the_order_asked_for(made, workers):
    data, alone = reader_of(made, 0)
    same, reader = reader_of(made, workers)
    batches = torch.randperm(48, generator=torch.Generator().manual_seed(1)).split(20)
    generator = torch.get_rng_state()
    for epoch in (0, 7, 1 << 31):
        for dataset in (data, same):
            dataset.set_epoch(epoch)
        if epoch == 7:
            next(reader.batches("train", batches))  # and no more: what workers have begun is thrown away
        pairs = zip(alone.batches("train", batches), reader.batches("train", batches), strict=True)
        for (ids, expected), (others, pieces) in pairs:
            assert ids.equal(others)
            assert torch.cat(pieces).equal(torch.cat(expected))
    assert torch.get_rng_state().equal(generator), "the global generator is left alone"
    reader.close()
    assert multiprocessing.active_children() == []
    assert next(reader.batches("train", batches))[0].equal(batches[0]), "workers start again when needed"
    reader.close()


def test_little_shared_memory_makes_small_pieces(made, monkeypatch):
    real = os.statvfs("/")

    class Small:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Small() if path == "/dev/shm" else real)
    _, reader = reader_of(made, 2)
    [(_, pieces)] = reader.batches("train", [torch.arange(4)])
    assert [len(piece) for piece in pieces] == [1, 1, 1, 1]
    reader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_cannot_be_read_is_named(pictures, workers):
    data, reader = reader_of(pictures, workers)
    Path(data.images.path(5)).write_bytes(b"broken")
    with pytest.raises(ReadError) as error:
        list(reader.batches("train", [torch.arange(10)]))
    assert (
        str(error.value) == f"{data.images.path(5)} is not a readable JPEG, PNG or WebP image; repair it or remove it"
    )
    reader.close()


def test_a_worker_that_dies_is_noticed_and_its_file_named(pictures, monkeypatch):
    data, reader = reader_of(pictures, 1)
    file, opened = Path(data.images.path(2)), os.open

    def stalling(path, *flags, **options):  # as on a network drive that does not answer
        if os.fspath(path) == str(file):
            time.sleep(LIMIT)
        return opened(path, *flags, **options)

    monkeypatch.setattr(os, "open", stalling)

    def kill():
        while reader._files._reading[0, 2] != 2:
            time.sleep(0.01)
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ReadError) as error, reader.guarded():
        list(reader.batches("train", [torch.arange(10)]))
    killer.join()
    assert f"died while it read {file}; " in str(error.value)
    assert "\n" not in str(error.value)


def test_other_errors_pass_the_guard(made):
    _, reader = reader_of(made, 0)
    with pytest.raises(RuntimeError, match="something else"), reader.guarded():
        raise RuntimeError("something else")


def test_default_workers_leave_a_core():
    cores = len(os.sched_getaffinity(0))
    assert default_workers() == max(1, min(32, cores - 1))


# Whole runs.


def test_streamed_pixels_are_those_in_memory(made, tmp_path, no_report):
    """Without random parts of files, streaming changes how images are held and nothing else."""
    common = ["crop=2", "jitter=0.3", "validation=9"]
    in_memory = finish(tmp_path / "a", config_of(made, *common, recipe="folder"))
    streamed = finish(tmp_path / "b", config_of(made, *common, "stream=true", "workers=1", recipe="folder"))
    assert streamed == in_memory
    assert [record["kind"] for record in streamed[2]] == ["epoch", "filter", "epoch"]


def test_an_image_that_is_left_over_trains_with_the_batch_before_it(made):
    losses = []
    for stream in ("false", "true"):
        settings = ["model=resnet-18", f"stream={stream}", "workers=0"]  # of 16 pixels, batch norm sees one in the end
        parts = build(config_of(made, *settings, recipe="folder"), print)
        parts.model.train()
        losses.append(parts.trainee.train(RandAugment(), torch.arange(17), 1, progress=lambda *_: None))
        assert parts.trainee.batches_done == 2
    assert losses[0] == losses[1]


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "particleaugment", *map(str, arguments), "--checkpoint-seconds", "1000"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def group_is_gone(process):
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_stopped_in_the_middle_of_an_epoch_and_resumed(pictures, tmp_path, no_report):
    """A signal to the whole process group reaches the workers too; the run saves, ends them and goes on exactly."""
    undisturbed = finish(tmp_path / "undisturbed", config_of(pictures, "workers=0"))
    path = tmp_path / "run"
    held = pictures / "train" / "bee" / "1.jpg"
    content = held.read_bytes()
    settings = [part for setting in [f"data_dir={pictures}", *TINY, "workers=2"] for part in ("--set", setting)]
    process = start("train", "imagenet-resnet50", "--set", "filter=paper", *settings, "--out", path)
    assert process.stdout.readline() == ("48 training images, 12 test images (folder val), 3 classes: ant, bee, cat\n")
    line = process.stdout.readline()  # the run begins
    assert "files decoded by 2 workers during training (random resized crops)" in line
    os.killpg(process.pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "")
    assert output == f"stopped and saved; continue with: particleaugment resume {path}\n"
    assert group_is_gone(process)
    state, _ = load_latest(path)
    assert (state["position"]["epoch"], state["position"]["phase"]) == (1, "train")
    assert 1 <= state["position"]["batch"] < 6

    # Resumed, it notices a file that has been damaged meanwhile; mended, it goes on, with fewer workers.
    held.write_bytes(content[:100])
    process = start("resume", path, "--quiet")
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert errors.startswith(
        f"particleaugment: the data differ from those that the run in {path} was started with, in "
    )
    assert errors.count("\n") == 1
    assert group_is_gone(process)
    held.write_bytes(content)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"workers": 2', '"workers": 1'))
    outcome = CliRunner().invoke(app, ["resume", str(path), "--quiet"])
    assert outcome.exit_code == 0
    assert result(path) == undisturbed


def test_stopped_at_once(made, tmp_path):
    settings = [part for setting in [f"data_dir={made}", *TINY, "workers=2"] for part in ("--set", setting)]
    process = start(
        "train",
        "imagenet-resnet50",
        "--set",
        "filter=paper",
        *settings,
        "--set",
        "epochs=1000",
        "--set",
        "evaluate_every=1",
        "--out",
        tmp_path / "run",
    )
    while not process.stdout.readline().startswith("epoch 1/1000"):  # the workers are at work
        assert process.poll() is None, process.stderr.read()
    for _ in range(2):  # the second does not wait until the run has saved
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.005)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert group_is_gone(process)


# What is chosen.


def test_a_folder_streams_when_it_does_not_fit(made, monkeypatch):
    chosen = build(config_of(made, "crop=2", recipe="folder"), print).chosen
    assert chosen == "native executor, step by step, fp32"
    monkeypatch.setattr(build_module, "MEMORY_LIMIT", 1 << 10)
    chosen = build(config_of(made, "crop=2", recipe="folder"), print).chosen
    assert "during training (0.0 GiB decoded, more than the limit of 0 GiB), native executor" in chosen
    chosen = build(config_of(made, "stream=true", "workers=0", recipe="folder"), print).chosen
    assert "files decoded by the training process during training (stream=true)" in chosen


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["stream=maybe"], "stream must be one of auto, true, false, got 'maybe'"),
        (["workers=many"], "workers must be auto, or a number of processes of at least 0, got 'many'"),
        (["workers=-1"], "workers must be auto, or a number of processes of at least 0, got -1"),
        (["normalization=mine"], "normalization must be one of data, imagenet, got 'mine'"),
        (["crop_scale=2"], "crop_scale must be in 0..1, got 2.0"),
        (["jitter=-1"], "jitter must be in 0..1, got -1.0"),
        (["crop=4"], "crop and crop_scale are two ways to crop; set crop=0 or crop_scale=0"),
        (["stream=false"], "crop_scale crops during decoding; use stream=auto, or set crop_scale=0"),
        (["data=digits"], "crop_scale is for image files, and 'digits' has none; set crop_scale=0"),
    ],
)
def test_settings_that_do_not_fit(assignments, message):
    with pytest.raises(ConfigError) as error:
        get_recipe("imagenet-resnet50").override(["filter=paper", *assignments])
    assert str(error.value) == message


def test_no_folder_named():
    with pytest.raises(ConfigError, match="needs data_dir, a directory with one sub-folder of images per class"):
        build(get_recipe("imagenet-resnet50").override(["filter=paper", "device=cpu"]), print)


def test_the_validation_part_stands_in_for_the_test_images(made):
    data = open_folder(made, 16, validation=9, crop_scale=0.5, normalization="imagenet")
    assert (len(data.train), len(data.plain), len(data.test)) == (39, 39, 9)
    assert data.test_labels.bincount().tolist() == [3, 3, 3]
    names = [{part.images.path(i) for i in range(len(part))} for part in (data.train, data.test)]
    assert names[0].isdisjoint(names[1])
    assert all("/train/" in name for name in names[0] | names[1])


def test_the_report_shows_a_few_files(made, tmp_path, monkeypatch):
    path = tmp_path / "run"
    finish(path, config_of(made, "epochs=1", "workers=0", "policy=trivial"))
    page = (path / "report.html").read_text()
    assert "What the network saw" in page
    assert "48 training images, 12 test images (folder val), 3 classes: ant, bee, cat." in page
    assert len(page) < 2_000_000


# A compiled network.


class Uncompilable(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        raise RuntimeError("no compiler here\nand more")


def test_a_network_that_cannot_be_compiled_trains_without(made):
    losses, said = [], []
    for compiled in (False, True):
        parts = build(config_of(made, "workers=0"), print)
        if compiled:
            parts.trainee.say = said.append
            parts.trainee._compiled = replace(parts.trainee.learner, model=Uncompilable(parts.model))
        parts.model.train()
        losses.append(parts.trainee.train(RandAugment(), torch.arange(20), 1, progress=lambda *_: None))
    assert losses[0] == losses[1]
    assert said == ["training without compiling the network: it cannot be compiled (no compiler here)"]
