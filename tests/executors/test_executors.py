import ctypes
import hashlib
import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import particleaugment as pa
from particleaugment import executors
from particleaugment.executors import choose_executor, coefficients, fused, native

CPU = torch.device("cpu")
EXECUTORS = tuple(name for name in pa.EXECUTORS if name not in ("auto", "fused"))
BLANK = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
ROTATE = pa.Program.from_ops([[("Rotate", 10)]] * 2)


def random_batch(count=40, size=(19, 26), seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=generator)
    return images, pa.RandAugment(n=4, m=7, resample="random").sample(torch.arange(count), seed=seed, size=size)


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setattr(native, "unavailable_reason", lambda: "Numba is not installed (pip install it)")
    executors._say_once.cache_clear()
    yield
    executors._say_once.cache_clear()


# Which executor runs.


def test_auto_is_native_on_a_cpu():
    assert native.unavailable_reason() == ""
    assert choose_executor("auto", CPU) == "native"
    for name in EXECUTORS:
        assert choose_executor(name, CPU) == name


def test_an_executor_without_a_module_never_runs_as_another(monkeypatch):
    monkeypatch.setattr(executors, "EXECUTORS", (*pa.EXECUTORS, "quick"))
    with pytest.raises(ModuleNotFoundError, match=r"particleaugment\.executors\.quick"):
        pa.apply(BLANK, ROTATE, executor="quick")


def test_auto_is_fused_on_a_gpu_that_can_run_it_and_else_batch(monkeypatch, caplog):
    executors._say_once.cache_clear()
    monkeypatch.setattr(executors, "_no_fused", lambda device: "")
    assert choose_executor("auto", torch.device("cuda", 0)) == "fused"
    monkeypatch.setattr(executors, "_no_fused", lambda device: "it is too old")
    with caplog.at_level(logging.WARNING, logger="particleaugment"):
        assert [choose_executor("auto", torch.device("cuda", 0)) for _ in range(3)] == ["batch"] * 3
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["augmenting with executor 'batch' instead of 'fused': it is too old"]
    executors._say_once.cache_clear()
    assert choose_executor("auto", torch.device("mps")) == "batch"


def test_fused_does_not_run_on_a_cpu():
    with pytest.raises(ValueError, match=r"executor 'fused' cannot run on cpu: .+; use 'batch' or 'auto'"):
        pa.apply(BLANK, ROTATE, executor="fused")


def test_without_numba_auto_says_once_that_it_is_slower(without_numba, caplog):
    images, program = random_batch()
    with caplog.at_level(logging.WARNING, logger="particleaugment"):
        assert choose_executor("auto", CPU) == "batch"
        output = pa.apply(images, program)
        pa.apply(images, program, executor="auto")
    assert [record.getMessage() for record in caplog.records] == [
        "augmenting with executor 'batch', which is slower on a CPU: Numba is not installed (pip install it)"
    ]
    assert torch.equal(output, pa.apply(images, program, executor="pil"))


def test_without_numba_native_is_an_error(without_numba):
    message = r"executor 'native' cannot run: Numba is not installed \(pip install it\); use 'batch' or 'auto'"
    with pytest.raises(ValueError, match=message):
        pa.apply(BLANK, ROTATE, executor="native")
    with pytest.raises(ValueError, match=message):
        pa.Augment(pa.RandAugment(), executor="native")


def test_a_missing_numba_is_noticed(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert native.unavailable_reason.__wrapped__().startswith("Numba is not installed")


def test_a_numba_that_is_too_old_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.2 or less. Got NumPy 2.3.')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "numba")
    reason = native.unavailable_reason.__wrapped__()
    assert reason == "Numba cannot be imported (Numba needs NumPy 2.2 or less. Got NumPy 2.3.)"


def test_loops_are_compiled_where_they_cannot_be_kept(tmp_path):
    (tmp_path / "loops.py").write_text(
        "from particleaugment.executors._compiled import compiled\n"
        "@compiled\ndef twice(number):\n    return 2 * number\n"
        "@compiled\ndef four_times(number):\n    return twice(twice(number))\n"
    )
    (tmp_path / "__pycache__").write_text("no folder")
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache", "PYTHONDONTWRITEBYTECODE": "1"}
    program = "import sys; sys.path.insert(0, sys.argv[1]); import loops; print(loops.four_times(5))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout == "20\n", done.stderr
    assert done.stderr.splitlines() == [
        "every process compiles the CPU loops again, because Numba found no writable cache folder; set NUMBA_CACHE_DIR "
        "to one"
    ]


def test_native_runs_on_cpu_images_alone():
    with pytest.raises(ValueError, match="executor 'native' runs on CPU images, got images on cuda:0; use 'batch'"):
        choose_executor("native", torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nativ", "there is no executor 'nativ'; did you mean native"),
        ("gpu", "there is no executor 'gpu'; the executors are auto, pil, native, fused, batch"),
        (None, "there is no executor None"),
    ],
)
def test_unknown_executor(name, message):
    with pytest.raises(ValueError, match=message):
        pa.apply(BLANK, ROTATE, executor=name)


