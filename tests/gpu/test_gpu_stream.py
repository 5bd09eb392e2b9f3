"""Streaming to a GPU: pytest -m gpu tests/gpu (skipped with a reason where there is none)."""

import multiprocessing

import numpy as np
import pytest
import torch
from PIL import Image

import particleaugment as pa
from particleaugment.augment.transforms import ColorJitter, HorizontalFlip, Normalize, RandomErasing
from particleaugment.recipes import get_recipe
from particleaugment.trainee.pipelines import make_pipelines
from particleaugment.trainee.stream import PLAIN, TRAIN
from particleaugment.training.build import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
TINY = ["model=resnet-18", "image_size=48", "batch_size=16", "num_particles=4", "workers=2", "precision=fp32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 25), ("val", 5)):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                coarse = np.random.default_rng([ord(name), number]).integers(0, 256, (4, 5, 3), dtype=np.uint8)
                picture = Image.fromarray(coarse).resize((90, 70), Image.Resampling.BICUBIC)
                picture.save(root / part / name / f"{number}.jpg", quality=90)
    return root


@pytest.mark.parametrize("jitter", [[], [ColorJitter()]])
def test_fused_pipelines_give_the_cpus_input(jitter):
    size, count = (48, 48), 64
    normalize, before, after = Normalize((0.5,) * 3, (0.25,) * 3), [*jitter, HorizontalFlip()], [RandomErasing()]
    options = {"before": before, "after": after, "resample": "bilinear", "fill": (1, 2, 3)}
    device = torch.device("cuda", 0)
    fused, nothing = make_pipelines(device, size, normalize, 5, "fused", **options)
    plain, normalise = make_pipelines(torch.device("cpu"), size, normalize, 5, "native", **options)
    images = torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert nothing(images) is images
    ids = torch.arange(100, 100 + count)
    settings = pa.PaperFilter(num_particles=4)
    particles = settings.policy(settings.init(0, pa.OPS, epochs=60))
    for policy in (pa.RandAugment(n=3, m=9), particles):
        for pipeline in (fused.training, plain.training):
            pipeline.set_policy(policy)
            pipeline.set_epoch(1 << 30)
        output = fused.training(images.to(device), ids.to(device))
        torch.testing.assert_close(output.cpu(), normalise(plain.training(images, ids)), rtol=0, atol=1e-6)
        assert output.is_contiguous(memory_format=torch.channels_last)
    index, particle = torch.arange(count).flip(0), torch.arange(count) % 4
    for pipeline in (fused.measuring, plain.measuring):
        pipeline.set_policy(particles)
        pipeline.set_epoch(1 << 31)
    output = fused.measuring(images.to(device), ids.to(device), index.to(device), particle=particle.to(device))
    expected = normalise(plain.measuring(images, ids, index, particle=particle))
    torch.testing.assert_close(output.cpu(), expected, rtol=0, atol=1e-6)


def test_training_measuring_and_evaluating_as_on_a_cpu(folder):
    losses = {}
    settings = pa.PaperFilter(num_particles=4)
    policy = settings.policy(settings.init(0, pa.OPS, epochs=60))
    for device in ("cpu", "cuda"):
        assignments = [f"data_dir={folder}", f"device={device}", "compile=false", *TINY]
        parts = build(get_recipe("imagenet-resnet50").override(["filter=paper", *assignments]), print)
        trainee = parts.trainee
        parts.model.eval()
        measured = trainee.measure(policy, torch.arange(7), 3, progress=lambda *_: None, phase="measure")
        evaluated = trainee.evaluate()
        torch.testing.assert_close(trainee.losses(torch.arange(7)), measured[1], rtol=1e-4, atol=1e-4)
        parts.model.train()
        trained = trainee.train(policy, torch.arange(49, 9, -1), 2, progress=lambda *_: None)  # 16 + 16 + 8
        assert trainee.batches_done == 3
        losses[device] = [*measured, torch.tensor([evaluated[0], trained / 40])]
        streamed = list(trainee._stream(TRAIN, torch.arange(50).split(16)))
        trainee.close()
        losses[device].append(torch.cat([images.cpu() for images, _, _ in streamed]))
    for cpu, cuda in zip(*losses.values()):
        if cpu.dtype == torch.uint8:
            assert torch.equal(cpu, cuda)
        else:
            torch.testing.assert_close(cpu.double(), cuda.double(), rtol=0.05, atol=0.05)
    assert multiprocessing.active_children() == []


def test_batches_arrive_whole_while_the_device_is_busy(folder):
    """The next batch is copied while the device works: it must neither come too early nor overwrite another."""
    assignments = [f"data_dir={folder}", "device=cuda", *TINY]
    parts = build(get_recipe("imagenet-resnet50").override(["filter=paper", *assignments]), print)
    trainee = parts.trainee
    expected = trainee.data.plain.read(list(range(50))).long().sum((1, 2, 3))
    work = torch.randn(4096, 4096, device="cuda")
    for _ in range(5):
        sums, kept = [], []
        for images, _, ids in trainee._stream(PLAIN, torch.arange(50).split(7)):
            work = (work @ work).clamp(-1, 1)
            sums.append(images.long().sum((1, 2, 3)))
            kept.append(ids)
        assert torch.equal(torch.cat(sums).cpu(), expected)
        assert torch.equal(torch.cat(kept).cpu(), torch.arange(50))
    trainee.close()


def test_a_compiled_step_trains(folder):
    assignments = [f"data_dir={folder}", "device=cuda", *TINY, "precision=bf16", "compile=true"]
    said = []
    parts = build(get_recipe("imagenet-resnet50").override(["filter=paper", *assignments]), said.append)
    parts.model.train()
    loss = parts.trainee.train(pa.RandAugment(), torch.arange(50), 1, progress=lambda *_: None)
    parts.trainee.close()
    assert 0 < loss / 50 < 20
    assert parts.trainee._trusts_compiled
    assert said[1:] == [] or "without compiling" in said[1]
