"""Training on a GPU: pytest -m gpu tests/gpu (skipped with a reason where there is none)."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import particleaugment as pa
from particleaugment.data import epoch_permutation, load_digits
from particleaugment.data.split import batch_sizes
from particleaugment.recipes import get_recipe
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.graph import GraphTrainee
from particleaugment.training import build as building
from particleaugment.training import loop, network
from particleaugment.training.config import Config
from particleaugment.training.display import Display
from particleaugment.training.override import override
from particleaugment.training.run import RunFolder
from particleaugment.training.session import Session
from particleaugment.training.shared import SharedParts
from particleaugment.util.stop import Stop, Stopped

pytestmark = pytest.mark.gpu
SETTINGS = ["device=cuda", "epochs=3"]  # 1437 digits in batches of 64: the last one is not whole


def quiet(phase, done, total):
    pass


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "particleaugment", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def result(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return (path / "model.safetensors").read_bytes(), (path / "policy.json").read_bytes(), records


@pytest.fixture
def arithmetic():
    """Put back what a run sets for the whole process."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = kept


# Bit-identical repeats, interrupted or not.


@pytest.fixture(scope="module")
def deterministic_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "first"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    output = command("train", "digits", "--out", path, "--deterministic", *settings)
    assert "whole steps in a CUDA graph" in output
    assert "deterministic" in output
    assert "cannot be captured" not in output
    return path


def test_deterministic_runs_are_bit_identical(deterministic_run, tmp_path):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command("train", "digits", "--out", tmp_path / "second", "--deterministic", *settings)
    weights, policy, records = result(tmp_path / "second")
    assert [record["kind"] for record in records] == ["epoch", "filter", "epoch", "filter", "epoch"]
    assert (weights, policy, records) == result(deterministic_run)


class StopInEpochTwo(Stop):
    """Asks for a stop after seven batches of the second epoch's training."""

    session = None

    def check(self):
        position = self.session.position
        if (position.epoch, position.phase, self.session.trainee.batches_done) == (2, "train", 7):
            raise Stopped


def test_a_run_stopped_in_mid_epoch_ends_bit_identical(deterministic_run, tmp_path, arithmetic):
    stop, run = StopInEpochTwo(), RunFolder.create(tmp_path / "run", RunFolder.open(deterministic_run).config)
    session = Session(run, Display(quiet=True), stop, checkpoint_seconds=1e9)
    stop.session = session
    assert isinstance(session.trainee, GraphTrainee)
    assert loop.train(session) is False
    assert (session.position.epoch, session.position.batch) == (2, 7)
    assert "resuming" in command("resume", tmp_path / "run")
    assert result(tmp_path / "run") == result(deterministic_run)


def test_runs_that_share_a_network_are_bit_identical_to_commands(deterministic_run, tmp_path, arithmetic):
    shared, config = SharedParts(), RunFolder.open(deterministic_run).config
    for name, settings in (("other", ["seed=3", "policy=trivial-n2"]), ("same", [])):
        run = RunFolder.create(tmp_path / name, override(config, settings))
        assert loop.train(Session(run, Display(quiet=True), Stop(), 0.0, shared=shared))
    assert result(tmp_path / "same") == result(deterministic_run)


# Parts of a run, small enough to be compared with training step by step.


class Recorder(nn.Module):
    """A network that keeps every input it is trained on, in the order of training, on the device."""

    def __init__(self, samples, num_classes):
        super().__init__()
        self.head = nn.Linear(3, num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # A captured step is warmed up first, which is undone but needs room.
        self.register_buffer("seen", torch.zeros(samples + 512, 3, 32, 32))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        if self.training:
            rows = self.count + torch.arange(len(images), device=images.device)
            self.seen.index_copy_(0, rows, images.detach())
            self.count.add_(len(images))
        return self.head(images.mean(dim=(2, 3)))


class Branching(nn.Module):
    """A network whose way depends on its data, which no captured graph can follow."""

    def __init__(self, num_classes):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, num_classes)
        for number, parameter in enumerate(self.parameters()):
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))

    def forward(self, images):
        hidden = self.norm(self.first(images))
        if float(images.mean()) > 0:
            hidden = -hidden
        return self.head(hidden.relu().mean(dim=(2, 3)))


def parts_of(monkeypatch, samples, model, *assignments, resident=True, say=print):
    """Build the parts of a run on the first digits with a network of our own."""
    digits = load_digits()
    data = replace(
        digits,
        train_images=digits.train_images[:samples],
        train_labels=digits.train_labels[:samples],
        test_images=digits.test_images[:50],
        test_labels=digits.test_labels[:50],
    )
    monkeypatch.setattr(building, "load_data", lambda *_, **__: data)
    monkeypatch.setattr(network, "build_model", lambda *_: model)
    if not resident:
        monkeypatch.setattr(building, "_fits", lambda *_: False)
    settings = ["precision=fp32", "flip=0.5", "erase=0.5", "batch_size=64", "learning_rate=0.05", *assignments]
    parts = building.build(get_recipe("digits").override(["filter=paper", *settings]), say)
    parts.model.train()
    return parts


