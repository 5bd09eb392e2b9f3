"""What a clone learns from and how: samples of every form, and batches that make steps."""

import copy
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from probing import Pictures, everything, learner_of, network, pictures, run
from torch import nn
from torch.utils.data import TensorDataset
from toy import cross_entropy

from particleaugment.data.samples import Samples
from particleaugment.trainee.learner import NonFiniteLoss

# Samples.


def forms():
    images, labels = pictures(12)
    numbers = labels.tolist()
    return {
        "pair": (images, labels),
        "list": [images, numbers],
        "TensorDataset": TensorDataset(images, labels),
        "targets": Pictures(images, numbers, targets=numbers),
        "targets-tensor": Pictures(images, labels, targets=labels),
        "labels": Pictures(images, numbers, labels=numbers),
        "read": Pictures(images, numbers),
    }


@pytest.mark.parametrize("form", forms())
def test_samples_of_every_form(form):
    images, labels = pictures(12)
    dataset = forms()[form]
    samples = Samples(dataset)
    assert len(samples) == 12
    assert samples.dataset is dataset
    assert torch.equal(samples.labels, labels)
    assert samples.labels.dtype == torch.int64
    chosen = torch.tensor([5, 0, 11, 5])
    got, targets = samples.gather(chosen)
    assert torch.equal(got, images[chosen])
    assert torch.equal(targets, labels[chosen])


def test_known_labels_are_not_read_through_the_items():
    images, labels = pictures(12)
    told, untold = Pictures(images, labels, targets=labels), Pictures(images, labels)
    _ = Samples(told).labels
    _ = Samples(untold).labels
    assert told.asked == []
    assert untold.asked == list(range(12))


@pytest.mark.parametrize("as_items", [False, True])
def test_soft_targets_are_stratified_by_their_likeliest_class(as_items):
    images, labels = pictures(12)
    soft = torch.nn.functional.one_hot(labels, 3).float() * 0.9 + 0.1 / 3
    samples = Samples(Pictures(images, soft) if as_items else (images, soft))
    assert torch.equal(samples.labels, labels)
    assert torch.equal(samples.gather(torch.tensor([1, 2]))[1], soft[1:3])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4)), r"images must be uint8 \[N, C, H, W\], got torch.float32"),
        ((torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3)), r"must be uint8 .* shape \(3, 8, 8\)"),
        ((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(3)), "4 images but 3 targets"),
    ],
)
def test_samples_refuse_what_they_cannot_use(dataset, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Samples(dataset)


@pytest.mark.parametrize(("picture", "kind"), [(torch.zeros(3, 8, 8), "torch.float32"), ([[0]], "list")])
def test_items_must_be_uint8(picture, kind):
    samples = Samples(Pictures([picture] * 3, [0, 1, 2]))
    with pytest.raises(TypeError, match=f"an image must be a uint8 tensor, .* got {kind}; return it from the data set"):
        samples.gather(torch.tensor([1]))


# The learner.


def test_accumulated_gradients_are_those_of_one_large_batch():
    images, labels = pictures(32)
    results = []
    for accumulate in (1, 4):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
        nn.init.constant_(model[1].weight, 0.01)
        nn.init.zeros_(model[1].bias)
        learner = learner_of(model, accumulate=accumulate)
        means = [learner.train_batch(*part) for part in zip(images.chunk(accumulate), labels.chunk(accumulate))]
        assert learner._pending == 0
        results.append((model[1].weight.detach().clone(), torch.tensor(means).mean()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(results[0][0], torch.full_like(results[0][0], 0.01), atol=1e-5)


def test_no_step_is_taken_before_its_batches_are_there():
    images, labels = pictures(6)
    learner = learner_of(accumulate=3)
    before = copy.deepcopy(list(learner.model.parameters()))
    for _ in range(2):
        learner.train_batch(images, labels)
    torch.testing.assert_close(list(learner.model.parameters()), before, rtol=0, atol=0)
    learner.flush()
    assert learner._pending == 0
    assert not torch.equal(learner.model[0].weight, before[0])
    stepped = learner.model[0].weight.detach().clone()
    learner.flush()
    assert torch.equal(learner.model[0].weight, stepped), "nothing waits, so nothing happens"


def test_a_scaled_loss_takes_the_same_step():
    images, labels = pictures(16)
    weights = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**12)):
        learner = learner_of(network(dropout=0.0), scaler=scaler, accumulate=2)
        for part in zip(images.chunk(2), labels.chunk(2)):
            learner.train_batch(*part)
        weights.append([parameter.detach() for parameter in learner.model.parameters()])
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)  # a power of two scales without rounding


def test_a_loss_that_is_not_finite_takes_no_step():
    images, labels = pictures(6)
    learner = learner_of(loss=lambda logits, targets: cross_entropy(logits, targets) * torch.inf)
    before = everything(learner)[:3]
    with pytest.raises(NonFiniteLoss, match="the training loss is inf"):
        learner.train_batch(images, labels)
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert torch.equal(learner.model[0].weight, before[0]["0.weight"])
    assert not learner.optimizer.state


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (nn.CrossEntropyLoss(), r"got \(\); use reduction='none'"),
        (lambda logits, targets: logits, r"got \(6, 3\); average it over classes: .mean\(1\)"),
    ],
)
def test_a_loss_of_the_wrong_shape_is_explained(loss, advice):
    learner = learner_of(loss=loss)
    images, labels = pictures(6)
    with pytest.raises(ValueError, match=rf"must return one value per sample, \[6\], {advice}"):
        learner.train_batch(images, labels)
    with pytest.raises(ValueError, match="one value per sample"):
        run(learner, Samples(pictures()))


class Wrapped(nn.Module):
    """A network whose output is packed into something else."""

    def __init__(self, pack):
        super().__init__()
        self.network, self.pack = network(dropout=0.0), pack

    def forward(self, x):
        return self.pack(self.network(x))


@pytest.mark.parametrize(
    "pack",
    [
        lambda x: {"logits": x, "features": None},
        lambda x: SimpleNamespace(logits=x),
        lambda x: namedtuple("O", "logits")(x),
    ],
    ids=["dict", "object", "named tuple"],
)
def test_models_may_name_their_logits(pack):
    images, labels = pictures(6)
    plain, packed = learner_of(network(dropout=0.0)), learner_of(Wrapped(pack))
    assert packed.train_batch(images, labels) == plain.train_batch(images, labels)
    assert torch.equal(packed.losses(images, labels), plain.losses(images, labels))


@pytest.mark.parametrize(
    ("pack", "got"),
    [
        (lambda x: {"out": x, "aux": x}, "a dict with out, aux"),
        (lambda x: {}, "a dict with nothing"),
        (lambda x: {"logits": [x]}, "a dict with logits"),
        (lambda x: (x, x), "tuple"),
        (lambda x: [x], "list"),
        (lambda x: None, "NoneType"),
    ],
)
def test_models_without_logits_are_explained(pack, got):
    learner = learner_of(Wrapped(pack))
    with pytest.raises(TypeError, match=f"a model must return logits, .* as 'logits', got {got}; wrap it in a module"):
        learner.train_batch(*pictures(6))
