"""``Augment`` in unusual company: compilers, threads, forks, inference mode, and numbers that are not whole."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import particleaugment as pa
from particleaugment.augment import worker_state
from particleaugment.data import FolderDataset, ImageList

IMAGES = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(6)


def searching():
    return pa.ParticleAugment(
        (IMAGES, IDS % 2), epochs=3, filter=pa.DifficultyFilter(measure_size=2, start=2.0), seed=0
    )


# Compilers.


def test_it_can_be_compiled():
    expected = pa.Augment("trivial", seed=3)(IMAGES, IDS)
    compiled = torch.compile(pa.Augment("trivial", seed=3), backend="eager")
    assert torch.equal(compiled(IMAGES, IDS), expected)
    assert not torch.equal(compiled(IMAGES), compiled(IMAGES)), "without ids, every call draws afresh"
    compiled.set_epoch(2)
    assert not torch.equal(compiled(IMAGES, IDS), expected), "and the epoch counts"


def test_the_compiler_is_imported_by_who_compiles():
    program = "import sys, particleaugment as pa; pa.Augment('trivial'); print('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_a_model_or_a_function_that_holds_it_can_be_compiled():
    augment = pa.Augment("rand-m9-n2", after=[pa.Normalize((0.5,) * 3, (0.2,) * 3)])
    model = nn.Sequential(augment, nn.Flatten(), nn.Linear(3 * 12 * 12, 2))
    compiled = torch.compile(model, backend="eager")
    assert compiled(IMAGES).shape == (6, 2)

    def loss(images, ids):
        return augment(images, ids).square().mean()

    assert torch.equal(torch.compile(loss, backend="eager")(IMAGES, IDS), loss(IMAGES, IDS))


def test_a_search_in_a_compiled_function():
    search = searching()
    search.begin_epoch(1)
    compiled = torch.compile(lambda images, ids: search.augment(images, ids) + 0, backend="eager")
    ids = search.division.ids_in(1)
    assert torch.equal(compiled(IMAGES[ids], ids), search.augment(IMAGES[ids], ids))


# Threads.


def test_threads_never_draw_the_same_ids():
    augment, found, interval = pa.Augment("trivial"), [], sys.getswitchinterval()

    def draw():
        for _ in range(300):
            found.append(augment._live.next_ids(3))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=draw) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    drawn = torch.cat(found)
    assert len(drawn.unique()) == len(drawn) == 8 * 300 * 3
    assert augment.counter == len(drawn)


class Slow:
    """Numbers that take their time to be read, so that threads that do not wait for each other read the same."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __getitem__(self, place):
        value = self.numbers[place]
        time.sleep(0.0005)
        return value

    def __setitem__(self, place, value):
        self.numbers[place] = value


def test_threads_wait_for_each_other():
    augment, found = pa.Augment("trivial"), []
    augment._live._look = Slow(augment._live._look)
    threads = [
        threading.Thread(target=lambda: found.extend(augment._live.next_id() for _ in range(20))) for _ in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(80))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_counts_does_not_block():
    augment = pa.Augment("trivial")
    with worker_state._counting:
        child = os.fork()
        if child == 0:
            try:
                augment._live.next_ids(2)
            finally:
                os._exit(0)
    deadline = threading.Timer(20, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


# Inference mode.


@pytest.mark.parametrize("policy", ["trivial", "particles"])
def test_what_is_made_in_inference_mode_is_used_outside(policy):
    particles = pa.ParticlePolicy(torch.full((2, 15), 0.5), torch.ones(2), m=3)
    others = pa.ParticlePolicy(torch.full((2, 15), 0.25), torch.ones(2), m=3)
    expected = pa.Augment(particles if policy == "particles" else policy)(IMAGES, IDS)
    with torch.inference_mode():
        augment = pa.Augment(particles if policy == "particles" else policy)
        augment(IMAGES)
    assert torch.equal(augment(IMAGES, IDS), expected)
    augment.set_epoch(1)
    augment(IMAGES)
    augment.load_state_dict(augment.state_dict())
    assert augment.counter == 12
    if policy == "particles":
        augment.policy = others
        assert augment.policy == others
    with torch.inference_mode():
        augment.set_epoch(2)
        augment(IMAGES)
    assert (augment.epoch, augment.counter) == (2, 18)


def test_searches_and_data_sets_made_in_inference_mode():
    with torch.inference_mode():
        search = searching()
        data = FolderDataset(ImageList.of("/nowhere", ("a", "b"), ["a/1.png"], [0]), 8, train=True)
    search.begin_epoch(1)
    ids = search.division.ids_in(1)
    assert search.augment(IMAGES[ids], ids).shape == IMAGES[ids].shape
    search.load_state_dict(search.state_dict())
    data.set_epoch(3)
    assert data.epoch == 3


# Numbers that are not whole.


@pytest.mark.parametrize("epoch", [1.5, 2.0, "3", None, True, torch.tensor(1.5), float("nan"), np.float64(2)])
def test_an_epoch_that_is_not_whole(epoch):
    augment = pa.Augment("trivial")
    for one in (augment, pa.ImageTransform("trivial")):
        with pytest.raises(TypeError, match="the epoch must be a whole number, got "):
            one.set_epoch(epoch)
    assert augment.epoch == 0


@pytest.mark.parametrize("epoch", [-1, 1 << 32, 10**30])
def test_an_epoch_out_of_range(epoch):
    with pytest.raises(ValueError, match="the epoch must "):
        pa.Augment("trivial").set_epoch(epoch)


@pytest.mark.parametrize("epoch", [4, np.int64(4), torch.tensor(4)])
def test_an_epoch_that_is_whole(epoch):
    augment = pa.Augment("trivial")
    augment.set_epoch(epoch)
    assert augment.epoch == 4


@pytest.mark.parametrize("number", [1.7, 2.0, torch.tensor(1.7), torch.tensor(True), torch.tensor([1, 2]), True])
def test_an_id_that_is_not_whole(number):
    with pytest.raises(TypeError, match="the id of an image must be a whole number, got "):
        pa.Augment("trivial")(IMAGES[0], number)
    with pytest.raises(TypeError, match="the id of an image must be a whole number, got "):
        pa.ImageTransform("trivial")(IMAGES[0], id=number)


@pytest.mark.parametrize("ids", [IDS + 0.5, IDS.float(), IDS.bool(), IDS.to(torch.int32), 3, True, IDS.tolist()])
def test_ids_that_are_not_whole(ids):
    with pytest.raises(TypeError, match="sample ids must be an int64 tensor"):
        pa.Augment("trivial")(IMAGES, ids)


@pytest.mark.parametrize("number", [5, np.int64(5), torch.tensor(5), torch.tensor([5], dtype=torch.int32)])
def test_an_id_that_is_whole(number):
    augment = pa.Augment("trivial")
    assert torch.equal(augment(IMAGES[5], number), augment(IMAGES, IDS)[5])
