"""The fused kernel on a GPU: pytest -m gpu tests/gpu (skipped with a reason where there is none)."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import particleaugment as pa
from particleaugment.executors import choose_executor

sys.path.insert(0, str(Path(__file__).parents[1] / "exact"))
import cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
SIZES = [(1, 1), (2, 3), (17, 23), (32, 32), (64, 48), (96, 96), (224, 224)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("channels", [3, 1])
def test_pixels_are_pillows(size, channels):
    count = 20 if size[0] > 100 else 400
    for slots in (1, 3):
        case = cases.chains(*size, slots=slots, count=count, seed=5, channels=channels)
        images = torch.from_numpy(np.array(case.images)).cuda()
        for executor in ("fused", "batch"):
            output = pa.apply(images, case.program(), executor=executor, fill=case.fill).cpu().numpy()
            assert (output == case.expected()).all(), executor


# Both buffers in shared memory, one of them, and none.
@pytest.mark.parametrize("size", [(1, 1), (17, 23), (33, 33), (32, 32), (200, 200), (400, 400), (300, 500)])
@pytest.mark.parametrize("channels", [3, 1])
def test_flips_and_turns_are_pillows(size, channels):
    rows = [["FlipX"], ["FlipY"], ["FlipX", "FlipY", "Invert"], ["FlipY", ("TranslateX", 0.25)]]
    if size[0] == size[1]:
        rows += [[("Rotate90", degrees), *rest] for degrees in (90, 180, 270) for rest in ([], ["FlipX", "Equalize"])]
    images = torch.from_numpy(cases.pool("random", *size, len(rows))[:, :channels].copy())
    program = pa.Program.from_ops(rows)
    expected = pa.apply(images, program, executor="pil")
    for executor in ("fused", "batch"):
        assert torch.equal(pa.apply(images.cuda(), program, executor=executor).cpu(), expected), executor


NO_UP = pa.ops.NO_UP_OPS


@pytest.mark.parametrize(
    "policy",
    [
        pa.RandAugment(n=3, m=6, ops=NO_UP),
        pa.RandAugment(n=3, m=6, m_std=2, ops=NO_UP),
        pa.TrivialAugment(ops=("FlipX", "FlipY", "Rotate90")),
        pa.SubPolicies([[("Rotate90", 0.8, 3), ("FlipX", 0.5, 0)], [("FlipY", 1, 0), ("Rotate90", 1, 9)]]),
        pa.ParticlePolicy(torch.full((3, 18), 0.3), torch.tensor([1.0, 2, 0]), m=6, ops=NO_UP),
        pa.ParticlePolicy(torch.full((3, 18), 0.3), torch.tensor([1.0, 2, 0]), m=[i / 2 for i in range(18)], ops=NO_UP),
    ],
    ids=["rand", "noisy", "trivial", "sub-policies", "particles", "particles-levels"],
)
def test_policies_with_flips_and_turns_equal_the_cpu(policy):
    from particleaugment.augment.pipeline import FusedPipeline

    generator = torch.Generator().manual_seed(8)
    images = torch.randint(0, 256, (600, 3, 32, 32), dtype=torch.uint8, generator=generator)
    ids, before = torch.arange(600), (pa.PadCrop(4), pa.HorizontalFlip())
    on_cpu = pa.Augment(policy, seed=3, before=before)
    on_cpu.set_epoch(11)
    expected = on_cpu(images, ids)
    pipeline = FusedPipeline(policy, (32, 32), torch.device("cuda"), 3, before=before)
    pipeline.set_epoch(11)
    assert torch.equal(pipeline(images.cuda(), ids.cuda()).cpu(), expected)
    on_gpu = pa.Augment(policy, seed=3, before=before)
    on_gpu.set_epoch(11)
    assert torch.equal(on_gpu(images.cuda(), ids.cuda()).cpu(), expected)


def test_only_square_images_are_turned():
    images = torch.zeros(1, 3, 6, 7, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match="Rotate90 takes square images, got 6x7 pixels"):
        pa.apply(images, pa.Program.from_ops([[("Rotate90", 90)]]))
    with pytest.raises(ValueError, match="Rotate90 takes square images, got 6x7 pixels"):
        pa.Augment(pa.TrivialAugment(ops=NO_UP[-3:]))(images)


def test_auto_is_fused_on_cuda():
    assert choose_executor("auto", torch.device("cuda")) == "fused"


def test_memory_layouts_give_the_same_pixels():
    images = torch.randint(0, 256, (6, 3, 40, 24), dtype=torch.uint8, device="cuda")
    program = pa.RandAugment(n=3, m=9).sample(torch.arange(6), size=(40, 24))
    expected = pa.apply(images, program)
    assert torch.equal(pa.apply(images.contiguous(memory_format=torch.channels_last), program), expected)
    wide = torch.zeros(6, 3, 40, 48, dtype=torch.uint8, device="cuda")
    wide[..., ::2] = images
    assert torch.equal(pa.apply(wide[..., ::2], program), expected)


def test_images_too_large_for_the_kernel_fall_back(caplog):
    images = torch.randint(0, 256, (1, 3, 4, 1100), dtype=torch.uint8)
    program = pa.Program.from_ops([[("Rotate", 10.0)]])
    assert torch.equal(pa.apply(images.cuda(), program, executor="fused").cpu(), pa.apply(images, program))
    assert "larger than 1024" in caplog.text


@pytest.mark.parametrize(
    "name", ["rand-m9-n3-inc1", "rand-m9-n2-mstd0.5", "trivial", "autoaugment-svhn", "original", "none"]
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_whole_pipeline_equals_the_cpu(name, dtype):
    from particleaugment.augment.pipeline import FusedPipeline

    images = torch.randint(0, 256, (300, 3, 32, 32), dtype=torch.uint8)
    ids = torch.randint(0, 1 << 40, (300,))
    before = (pa.PadCrop(4), pa.HorizontalFlip())
    normalize = () if dtype == torch.uint8 else (pa.Normalize((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), dtype),)
    after = (pa.RandomErasing(), *normalize)
    on_cpu = pa.Augment(pa.parse(name), seed=3, before=before, after=after)
    on_cpu.set_epoch(11)
    expected = on_cpu(images, ids)
    for channels_last in (False, True):
        pipeline = FusedPipeline(
            pa.parse(name), (32, 32), torch.device("cuda"), 3, before=before, after=after, dtype=dtype,
            channels_last=channels_last,
        )  # fmt: skip
        pipeline.set_epoch(11)
        output = pipeline(images.cuda(), ids.cuda())
        assert output.is_contiguous(memory_format=torch.channels_last) or not channels_last
        assert torch.equal(output.cpu(), expected)


@pytest.mark.parametrize("order", ["fixed", "random"])
def test_particles_drawn_by_weight_and_given(order):
    from particleaugment.augment.pipeline import FusedPipeline

    policy = pa.ParticlePolicy(torch.rand(9, 15), torch.tensor([0.0, 1, 2, 0, 3, 1, 1, 1, 0]), m=4, order=order)
    images, ids = torch.randint(0, 256, (500, 3, 32, 32), dtype=torch.uint8), torch.arange(500)
    pipeline = FusedPipeline(policy, (32, 32), torch.device("cuda"), 1)
    pipeline.set_epoch(2)
    assert torch.equal(pipeline(images.cuda(), ids.cuda()).cpu(), pa.apply(images, policy.sample(ids, 2, 1)))
    particle = ids % 9
    expected = pa.apply(images, policy.sample_particle(particle, ids, 2, 1))
    assert torch.equal(pipeline(images.cuda(), ids.cuda(), particle=particle.cuda()).cpu(), expected)


def test_graph_replays_with_the_next_epoch_and_a_new_policy():
    from particleaugment.augment.pipeline import FusedPipeline

    first = pa.ParticlePolicy(torch.full((4, 15), 0.2), torch.ones(4), m=3)
    second = pa.ParticlePolicy(torch.full((4, 15), 0.7), torch.ones(4), m=3)
    images, ids = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8), torch.arange(64)
    device_images, device_ids = images.cuda(), ids.cuda()
    pipeline = FusedPipeline(first, (32, 32), torch.device("cuda"), 0)
    out = torch.empty_like(device_images)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pipeline(device_images, device_ids, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pipeline(device_images, device_ids, out=out)
    for epoch, policy in ((5, first), (6, first), (6, second)):
        pipeline.set_epoch(epoch)
        pipeline.set_policy(policy)
        graph.replay()
        assert torch.equal(out.cpu(), pa.apply(images, policy.sample(ids, epoch, 0)))


def test_uniforms_and_normals_are_the_same_bits():
    from particleaugment.core.random import Stream, exp, log, sqrt, standard_normal, uniform

    ids = torch.randint(0, 1 << 50, (5000,))
    on_cpu, on_gpu = uniform(9, Stream.OP, 3, ids, 16), uniform(9, Stream.OP, 3, ids.cuda(), 16)
    assert torch.equal(on_cpu, on_gpu.cpu())
    for function in (standard_normal, lambda u: log(u + 1e-9), exp, lambda u: sqrt(u + 1e-9)):
        assert torch.equal(function(on_cpu), function(on_gpu).cpu())


@pytest.mark.parametrize(
    "policy",
    [pa.RandAugment(n=3, m=9, m_std=0.7), pa.AutoAugment("imagenet"), pa.TrivialAugment(), pa.Mixture((1.0, 0.4), 0.7)],
    ids=lambda p: p.kind,
)
def test_policies_draw_the_same_program(policy):
    ids = torch.arange(3000)
    epoch = torch.tensor(4, device="cuda")
    assert policy.sample(ids, 4, 2).equal(policy.sample(ids.cuda(), epoch, 2).to("cpu"))


def test_a_program_that_leaves_a_busy_gpu_is_whole():
    policy, ids = pa.RandAugment(n=3, m=9, m_std=0.7), torch.arange(3000)
    expected = policy.sample(ids, 4, 2)
    policy.sample(ids.cuda(), 4, 2)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # the copy must wait for this
    assert policy.sample(ids.cuda(), 4, 2).to("cpu").equal(expected)


def test_ids_from_a_busy_gpu_augment_images_on_the_cpu():
    generator = torch.Generator().manual_seed(8)
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator)
    augment = pa.Augment(pa.TrivialAugment(), seed=0)
    expected = augment(images, torch.arange(64))
    torch.cuda._sleep(500_000_000)
    assert torch.equal(augment(images, torch.arange(64, device="cuda").clone()), expected)


@pytest.mark.parametrize("policy", ["trivial", "rand-m9-n3-mstd0.5-inc1", "autoaugment-imagenet"])
def test_image_123_in_epoch_7_is_the_same_from_a_worker(policy):
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    augment, transform = pa.Augment(policy, seed=9), pa.ImageTransform(policy, seed=9)
    augment.set_epoch(7)
    transform.set_epoch(7)
    batch, ids = torch.stack([image.flip(0), image]).cuda(), torch.tensor([5, 123]).cuda()
    assert torch.equal(augment(batch, ids)[1].cpu(), transform(image, id=123))
