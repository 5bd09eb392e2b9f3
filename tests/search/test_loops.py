"""Everyone's training loop: precision, accumulation, compiled models, optimizers, and what may follow us."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from toy import IMAGES, LABELS, cross_entropy, network, preprocess, search_of, step

from particleaugment.trainee.learner import Learner


def loader(search):
    return DataLoader(search.training_set(), batch_size=12)


def train(search, model, optimizer, **precision):
    """A loop as users write it; returns the mean loss of every epoch."""
    autocast = precision.get("autocast", lambda: torch.autocast("cpu", enabled=False))
    scaler = precision.get("scaler") or torch.amp.GradScaler("cpu", enabled=False)
    accumulate = precision.get("accumulate", 1)
    losses = []
    for epoch in search.epochs():
        model.train()
        total = 0.0
        for number, (images, labels, ids) in enumerate(loader(search), 1):
            with autocast():
                loss = cross_entropy(model(preprocess(search.augment(images, ids))).float(), labels).mean()
            scaler.scale(loss / accumulate).backward()
            if number % accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            total += float(loss.detach())
        losses.append(total / 4)
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        record = step(search, model, optimizer, **precision)
        if epoch < search.num_epochs:
            assert len(record.delta) == 4
            torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    return losses


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.005, amsgrad=True),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.005, foreach=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.005, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.002, momentum=0.9, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.005),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_of_torch(name):
    search, model = search_of(epochs=3), network()
    losses = train(search, model, OPTIMIZERS[name](model.parameters()))
    assert losses[-1] < losses[0]
    assert search.steps_taken == 2


def test_optimizers_that_need_a_closure_are_refused():
    search, model = search_of(), network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TypeError, match=r"LBFGS needs a closure to take steps, .* such as SGD or AdamW"):
        step(search, model, torch.optim.LBFGS(model.parameters()))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_autocast_scaler_accumulation_and_a_compiled_model_together():
    search, model = search_of(epochs=4), torch.compile(network(), backend="aot_eager")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    losses = train(search, model, optimizer, autocast=autocast, scaler=scaler, accumulate=2)
    assert losses[-1] < losses[0]
    assert search.skipped_steps < 3
    assert scaler.get_scale() == 2.0**10


def test_the_clones_gradient_is_clipped():
    images, labels = IMAGES[:12], LABELS[:12]
    moved = []
    for limit, scaler in ((None, None), (0.01, None), (0.01, torch.amp.GradScaler("cpu", init_scale=2.0**10))):
        model = network()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        Learner(model, optimizer, cross_entropy, preprocess, scaler=scaler, max_grad_norm=limit).train_batch(
            images, labels
        )
        change = [new.detach() - old for new, old in zip(model.parameters(), before)]
        moved.append(float(torch.cat([part.flatten() for part in change]).norm()))
    assert moved[0] > 0.05
    assert moved[1:] == pytest.approx([0.01, 0.01], rel=1e-3)


@dataclass
class Output:
    logits: torch.Tensor


class Wrapped(nn.Module):
    """Returns its logits in an object, as Hugging Face models do."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, images):
        return Output(self.inner(images))


def record_of(model, optimizer, **settings):
    return step(search_of(), model, optimizer, **settings)


def test_models_that_return_an_object_with_logits():
    plain, wrapped = network(), Wrapped()
    expected = record_of(plain, torch.optim.SGD(plain.parameters(), lr=0.05))
    assert record_of(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05)) == expected


class LazyOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer and leaves steps out, as Accelerate's does while gradients accumulate."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        pass


def test_the_optimizer_inside_a_wrapper_takes_the_clones_steps():
    plain, wrapped = network(), network()
    expected = record_of(plain, torch.optim.SGD(plain.parameters(), lr=0.05))
    assert record_of(wrapped, LazyOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.05))) == expected


# What may follow us.


def mixup(images, labels, share, generator):
    """MixUp as everyone writes it: float images and soft labels, each mixed with another of the batch."""
    soft, other = nn.functional.one_hot(labels, 3).float(), torch.randperm(len(images), generator=generator)
    return share * images + (1 - share) * images[other], share * soft + (1 - share) * soft[other]


def test_mixup_comes_after_us():
    search, model = search_of(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for epoch in range(1, 5):
        search.begin_epoch(epoch)
        total = 0.0
        for images, labels, ids in loader(search):
            augmented = preprocess(search.augment(images, ids))
            mixed, soft = mixup(augmented, labels, 0.8, generator)
            assert not torch.equal(mixed, augmented)
            loss = cross_entropy(model(mixed), soft).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        losses.append(total / 4)
        # The filter judges particles on images that are not mixed, with the plain labels.
        record = step(search, model, optimizer)
        assert record.step == epoch
    assert losses[-1] < losses[0]