# What they are given.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (BLANK.float(), TypeError, r"images must be uint8 \(0 to 255\), got torch.float32; augment before converting"),
        (BLANK.long(), TypeError, r"images must be uint8 \(0 to 255\), got torch.int64"),
        (np.zeros((2, 3, 8, 8), np.uint8), TypeError, "expected a uint8 tensor of images, got ndarray"),
        (BLANK[0], ValueError, r"images must have shape \[batch, channels, height, width\], got \(3, 8, 8\)"),
        (BLANK[None], ValueError, r"images must have shape \[batch, channels, height, width\], got \(1, 2, 3, 8, 8\)"),
        (BLANK[:, :2], ValueError, r"1 or 3 channels in dimension 1, got shape \(2, 2, 8, 8\)"),
        (BLANK.permute(0, 2, 3, 1), ValueError, r"1 or 3 channels in dimension 1, got shape \(2, 8, 8, 3\)"),
        (
            torch.zeros(2, 1, 1, 8193, dtype=torch.uint8),
            ValueError,
            r"images may have up to 8192 pixels per side, got shape \(2, 1, 1, 8193\)",
        ),
    ],
)
def test_bad_images(executor, images, error, message):
    with pytest.raises(error, match=message):
        pa.apply(images, ROTATE, executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_bad_programs(executor):
    with pytest.raises(ValueError, match="the program is for 2 images but the batch has 1"):
        pa.apply(BLANK[:1], ROTATE, executor)
    with pytest.raises(ValueError, match="the program is for 2 images but the batch has 0"):
        pa.apply(BLANK[:0], ROTATE, executor)
    with pytest.raises(
        TypeError, match=r"expected a Program, got list; make one with Program.from_ops or policy.sample"
    ):
        pa.apply(BLANK, [[("Rotate", 10)]] * 2, executor)


@pytest.mark.parametrize(
    "fill", [(1, 2), (1, 2, 256), (-1, 0, 0), (0.5, 0, 0), "abc", 300, 1.5, None, (math.nan, 0, 0)]
)
def test_bad_fill(fill):
    with pytest.raises(ValueError, match=r"fill must be three whole numbers from 0 to 255 \(red, green, blue\), got "):
        pa.apply(BLANK, ROTATE, fill=fill)


def test_one_number_fills_all_channels():
    program = pa.Program.from_ops([[("TranslateX", 2)]] * 2)
    assert pa.apply(BLANK, program, fill=7).unique().tolist() == [7]


def test_bad_filter():
    with pytest.raises(ValueError, match="there is no resampling filter 'bicubc'; did you mean bicubic"):
        pa.apply(BLANK, ROTATE, resample="bicubc")
    with pytest.raises(
        ValueError, match="there is no resampling filter 'x'; the filters are nearest, bilinear, bicubic"
    ):
        pa.apply(BLANK, ROTATE, resample="x")


@pytest.mark.parametrize("executor", ["auto", *EXECUTORS])
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (0, 1, 1, 1), (2, 3, 0, 8), (2, 3, 8, 0)])
def test_empty_batches_come_back_as_they_are(executor, shape):
    images = torch.zeros(shape, dtype=torch.uint8)
    output = pa.apply(images, ROTATE[: len(images)], executor)
    assert (output.shape, output.dtype) == (images.shape, torch.uint8)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_programs_without_ops_copy_the_images(executor):
    images, _ = random_batch(3)
    for program in (pa.Program.from_ops([[], [], []]), pa.Program.from_ops([["Identity"] * 3] * 3)):
        output = pa.apply(images, program, executor)
        assert torch.equal(output, images)
        assert output.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_input_is_never_written(executor):
    images, program = random_batch()
    before, op, arg = images.clone(), program.op.clone(), program.arg.clone()
    pa.apply(images, program, executor)
    assert torch.equal(images, before)
    assert torch.equal(program.op, op)
    assert torch.equal(program.arg, arg)


