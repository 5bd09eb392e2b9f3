"""The transform of single images: kinds of images, and workers of data loaders."""

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
import toy
from loading import COUNT, IMAGES, Transformed, read_epoch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import particleaugment as pa
from particleaugment.augment.worker_state import LiveState
from particleaugment.policies.schedule import ScheduleStep

IDS = torch.arange(COUNT)
STRONG = pa.RandAugment(n=2, m=8, m_std=2.0, ops=("Rotate", "ShearX", "Color"))


def search_of(**settings):
    defaults = {"num_particles": 4, "start_value": 0.9, "m": 6, "seed": 3, "clone_size": 12, "measure_size": 6}
    return toy.search_by(pa.PaperFilter, (IMAGES, IDS % 2), **(defaults | settings))


def filter_step(search):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(576, 2))
    return search.step(
        model,
        loss=nn.CrossEntropyLoss(reduction="none"),
        preprocess=lambda images: images / 255,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        batch_size=6,
    )


def pillow(pixels):
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


# Kinds of images.


def test_tensors_and_pillow_images_get_the_same_pixels():
    transform = pa.ImageTransform(STRONG, seed=5)
    transform.set_epoch(2)
    augment = pa.Augment(STRONG, seed=5)
    augment.set_epoch(2)
    expected = augment(IMAGES, IDS)
    assert not torch.equal(expected, IMAGES)
    for i in range(4):
        assert torch.equal(transform(IMAGES[i], id=i), expected[i])
        augmented = transform(pillow(IMAGES[i]), id=i)
        assert (augmented.mode, augmented.size) == ("RGB", (12, 16))
        assert np.array_equal(np.asarray(augmented), expected[i].permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    ("mode", "expected"), [("L", "L"), ("RGB", "RGB"), ("RGBA", "RGB"), ("P", "RGB"), ("1", "RGB"), ("CMYK", "RGB")]
)
def test_pillow_modes(mode, expected):
    image = pa.ImageTransform("rand-m9-n3-p1")(pillow(IMAGES[0]).convert(mode))
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size) == (expected, (12, 16))


class Picture(torch.Tensor):
    """A subclass of Tensor, as tv_tensors.Image is one."""


def test_subclasses_of_tensor_are_kept():
    transform = pa.ImageTransform(STRONG)
    augmented = transform(IMAGES[1].as_subclass(Picture), id=1)
    assert type(augmented) is Picture
    assert torch.equal(augmented.as_subclass(torch.Tensor), transform(IMAGES[1], id=1))


def test_what_comes_with_the_image_is_passed_on():
    transform = pa.ImageTransform(STRONG)
    image, label, note = transform(IMAGES[2], 7, "note", id=2)
    assert torch.equal(image, transform(IMAGES[2], id=2))
    assert (label, note) == (7, "note")


def test_what_cannot_follow_an_image_is_refused():
    video = type("Video", (), {"__module__": "torchvision.tv_tensors._video"})()
    with pytest.raises(
        TypeError, match="Video cannot be augmented with an image; supported are Mask, BoundingBoxes, KeyP"
    ):
        pa.ImageTransform(STRONG)(IMAGES[0], video)
    with pytest.raises(ValueError, match=r"a sample has one image, got 2; give a mask as tv_tensors.Mask, or by name"):
        pa.ImageTransform(STRONG)(pillow(IMAGES[0]), pillow(IMAGES[1]))


def test_inside_a_chain_of_callables():
    chain = [pa.ImageTransform(STRONG), lambda image: np.asarray(image) / 255]
    picture = pillow(IMAGES[0])
    for function in chain:
        picture = function(picture)
    assert picture.shape == (16, 12, 3)
    sequential = nn.Sequential(pa.ImageTransform(STRONG), nn.Flatten())
    assert sequential(IMAGES[0]).shape == (3, 192)


