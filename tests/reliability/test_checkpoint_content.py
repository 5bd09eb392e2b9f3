"""Checkpoints with a right checksum and wrong contents: refused before they are used, by verify and resume alike."""

import re
import resource
import shutil
import time

import pytest
import torch
from mutations import payload_of, run_state, sealed
from runs import StopAfter, command, finish, leave_out_report, on_few, result

from particleaugment.runs.verify import verify
from particleaugment.training.checkpoint import CheckpointError, find_checkpoints, last_good, load_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of tensors in beta


@pytest.fixture(scope="module")
def folders(tmp_path_factory, few_digits):
    """A run that was stopped in its third epoch, with two checkpoints, and one that was left alone."""
    made = tmp_path_factory.mktemp("runs")
    with on_few(few_digits) as patch:
        leave_out_report(patch)
        finish(made / "stopped", stop=StopAfter(18))
        finish(made / "undisturbed")
    return made


def of_model(change):
    def changed(state):
        state["model"]["head.bias"] = change(state["model"]["head.bias"])

    return changed


def of_momentum(change):
    def changed(state):
        kept = state["optimizer"]["state"][0]
        kept["momentum_buffer"] = change(kept["momentum_buffer"])

    return changed


def of_history(change):
    def changed(state):
        state["search"]["history"]["particles"] = change(state["search"]["history"]["particles"])

    return changed


def not_finite(value):
    def changed(tensor):
        tensor = tensor.clone()
        tensor[(0,) * tensor.dim()] = value
        return tensor

    return changed


def standing_for_gigabytes(tensor):
    return torch.zeros(1).expand(3 << 30)


TENSORS = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor, tensor]),
    "meta": lambda tensor: tensor.to("meta"),
    "text": lambda tensor: "fast",
    "number": lambda tensor: 0.5,
    "list": lambda tensor: tensor.tolist(),
    "none": lambda tensor: None,
    "gigabytes": standing_for_gigabytes,
    "expanded": lambda tensor: tensor.flatten()[:1].expand(tensor.numel()).view(tensor.shape),
    "nan": not_finite(torch.nan),
    "infinite": not_finite(torch.inf),
    "half": lambda tensor: tensor.half(),
    "double": lambda tensor: tensor.double() if tensor.dtype == torch.float32 else tensor.float(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "empty": lambda tensor: tensor.flatten()[:0],
    "longer": lambda tensor: torch.cat([tensor, tensor]),
    "turned": lambda tensor: tensor[None],
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor.float(), 1.0, 0, torch.qint8),
    "parameter": lambda tensor: torch.nn.Parameter(tensor),
}
CHANGES = {
    f"{place.__name__[3:]}, {name}": place(change)
    for place in (of_model, of_momentum, of_history)
    for name, change in TENSORS.items()
} | {
    "a buffer too few": lambda state: state["optimizer"]["state"].pop(3),
    "a buffer too many": lambda state: state["optimizer"]["state"].update({999: {}}),
    "a buffer by another name": lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.zeros(1)),
    "buffers by texts": lambda state: state["optimizer"].update(
        state={str(number): kept for number, kept in state["optimizer"]["state"].items()}
    ),
    "no buffers": lambda state: state["optimizer"].update(state={}),
    "parameters in another order": lambda state: state["optimizer"]["param_groups"][0]["params"].reverse(),
    "another momentum": lambda state: state["optimizer"]["param_groups"][0].update(momentum=0.5),
    "a learning rate that is a text": lambda state: state["optimizer"]["param_groups"][0].update(lr="0.1"),
    "a learning rate that is not finite": lambda state: state["optimizer"]["param_groups"][0].update(lr=float("inf")),
    "a learning rate below 0": lambda state: state["optimizer"]["param_groups"][0].update(lr=-1.0),
    "an epoch after the last": lambda state: state["position"].update(epoch=5),
    "an epoch that is true": lambda state: state["position"].update(epoch=True),
    "another seed": lambda state: state["search"].update(seed=7),
    "another filter": lambda state: state["search"]["filter"].update(eta=0.123),
    "epochs of a history that fall": lambda state: state["search"]["history"]["starts"].reverse(),
    "a number of losses below 0": lambda state: state["search"].update(observed=(1.0, -1)),
    "losses that are a tensor": lambda state: state["search"].update(observed=torch.tensor([1.5, 2.5])),
    "an epoch of a search that is a fraction": lambda state: state["search"].update(epoch=1.5),
    "a field of a search that nobody knows": lambda state: state["search"].update(colour=1),
    "steps that are texts": lambda state: state["search"]["history"].update(steps=["0", "1"]),
    "no data": lambda state: state.pop("data"),
    "no checksum": lambda state: state.update(metrics_sha256="0"),
    "times resumed below 0": lambda state: state.update(resumes=-1),
    "a field that is a tensor": lambda state: state.update(config=torch.zeros(3)),
    "a key that is a tuple": lambda state: state.update({(1, 2): 3}),
    "bytes": lambda state: state.update(more=b"bytes"),
    "a set": lambda state: state.update(more={1, 2}),
    "complex numbers": lambda state: state.update(more=1j),
    "a type": lambda state: state.update(more=torch.float32),
}


