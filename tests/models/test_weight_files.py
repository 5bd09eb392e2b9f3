"""Files of weights that nobody has to trust: one sentence that names the file, before memory is spent."""

import contextlib
import json
import random
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import particleaugment as pa
from particleaugment.models import build_model
from particleaugment.models.weight_files import mismatch, network_tensors, open_weights

KNOWN = {
    "model": "wrn-10-1",
    "classes": '["cat", "dog"]',
    "mean": "[0.5, 0.5, 0.5]",
    "std": "[0.2, 0.2, 0.2]",
    "size": "32",
    "margin": "1.0",
}


@pytest.fixture
def file(tmp_path):
    save_file(build_model("wrn-10-1", 2, seed=0).state_dict(), tmp_path / "model.safetensors", KNOWN)
    return tmp_path / "model.safetensors"


def refused(file):
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be used: ") as caught:
        pa.load_model(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sound_file(file):
    model = pa.load_model(file)
    for name, tensor in load_file(file).items():
        assert torch.equal(model.network.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("model", "wrn-10-2", "the tensor "),
        ("model", "wrn-1000-64", "is missing"),
        ("model", "resnet-50", "the tensor "),
        ("model", "wrn-28-9999", "is too large"),
        ("model", "nonsense", "there is no model 'nonsense'"),
        ("model", "resnet-7", "depth must be 18 or 50"),
        ("classes", '["cat", "dog", "cow"]', "head.bias must be torch.float32 of shape (3,)"),
        ("classes", '["cat", "cat"]', "its classes must be different names"),
        ("classes", "[]", "its classes must be different names"),
        ("classes", "[1, 2]", "its classes must be different names"),
        ("classes", '[["cat"], ["dog"]]', "its classes must be different names"),
        ("classes", '"ab"', "its classes must be a list"),
        ("classes", '{"a": 1}', "its classes must be a list"),
        ("classes", "[" * 100_000, "its classes is not JSON"),
        ("classes", "nonsense", "its classes is not JSON"),
        ("mean", "[0.5, 0.5]", "its mean must be three numbers from 0 to 1"),
        ("mean", "[0.5, 0.5, NaN]", "its mean must be three numbers from 0 to 1"),
        ("mean", '["a", "b", "c"]', "its mean must be three numbers from 0 to 1"),
        ("mean", "0.5", "its mean must be a list"),
        ("std", "[0, 0.2, 0.2]", "its std must be three positive numbers"),
        ("std", "[1e999, 0.2, 0.2]", "its std must be three positive numbers"),
        ("std", "[true, true, true]", "its std must be three positive numbers"),
        ("size", "1000000000", "its size must be a whole number from 1 to 4096"),
        ("size", "-1", "its size must be a whole number"),
        ("size", "32.5", "its size must be a whole number"),
        ("size", "true", "its size must be a whole number"),
        ("size", "null", "its size must be a whole number"),
        ("margin", "0.5", "its margin must be a number from 1 to 10"),
        ("margin", "1e300", "its margin must be a number from 1 to 10"),
        ("margin", "NaN", "its margin must be a number from 1 to 10"),
        ("margin", "[1]", "its margin must be a number from 1 to 10"),
    ],
)
def test_metadata_that_are_nonsense(file, name, text, message):
    save_file(load_file(file), file, KNOWN | {name: text})
    assert message in refused(file)


@pytest.mark.parametrize("name", KNOWN)
def test_metadata_that_are_missing(file, name):
    save_file(load_file(file), file, {key: text for key, text in KNOWN.items() if key != name})
    assert f"its metadata lack {name}" in refused(file)


def variances(weights):
    return next(tensor for name, tensor in weights.items() if name.endswith("running_var"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("head.bias"), "the tensor head.bias is missing"),
        (lambda weights: weights.update(more=torch.zeros(1)), "the tensor more is not one of the network"),
        (lambda weights: weights.update({"head.bias": torch.zeros(2).half()}), "got torch.float16 of shape (2,)"),
        (lambda weights: weights["head.bias"].fill_(torch.nan), "head.bias contains non-finite numbers"),
        (lambda weights: variances(weights).fill_(-1.0), "running_var contains negative numbers"),
    ],
)
def test_tensors_that_are_not_the_networks(file, change, message):
    weights = load_file(file)
    change(weights)
    save_file(weights, file, KNOWN)
    assert message in refused(file)


