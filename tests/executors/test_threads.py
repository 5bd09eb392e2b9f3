"""Compiled loops on several threads: by a team that waits in compiled code, and by threads of Python."""

import contextlib
import os
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.unsafe.refcount import get_refcount
from test_executors import random_batch

import particleaugment as pa
from particleaugment.executors import native, threads
from particleaugment.executors._compiled import claim, compiled, unowned
from particleaugment.executors._team import run_by_team


@compiled
def count_claims(claimed, failing, counter, count):
    """Add 1 to each row that this thread claims, in the first column; fail at one of them."""
    if run_by_team(counter):
        return
    i = claim(counter, 1)
    while i < count:
        if i == failing:
            raise ValueError("failed")
        claimed[i, 1] += claimed[i, 0]  # what others added before
        claimed[i, 0] += 1
        i = claim(counter, 1)


def claims(count, size, number, failing=-1):
    claimed = np.zeros((count, 2), np.int64)
    with mock.patch("torch.get_num_threads", return_value=number):
        threads.on_threads(count_claims, (claimed, failing), count, size)
    return claimed


@contextlib.contextmanager
def no_team():
    with mock.patch.object(threads, "_team", return_value=None):
        yield


@contextlib.contextmanager
def team_alone():
    """Threads of Python would have to be started, which fails: so compiled code starts all that there are."""
    with mock.patch.object(threads, "_pool", side_effect=AssertionError("threads of Python are used")):
        yield


WAYS = [no_team, pytest.param(team_alone, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux has teams"))]


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(0, 3000), st.integers(1, 1 << 18), st.integers(1, 40))
@settings(deadline=None)
def test_threads_claim_every_image_once(way, count, size, number):
    with way():
        assert (claims(count, size, number) == [1, 0]).all()


@pytest.mark.parametrize("way", WAYS)
def test_more_threads_than_a_team_has_claim_every_image_once(way):
    with way():
        assert (claims(2000, 1 << 16, 300) == [1, 0]).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [1, 2, 7])
def test_an_error_in_a_compiled_loop_is_raised_on_any_thread(way, number):
    with way():
        for _ in range(50):
            with pytest.raises(ValueError, match="failed"):
                claims(20, 1 << 16, number, failing=5)
        assert (claims(5, 1 << 16, number, failing=5) == [1, 0]).all()


def test_several_threads_of_python_augment_at_once():
    found = []

    def work():
        found.extend((claims(50, 1 << 16, 4) == [1, 0]).all() for _ in range(100))

    with mock.patch("torch.get_num_threads", return_value=4):
        workers = [threading.Thread(target=work) for _ in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    assert found == [True] * 500


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has teams")
def test_every_compiled_loop_is_run_by_the_team(monkeypatch):
    on_threads, seen = threads.on_threads, {}

    def watched(function, arguments, count, size):
        def called(*given):
            counter = given[-2]
            assert counter[1] != 0, "a team is asked for"
            function(*given)
            seen[function.__name__] = counter[1] == 0

        on_threads(called, arguments, count, size)

    monkeypatch.setattr(threads, "on_threads", watched)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    images, _ = random_batch(3000, (8, 8))
    augment = pa.Augment("rand-m9-n3-inc1")
    augment(images, ids=torch.arange(3000), masks=images[:, 0])
    matrix = torch.tensor([[1.0, 0, 0, 0, 1, 0]], dtype=torch.float64).repeat(3000, 1)
    assert torch.equal(native.resampled(images, matrix, 0), images)
    assert seen == dict.fromkeys(("draw_many", "run_images", "move_masks", "resample_images"), True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    images, program = random_batch(200)
    torch.ones(1 << 20).add(1)  # with torch's own threads, if it has several: they would block the child for ever
    with mock.patch("torch.get_num_threads", return_value=4):
        expected = pa.apply(images, program, "native")
        child = os.fork()
        if child == 0:
            try:
                found = pa.apply(images, program, "native")
                os._exit(0 if np.array_equal(found.numpy(), expected.numpy()) else 1)
            finally:
                os._exit(2)
        deadline = threading.Timer(60, os.kill, (child, 9))
        deadline.start()
        _, status = os.waitpid(child, 0)
        deadline.cancel()
        assert os.waitstatus_to_exitcode(status) == 0
        assert torch.equal(pa.apply(images, program, "native"), expected)


def test_loops_that_threads_share_are_kept_on_disk(tmp_path):
    (tmp_path / "loops.py").write_text(
        "import numpy as np\n"
        "from particleaugment.executors import threads\n"
        "from particleaugment.executors._compiled import claim, compiled\n"
        "from particleaugment.executors._team import _serve, run_by_team\n"
        "@compiled\n"
        "def add(numbers, counter, count):\n"
        "    if run_by_team(counter):\n"
        "        return\n"
        "    i = claim(counter, 1)\n"
        "    while i < count:\n"
        "        numbers[i] += i\n"
        "        i = claim(counter, 1)\n"
    )
    program = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); from loops import _serve, add, np, threads\n"
        "torch.set_num_threads(3); numbers = np.zeros(99, np.int64); threads.on_threads(add, (numbers,), 99, 1 << 16)\n"
        "print(numbers.sum(), *(sum(f.stats.cache_misses.values()) for f in (add, _serve)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = [subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120) for _ in range(2)]
    compiled_first = "1 1" if sys.platform == "linux" else "1 0"
    assert done[0].stdout == f"4851 {compiled_first}\n", done[0].stderr
    assert done[1].stdout == "4851 0 0\n", done[1].stderr


@compiled
def owners_while_sliced(array, found):
    """Hold a slice of an array and count its owners, first as it is and then without an owner."""
    row = array[1]
    found[0] = get_refcount(array)
    row[0] += 1
    free = unowned(array)
    other = free[1]
    found[1] = get_refcount(array)
    other[0] += 10
    found[2] = row[0] + other[0] - array[1, 0]


def test_slices_of_arrays_without_an_owner_count_no_owners_and_share_their_numbers():
    array, found = np.zeros((2, 3), np.int64), np.zeros(3, np.int64)
    owners_while_sliced(array, found)
    held, with_another, number = found.tolist()
    assert with_another == held, "the second slice counted itself as an owner"
    assert number == array[1, 0] == 11