def spoil(path, change):
    state = load_checkpoint(path)
    change(state)
    path.write_bytes(sealed(payload_of(state)))


@pytest.mark.parametrize("name", CHANGES)
def test_wrong_contents_are_found(name, folders, tmp_path):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    older, newest = find_checkpoints(run)
    spoil(newest, CHANGES[name])
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=re.escape(str(newest))) as caught:
        load_checkpoint(newest)
    assert time.process_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "no memory is spent on it"
    assert "\n" not in str(caught.value)
    assert last_good(run) == f"the last good checkpoint is {older}"
    verdict = verify(run)
    [finding] = [finding for finding in verdict.findings if finding.part == "checkpoint"]
    assert not finding.sound
    assert verdict.state == "resumable"


@pytest.mark.parametrize("name", [*CHANGES][::7])
def test_the_older_one_is_used(name, folders, tmp_path, tiny, no_report):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    newest = find_checkpoints(run)[-1]
    spoil(newest, CHANGES[name])
    outcome = command("resume", run)
    assert outcome.exit_code == 0
    assert f"{newest} " in outcome.stdout
    assert "; using the previous one" in outcome.stdout
    assert result(run) == result(folders / "undisturbed")


@pytest.mark.parametrize("name", ["momentum, nan", "model, sparse", "history, longer"])
def test_no_checkpoint_is_good(name, folders, tmp_path, tiny):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    for path in find_checkpoints(run):
        spoil(path, CHANGES[name])
    assert last_good(run) == "no checkpoint can be used"
    assert verify(run).state == "broken"
    outcome = command("resume", run, "-q")
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("particleaugment: no checkpoint can be used: ")
    assert len(outcome.stderr.splitlines()) == 1


def refused(tmp_path, state):
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload_of(state)))
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert time.process_time() - start < 3
    return str(caught.value)


def test_lists_that_name_each_other_again_and_again(tmp_path):
    """Ten lists, each of ten times the one before: ten thousand million values from a few bytes."""
    value = [0] * 10
    for _ in range(6):
        value = [value] * 10
    assert "repeats the same values too often" in refused(tmp_path, run_state() | {"more": value})
    for _ in range(20):
        value = [value]
    assert "nested too deeply" in refused(tmp_path, run_state() | {"more": value})


def test_numbers_that_are_named_again_and_again(tmp_path):
    shared = torch.zeros(10_000)
    more = {str(number): shared.view(100, 100) for number in range(1000)}
    assert "repeats the same numbers too often" in refused(tmp_path, run_state() | {"more": more})


def test_a_file_of_a_terabyte(tmp_path):
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload_of(run_state())))
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="is larger than 8 GiB"):
        load_checkpoint(path)


def test_weight_zero_is_sound(tmp_path):
    state = run_state()
    state["search"]["history"]["log_weights"][1] = torch.tensor([0.0, -torch.inf, -torch.inf], dtype=torch.float64)
    path = tmp_path / "checkpoint-00000000.pt"
    path.write_bytes(sealed(payload_of(state)))
    assert load_checkpoint(path)["search"]["history"]["log_weights"].isneginf().any()