def test_an_augment_with_its_transforms():
    augment = pa.Augment(STRONG, before=(pa.PadCrop(2),), after=(pa.Normalize((0.5,) * 3, (0.25,) * 3),))
    transform = pa.ImageTransform(augment)
    expected = augment(IMAGES[:1], IDS[:1])[0]
    assert torch.equal(transform(IMAGES[0], id=0), expected)
    assert torch.equal(transform(pillow(IMAGES[0]), id=0), expected), "a normalised image is a tensor"
    transform.eval()
    assert torch.equal(transform(IMAGES[0]), pa.Normalize((0.5,) * 3, (0.25,) * 3).run(IMAGES[:1])[0])


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (
            IMAGES[0].float(),
            TypeError,
            "an image must be a uint8 tensor, .* got torch.float32; return it from the data set",
        ),
        (IMAGES[:2], ValueError, r"an image must have shape \[1 or 3, height, width\], got \(2, 3, 16, 12\)"),
        (IMAGES[0, :2], ValueError, r"\[1 or 3, height, width\], got \(2, 16, 12\)"),
        ("picture.png", TypeError, "got str"),
        (np.zeros((8, 8, 3)), TypeError, r"image arrays must be uint8 \(0 to 255\), got float64"),
    ],
)
def test_bad_images(image, error, message):
    with pytest.raises(error, match=message):
        pa.ImageTransform("trivial")(image)


def test_bad_settings():
    with pytest.raises(TypeError, match="expected a policy or a policy string, got int"):
        pa.ImageTransform(3)
    with pytest.raises(ValueError, match="the seed belongs to the ParticleAugment; set it there"):
        pa.ImageTransform(search_of(), seed=1)


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic"])
def test_the_filter_can_be_chosen(resample):
    policy = pa.RandAugment(n=1, m=9, ops=("Rotate", "ShearX"))
    augment = pa.Augment(policy, seed=2, resample=resample)
    assert torch.equal(pa.ImageTransform(policy, seed=2, resample=resample)(IMAGES[1], id=1), augment(IMAGES, IDS)[1])
    with pytest.raises(ValueError, match="the resample belongs to the Augment; set it there"):
        pa.ImageTransform(augment, resample=resample)


def test_a_filter_that_is_none():
    with pytest.raises(ValueError, match="there is no resampling filter 'bilinaer'; did you mean bilinear"):
        pa.ImageTransform("trivial", resample="bilinaer")


@pytest.mark.parametrize("executor", ["auto", "pil", "batch"])
def test_whoever_runs_it_the_pixels_are_the_same(executor):
    expected = pa.Augment(STRONG, seed=4)(IMAGES, IDS)
    transform = pa.ImageTransform(pa.Augment(STRONG, seed=4, executor=executor))
    for i in range(6):
        assert torch.equal(transform(IMAGES[i], id=i), expected[i])
        assert np.array_equal(np.asarray(transform(pillow(IMAGES[i]), id=i)), expected[i].permute(1, 2, 0).numpy())