def rewritten(file, change):
    """Give a file another header."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["head.bias"].update(shape=[-2]),
        lambda header: header["head.bias"].update(shape=[2.0]),
        lambda header: header["head.bias"].update(shape=[1 << 40, 1 << 40]),
        lambda header: header["head.bias"].update(shape=[True, True]),
        lambda header: header["head.bias"].update(dtype="F4096"),
        lambda header: header["head.bias"].update(dtype=["F32"]),
        lambda header: header["head.bias"].update(data_offsets=[0, 1 << 60]),
        lambda header: header["head.bias"].update(data_offsets=[8, 0]),
        lambda header: header.update({"head.bias": 3}),
        lambda header: header.update({"__metadata__": 3}),
        lambda header: header["__metadata__"].update(model=3),
    ],
)
def test_headers_that_are_nonsense(file, change):
    rewritten(file, change)
    assert "it is damaged (" in refused(file)


def test_files_cut_and_flipped(file):
    content, places = file.read_bytes(), random.Random(0)
    for place in [0, 1, 7, 8, 9, *places.sample(range(len(content)), 40)]:
        file.write_bytes(content[:place])
        assert "it is damaged (" in refused(file)
    start = 8 + int.from_bytes(content[:8], "little")
    for place in places.sample(range(start), 200):
        flipped = bytearray(content)
        flipped[place] ^= 1 << places.randrange(8)
        file.write_bytes(flipped)
        with contextlib.suppress(ValueError):  # and no other error
            pa.load_model(file)


MEASURE = """
import resource, sys
import particleaugment as pa
pa.load_model  # and what it imports
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    pa.load_model(sys.argv[1])
except ValueError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def test_a_huge_network_takes_no_memory(file):
    """WRN-100-64 has over a billion weights, 4.5 GB of them; the file that names it has 300 KB."""
    save_file(load_file(file), file, KNOWN | {"model": "wrn-100-64"})
    expected = network_tensors("wrn-100-64", 2)
    assert sum(tensor.numel() for tensor in expected.values()) > 10**9
    ended = subprocess.run([sys.executable, "-c", MEASURE, str(file)], capture_output=True, text=True, check=True)
    kib, _, sentence = ended.stdout.partition(" ")
    assert "cannot be used" in sentence
    assert int(kib) < 100_000


def test_a_sparse_file_of_a_terabyte(file):
    with open(file, "r+b") as opened:
        opened.truncate(1 << 40)
    assert "it has 1,099,511,627,776 bytes, and its header declares" in refused(file)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "text", "must be a tensor, got str"),
        (lambda: torch.zeros(2, 3).to_sparse(), "got one that is sparse_coo"),
        (lambda: torch.zeros(2, 3).to_sparse_csr(), "got one that is sparse_csr"),
        (lambda: torch.empty(2, 3, device="meta"), "got a tensor on the device meta"),
        (lambda: torch.zeros(1, 1).expand(2, 3), "must hold 6 numbers and holds fewer"),
        (lambda: torch.zeros(3, 2), "must be torch.float32 of shape (2, 3), got torch.float32 of shape (3, 2)"),
        (lambda: torch.zeros(2, 3).double(), "got torch.float64"),
        (lambda: torch.full((2, 3), torch.inf), "contains non-finite numbers"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 1.0, 0, torch.qint8), "got one that is quantized"),
        (lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)]), "got one that is nested"),
        (lambda: torch.nn.Parameter(torch.zeros(2, 3)), "must be a tensor, got Parameter"),
    ],
)
def test_tensors_of_all_kinds(make, message):
    assert message in mismatch({"x": make()}, {"x": torch.empty(2, 3, device="meta")})


def test_what_is_announced(file):
    found = open_weights(file)
    assert found.metadata == KNOWN
    assert found.tensors["head.weight"].shape == (2, 64)
    assert mismatch(found.read(network_tensors("wrn-10-1", 2)), network_tensors("wrn-10-1", 2)) is None