# How the work is split does not show.


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_number_of_threads_does_not_matter(executor):
    images, program = random_batch(61)
    threads = torch.get_num_threads()
    outputs = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            outputs.append(pa.apply(images, program, executor))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_image_does_not_depend_on_its_batch(executor):
    images, program = random_batch(30)
    whole = pa.apply(images, program, executor)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    assert torch.equal(pa.apply(images[order], program[order], executor), whole[order])
    for i in range(0, 30, 7):
        assert torch.equal(pa.apply(images[i : i + 1], program[i : i + 1], executor), whole[i : i + 1])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_default_dtype_does_not_matter(executor, another_default_dtype):
    images, noisy = random_batch(60)
    every_op = [[(name, 1.37) if pa.ops.lookup(name).takes_argument else name] for name in pa.OPS * 4]
    drawn = (pa.TrivialAugment("standard"), pa.AutoAugment("cifar10"))
    programs = [noisy, pa.Program.from_ops(every_op), *(policy.sample(torch.arange(60)) for policy in drawn)]
    expected = [pa.apply(images, program, "pil") for program in programs]
    with another_default_dtype():
        outputs = [pa.apply(images, program, executor) for program in programs]
    assert [torch.equal(*pair) for pair in zip(outputs, expected)] == [True] * 4


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_default_device_does_not_matter(executor):
    images, program = random_batch()
    every_op = [[(name, 0.37) if pa.ops.lookup(name).takes_argument else name] for name in pa.OPS]
    expected = [
        pa.apply(images, program, "pil"),
        pa.apply(images[: len(every_op)], pa.Program.from_ops(every_op), "pil"),
    ]
    with torch.device("meta"):
        outputs = [pa.apply(images, program, executor)]
        outputs.append(pa.apply(images[: len(every_op)], pa.Program.from_ops(every_op), executor))
    assert [torch.equal(*pair) for pair in zip(outputs, expected)] == [True, True]


def test_what_the_kernel_reads_lasts_until_it_is_launched(monkeypatch):
    from particleaugment.executors import fused

    images, program = random_batch(64)
    images, program, found = images[::2], program[::2], {}
    assert not program.op.is_contiguous(), "so that copies are made"

    def read(parameters, *_):
        for name, kind in (("op", ctypes.c_int64), ("arg", ctypes.c_double), ("code", ctypes.c_int64)):
            found[name] = list((kind * program.op.numel()).from_address(getattr(parameters, name)))

    monkeypatch.setattr(fused, "launch", read)
    fused.run(images, program, 1, (0, 0, 0))
    assert found["op"] == program.op.flatten().tolist()
    assert found["arg"] == program.arg.flatten().tolist()
    assert found["code"] == program.resample.flatten().tolist()


def test_large_batches_are_processed_in_chunks(monkeypatch):
    from particleaugment.executors import batch

    images, program = random_batch(50)
    whole = pa.apply(images, program, "batch")
    monkeypatch.setattr(batch, "_CHUNK", 4 * images[0].numel())
    assert torch.equal(pa.apply(images, program, "batch"), whole)


def test_more_slots_than_ops_and_long_chains_agree():
    images, _ = random_batch(24, (15, 15))
    rows = [
        [(name, 0.5) if pa.ops.lookup(name).takes_argument else name for name in pa.OPS * 2][: i + 1] for i in range(24)
    ]
    outputs = [pa.apply(images, pa.Program.from_ops(rows), executor) for executor in EXECUTORS]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_the_compiled_loops_name_the_geometry_that_they_were_compiled_with():
    kernels = pytest.importorskip("particleaugment.executors._kernels")
    text = Path(kernels.__file__).with_name("_geometry_kernels.py").read_bytes()
    found = hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()[:12]
    assert found == kernels._GEOMETRY, f'write _GEOMETRY = "{found}" into _kernels.py: caches of old code are then left'


def test_the_kernels_number_ops_as_the_table_does():
    words = re.search(r"enum Op \{(.*?)\}", fused.kernel_source("fused_kernel.cu"), re.DOTALL)[1]
    written = [word.strip().replace("_", "").lower() for word in words.split(",")]
    assert written == [op.name.lower() for op in pa.ops.TABLE], "executors/coefficients.cu"


def test_compiled_coefficients_are_the_common_ones():
    kernels = pytest.importorskip("particleaugment.executors._geometry_kernels")
    rng = np.random.default_rng(0)
    near = [math.nextafter(value, way) for value in range(-360, 361, 45) for way in (-1e9, 1e9)]
    tiny = 10.0 ** -rng.uniform(0, 18, 999)
    arg = torch.from_numpy(np.concatenate([rng.uniform(-360, 360, 9_000), np.arange(-360, 361, 0.5), near, tiny]))
    matrix = np.empty(6)
    for height, width in ((32, 32), (17, 40)):
        for name, share in (("Rotate", 1.0), ("ShearX", 1 / 180), ("TranslateX", 1 / 180), ("TranslateY", 1 / 180)):
            op = pa.ops.lookup(name).index
            common = coefficients.affine(torch.full_like(arg, op, dtype=torch.int64), arg * share, height, width)
            for value, turn, row in zip((arg * share).tolist(), common.turn.tolist(), common.matrix.numpy()):
                assert kernels.affine(op, value, height, width, matrix) == turn, (name, value)
                assert turn >= 0 or np.array_equal(matrix, row), (name, value)