def test_without_numba_pillow_augments_single_images():
    program = (
        "import sys, logging; sys.modules['numba'] = None; logging.basicConfig(format='%(message)s')\n"
        "import torch, numpy as np, particleaugment as pa\n"
        "from PIL import Image\n"
        "images = torch.arange(4 * 3 * 9 * 7).mul(37).remainder(256).to(torch.uint8).view(4, 3, 9, 7)\n"
        "for text in ('trivial', 'rand-m9-n3-inc1', 'autoaugment-cifar10'):\n"
        "    expected = pa.apply(images, pa.parse(text).sample(torch.arange(4), 0, 0, (9, 7)), 'pil')\n"
        "    transform = pa.ImageTransform(text)\n"
        "    for i, image in enumerate(images):\n"
        "        picture = transform(Image.fromarray(image.permute(1, 2, 0).numpy()), id=i)\n"
        "        assert np.array_equal(np.asarray(picture), expected[i].permute(1, 2, 0).numpy())\n"
        "        assert torch.equal(transform(image, id=i), expected[i])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "augmenting single images with Pillow, which is slower: Numba is not installed (pip install "
        "'particleaugment[fast]')"
    ]


def test_image_123_in_epoch_7_is_the_same_one_by_one_and_in_a_batch():
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    batch = torch.stack([image.flip(0), image, image.flip(1)])
    ids = torch.tensor([5, 123, 40_000])
    for policy in ("trivial", "rand-m9-n3-mstd0.5-inc1", "autoaugment-imagenet", search_of().policy):
        augment, transform = pa.Augment(policy, seed=9), pa.ImageTransform(policy, seed=9)
        augment.set_epoch(7)
        transform.set_epoch(7)
        assert torch.equal(augment(batch, ids)[1], transform(image, id=123))


def test_a_schedule_follows_the_epoch_one_by_one():
    steps = [ScheduleStep(start, torch.full((2, 15), p), torch.ones(2)) for start, p in ((1, 0.1), (3, 0.9))]
    schedule = pa.Schedule(tuple(steps), epochs=4, m=6)
    augment, transform = pa.Augment(schedule), pa.ImageTransform(schedule)
    for epoch in (1, 3, 2, 4):
        augment.set_epoch(epoch)
        transform.set_epoch(epoch)
        assert torch.equal(torch.stack([transform(IMAGES[i], id=i) for i in range(8)]), augment(IMAGES, IDS)[:8])


def test_images_that_are_laid_out_otherwise():
    augment, transform = pa.Augment(STRONG), pa.ImageTransform(STRONG)
    expected = augment(IMAGES, IDS)
    sideways = IMAGES[3].permute(0, 2, 1).contiguous().permute(0, 2, 1)
    assert torch.equal(transform(sideways, id=3), expected[3])
    array = np.asfortranarray(IMAGES[3].permute(1, 2, 0).numpy())
    assert np.array_equal(transform(array, id=3), expected[3].permute(1, 2, 0).numpy())
    empty = torch.zeros(3, 0, 4, dtype=torch.uint8)
    assert transform(empty, id=1).shape == (3, 0, 4)
    with torch.inference_mode():
        assert torch.equal(transform(IMAGES[3], id=3), expected[3])


# Workers.


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_running_workers_see_the_new_policy_and_epoch(context, num_workers):
    search = search_of()
    loader = DataLoader(
        Transformed(pa.ImageTransform(search)),
        batch_size=4,
        num_workers=num_workers,
        persistent_workers=True,
        multiprocessing_context=context,
    )
    workers = []
    for epoch in (1, 2, 3):
        search.begin_epoch(epoch)
        images, pids = read_epoch(loader)
        assert torch.equal(images, search.augment(IMAGES, IDS))
        workers.append(pids)
        old = search.policy
        filter_step(search)
        stale = pa.Augment(old, 3)
        stale.set_epoch(epoch)
        assert torch.equal(images, stale(IMAGES, IDS))
        assert not torch.equal(search.augment(IMAGES, IDS), images), "the new policy can be told from the old"
    assert workers[0] == workers[1] == workers[2], "the same processes all along"
    assert os.getpid() not in workers[0]


def test_a_change_within_an_epoch_reaches_what_is_not_prefetched():
    search = search_of()
    workers, prefetch = 2, 2
    loader = DataLoader(
        Transformed(pa.ImageTransform(search)),
        batch_size=1,
        num_workers=workers,
        prefetch_factor=prefetch,
        multiprocessing_context="fork",
    )
    search.begin_epoch(1)
    old = search.augment(IMAGES, IDS)
    batches = iter(loader)
    first = next(batches)[1]
    search.augmentation.set_epoch(2)
    new = search.augment(IMAGES, IDS)
    rest = torch.cat([batch[1] for batch in batches])
    assert torch.equal(first, old[:1])
    ahead = 1 + workers * prefetch
    assert torch.equal(rest[ahead - 1 :], new[ahead:])
    assert all(torch.equal(rest[i - 1], old[i]) or torch.equal(rest[i - 1], new[i]) for i in range(1, ahead))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_compiles_does_not_block():
    numba = pytest.importorskip("numba")
    from numba.core.compiler_lock import global_compiler_lock

    pa.ImageTransform(STRONG)(IMAGES[0])
    held, child = threading.Event(), 0

    def compile_for_a_while():
        with global_compiler_lock:
            held.set()
            time.sleep(0.5)

    thread = threading.Thread(target=compile_for_a_while)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            numba.njit(lambda x: x + 1)(1)
        finally:
            os._exit(0)
    thread.join()
    deadline = threading.Timer(60, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc, which Linux has")
def test_a_single_image_starts_no_other_thread():
    # In a process of its own: threads of other tests, and those of torch that exist already, would hide new ones.
    program = (
        "import os, torch, particleaugment as pa\n"
        "def count(): return len(os.listdir('/proc/self/task'))\n"
        "torch.set_num_threads(4)\n"
        "image = torch.arange(3 * 64 * 64).mul(37).remainder(256).to(torch.uint8).view(3, 64, 64)\n"
        "transform = pa.ImageTransform('rand-m9-n3')\n"
        "transform(image, id=0)\n"
        "before = count()\n"
        "for i in range(16): transform(image, id=i)\n"
        "after = count()\n"
        "torch.randn(1000, 1000) @ torch.randn(1000, 1000)\n"
        "print(before, after, count())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, after, with_other_threads = map(int, done.stdout.split())
    assert before == after < with_other_threads


@pytest.mark.parametrize("persistent", [False, True])
def test_without_ids_no_epoch_repeats_another(persistent):
    transform = pa.ImageTransform(STRONG)
    loader = DataLoader(
        Transformed(transform, with_ids=False),
        batch_size=4,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context="fork",
    )
    first, second = read_epoch(loader)[0], read_epoch(loader)[0]
    assert sum(torch.equal(a, b) for a, b in zip(first, second)) < COUNT / 4
    # Each worker's count went on: batches 0, 2, 4 are the first worker's.
    assert transform.augment.get_extra_state().tolist() == [0, 0, COUNT, COUNT]
    again = pa.ImageTransform(STRONG)
    again.augment.set_extra_state(torch.tensor([0, 0, COUNT // 2, COUNT // 2]))
    loader = DataLoader(Transformed(again, with_ids=False), batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert torch.equal(read_epoch(loader)[0], second), "a restored transform goes on where it was saved"


def test_workers_refuse_to_go_on_with_a_policy_that_was_replaced():
    augment = pa.Augment(STRONG)
    loader = DataLoader(
        Transformed(pa.ImageTransform(augment)),
        batch_size=4,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    read_epoch(loader)
    augment.policy = pa.TrivialAugment()
    with pytest.raises(RuntimeError, match="replaced by one of another type, which running workers cannot"):
        read_epoch(loader)
    fresh = DataLoader(loader.dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert torch.equal(read_epoch(fresh)[0], augment(IMAGES, IDS))


# The state in shared memory.


def test_copies_have_a_state_of_their_own():
    kept = pa.Augment(search_of().policy, seed=3)
    kept.set_epoch(4)
    kept(IMAGES)
    stored = io.BytesIO()
    torch.save(kept, stored)
    stored.seek(0)
    copies = [copy.deepcopy(kept), pickle.loads(pickle.dumps(kept)), torch.load(stored, weights_only=False)]
    for other in copies:
        assert (other.epoch, other.counter, other.policy) == (4, COUNT, kept.policy)
        assert torch.equal(other(IMAGES, IDS), kept(IMAGES, IDS))
        assert other._live._numbers.is_shared()
        other.set_epoch(9)
        other(IMAGES)
        assert (kept.epoch, kept.counter) == (4, COUNT)


def test_a_policy_of_another_form_takes_a_new_block():
    search = search_of()
    state = LiveState(search.policy)
    block = state._block
    search.begin_epoch(1)
    search.augment(IMAGES, IDS)
    filter_step(search)
    state.policy = search.policy
    assert state._block is block
    assert state.policy is search.policy or state.policy == search.policy
    other = pa.ParticlePolicy(torch.full((2, 15), 0.5), torch.ones(2))
    state.policy = other
    assert state.policy is other
    state.policy = pa.Identity()
    assert state.policy == pa.Identity()
    state.policy = search.policy
    assert state.policy == search.policy


def test_a_reader_waits_for_a_block_that_is_being_written():
    search = search_of()
    writer = LiveState(search.policy)
    reader = copy.copy(writer)  # shares the memory, as a worker does
    reader._version = -2
    assert reader.policy == search.policy
    writer._numbers[1] += 1  # odd: being written
    reads = []
    original = reader._numbers

    class Numbers:
        """Lets the writer finish at the third look."""

        def __getitem__(self, key):
            reads.append(key)
            if len(reads) == 5:
                original[1] += 1
            return original[key]

    reader._numbers = Numbers()
    assert reader.policy == search.policy
    assert reader._version == 2