@pytest.mark.parametrize("samples", [300, 129, 128, 40])
@pytest.mark.parametrize(
    "policy",
    [pa.RandAugment(n=3, m=9), pa.ParticlePolicy(torch.full((5, 15), 0.3), torch.arange(5.0), m=4)],
    ids=lambda policy: policy.kind,
)
def test_every_sample_is_trained_on_once_with_the_pixels_of_the_cpu(monkeypatch, arithmetic, samples, policy):
    trained = {}
    for device in ("cuda", "cpu"):
        model = Recorder(samples, 10)
        parts = parts_of(monkeypatch, samples, model, f"device={device}", "compile=false")
        order = epoch_permutation(samples, 0, 7)
        total = parts.trainee.train(policy, order, 7, progress=quiet)
        assert parts.trainee.batches_done == len(batch_sizes(samples, 64))
        assert int(model.count) == samples
        trained[device] = model.seen[:samples].cpu(), total, model.head.weight.detach().cpu()
        if device == "cuda":
            assert isinstance(parts.trainee, GraphTrainee)
            assert set(parts.trainee._graphs) == set(batch_sizes(samples, 64))
    assert torch.equal(trained["cuda"][0], trained["cpu"][0])
    assert trained["cuda"][1] == pytest.approx(trained["cpu"][1], rel=1e-4)
    torch.testing.assert_close(trained["cuda"][2], trained["cpu"][2], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_whole_steps_train_as_steps_one_by_one(monkeypatch, arithmetic, compiled):
    from particleaugment.models import build_model

    said, trained, judged = [], {}, {}
    for resident in (True, False):
        model, settings = build_model("wrn-10-1", 10, seed=0), ["device=cuda", f"compile={compiled}"]
        with monkeypatch.context() as patch:
            parts = parts_of(patch, 300, model, *settings, resident=resident, say=said.append)
        assert isinstance(parts.trainee, GraphTrainee if resident else EagerTrainee)
        total = parts.trainee.train(pa.RandAugment(n=2, m=5), torch.arange(300), 1, progress=quiet)
        trained[resident] = total, [parameter.detach().cpu() for parameter in model.parameters()]
        if resident:
            assert 64 in parts.trainee._graphs
        model.eval()
        judged[resident] = parts.trainee.evaluate()[0], float(parts.trainee.losses(torch.arange(40, 60)).mean())
    assert said == []
    assert trained[True][0] == pytest.approx(trained[False][0], rel=1e-3)
    assert judged[True] == pytest.approx(judged[False], rel=0.02)
    for whole, single in zip(trained[True][1], trained[False][1]):
        torch.testing.assert_close(whole, single, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_a_model_that_cannot_be_captured_is_trained_step_by_step(monkeypatch, arithmetic, compiled):
    said, trained = [], {}
    for resident in (True, False):
        model, settings = Branching(10), ["device=cuda", f"compile={compiled}"]
        with monkeypatch.context() as patch:
            parts = parts_of(patch, 300, model, *settings, resident=resident, say=said.append)
        assert isinstance(parts.trainee, GraphTrainee if resident else EagerTrainee)
        totals = [
            parts.trainee.train(pa.RandAugment(n=2, m=5), torch.arange(300), epoch, progress=quiet) for epoch in (1, 2)
        ]
        trained[resident] = totals, [tensor.detach().cpu() for tensor in model.state_dict().values()]
    assert len(said) == 1
    assert said[0].startswith("training with eager steps: this model cannot be captured in a CUDA graph (")
    assert trained[True][0] == pytest.approx(trained[False][0], rel=1e-4)
    for fallen_back, single in zip(trained[True][1], trained[False][1]):
        torch.testing.assert_close(fallen_back, single, rtol=1e-3, atol=1e-4)
    # The device is as usable as before: random numbers and new memory.
    assert torch.nn.functional.dropout(torch.ones(1000, device="cuda")).unique().numel() == 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


WITHOUT_MEMORY = """
import gc
import torch
import particleaugment as pa
from particleaugment.data import ImageData
from particleaugment.training import build as building
from particleaugment.training.config import Config
from particleaugment.training.override import override

count = 800_000
images, labels = torch.zeros(count, 3, 32, 32, dtype=torch.uint8), torch.arange(count) % 10
data = ImageData(
    train_images=images, train_labels=labels, test_images=images[:1000], test_labels=labels[:1000],
    classes=tuple("abcdefghij"), mean=(0.5,) * 3, std=(0.5,) * 3,
)
building.load_data = lambda *_, **__: data
config = override(Config(recipe="large"), ["device=cuda", "model=wrn-10-1"])
parts = building.build(config, print)
print("with room:", parts.chosen)
del parts
gc.collect()
torch.cuda.empty_cache()
free, _ = torch.cuda.mem_get_info()
occupied = torch.empty(free - images.numel() * 3 // 2, dtype=torch.uint8, device="cuda")
parts = building.build(config, print)
print("without:", parts.chosen)
parts.model.train()
loss = parts.trainee.train(pa.RandAugment(n=2, m=5), torch.arange(300), 1, progress=lambda *_: None)
print("loss:", loss / 300, "device:", parts.data.train_images.device, next(parts.model.parameters()).device)
"""


def test_too_little_memory_for_the_data_falls_back_and_says_so():
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with_room, without, loss = done.stdout.splitlines()
    assert with_room.startswith("with room: data resident on the GPU")
    assert without.startswith("without: fused executor, step by step, too little GPU memory for the data")
    assert 0 < float(loss.split()[1]) < 10
    assert loss.endswith("device: cpu cuda:0")


def test_the_benchmark_measures_throughput_and_the_augmentations_share(tmp_path):
    from particleaugment.bench.gpu import copy_bandwidth, large_rows, small_rows

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from training_work import augmentation_share

    bandwidth = copy_bandwidth()
    for row in (*small_rows((128,), bandwidth, 0), *large_rows((64,), bandwidth, 0)):
        assert 0 < row["low"] <= row["images_per_second"] <= row["high"]
        assert 0 < row["floor_microseconds"] < row["microseconds"]
    config = override(Config(recipe="mine"), ["device=cuda", "precision=bf16", "policy=randaugment-n3-m4"])
    share = augmentation_share(config, load_digits(), train_seconds=1.0)
    assert share["step_microseconds"] == pytest.approx(1e6 / (1437 / 128), rel=1e-3)
    assert 0 < share["share_of_step"] < 1
