"""A filter of a new kind is one file: a controller without particles makes training as hard as unseen images are.

It needs the training losses, which loops hand over by ``observe``, and has a policy and a schedule of its own.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch.utils.data import DataLoader
from toy import IMAGES, LABELS, cross_entropy, network, preprocess

import particleaugment as pa
from particleaugment.search.filter_base import Filter, FilterRecord, FilterState


@dataclass(frozen=True)
class Strength(pa.Policy):
    """Two random ops of one strength."""

    strength: float

    kind: ClassVar[str] = "test-strength"
    ops: ClassVar[tuple[str, ...]] = pa.OPS

    def sample(self, ids, epoch=0, seed=0, size=(32, 32)):
        return pa.RandAugment(n=2, m=10 * self.strength).sample(ids, epoch, seed, size)

    def numbers(self):
        return torch.tensor([self.strength], dtype=torch.float64)

    def with_numbers(self, numbers):
        return Strength(float(numbers))


@dataclass(frozen=True)
class StrengthByEpoch(pa.Policy):
    """Strengths, each from its epoch on."""

    starts: tuple[int, ...]
    strengths: tuple[float, ...]

    kind: ClassVar[str] = "test-strengths"
    ops: ClassVar[tuple[str, ...]] = pa.OPS

    def at(self, epoch):
        return Strength([s for start, s in zip(self.starts, self.strengths) if start <= epoch][-1])

    def sample(self, ids, epoch=0, seed=0, size=(32, 32)):
        return self.at(epoch).sample(ids, epoch, seed, size)


@dataclass(frozen=True, kw_only=True)
class StrengthState(FilterState):
    """The strength, and the loss that the last step was given."""

    strength: float = 0.5
    training_loss: float = 0.0

    def to_dict(self):
        return super().to_dict() | {"strength": self.strength, "training_loss": self.training_loss}

    def restored(self, saved):
        own = {name: saved[name] for name in ("strength", "training_loss")}
        return replace(super().restored(saved), **own)


@dataclass(frozen=True, kw_only=True)
class StrengthRecord(FilterRecord):
    """The strength after a step."""

    strength: float


@dataclass(frozen=True, kw_only=True)
class StrengthFilter(Filter[StrengthState]):
    """Moves the strength until training under augmentation is as hard as plain held-out samples are."""

    gain: float = 0.2
    every: int | str = "auto"
    warmup: int = 1
    measure_size: int | float = 12

    kind: ClassVar[str] = "test-strength"
    needs_training_loss: ClassVar[bool] = True

    def init(self, seed, ops, epochs):
        return StrengthState(seed=seed, ops=ops)

    def policy(self, state):
        return Strength(state.strength)

    def step(self, state, subject, *, epoch, epochs):
        subject.trainee.model.eval()
        unseen = float(subject.trainee.losses(subject.split[1], progress=subject.progress).mean())
        subject.trainee.model.train()
        error = math.log(unseen / subject.training_loss)
        strength = min(1.0, max(0.0, state.strength + self.gain * error))
        new = replace(state, steps=state.steps + 1, strength=strength, training_loss=subject.training_loss)
        return new, StrengthRecord(step=new.steps, ops_per_image=2.0, strength=strength)

    def schedule(self, history, epochs):
        return StrengthByEpoch(*zip(*((start, state.strength) for start, state in history)))

    def held_out_of(self, samples):
        return self.measure_size


def search_of(epochs=4):
    return pa.ParticleAugment((IMAGES, LABELS), epochs=epochs, filter=StrengthFilter(), seed=3)


class Loop:
    """A training loop that notes what it sees."""

    def __init__(self, search, in_workers=False):
        self.search, self.in_workers, self.model = search, in_workers, network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
        transform = pa.ImageTransform(search) if in_workers else None
        self.loader = DataLoader(search.training_set(transform), batch_size=8, **(options if in_workers else {}))
        self.seen, self.means = [], []

    def run(self, stop_after=None, observe=lambda number: True):
        for epoch in self.search.epochs():
            policy, sums = self.search.policy, []
            for number, (images, labels, ids) in enumerate(self.loader):
                augmented = images if self.in_workers else self.search.augment(images, ids)
                plain = IMAGES[ids]
                assert torch.equal(augmented, pa.apply(plain, policy.sample(ids, epoch, 3, (8, 8))))
                losses = cross_entropy(self.model(preprocess(augmented)), labels)
                if observe(number):
                    self.search.observe(ids, losses)
                self.optimizer.zero_grad()
                losses.mean().backward()
                self.optimizer.step()
                sums.append(losses.detach().double().sum())
                self.seen.append((epoch, ids.tolist(), augmented))
            self.search.step(self.model, loss=cross_entropy, preprocess=preprocess)
            self.means.append(float(sum(sums)) / 48)
            if epoch == stop_after:
                return


@pytest.mark.parametrize("in_workers", [False, True])
def test_it_steers_by_the_losses_that_the_loop_observes(in_workers):
    search = search_of()
    loop = Loop(search, in_workers)
    loop.run()
    assert search.steps_taken == 3
    assert search.state.training_loss == pytest.approx(loop.means[2], rel=1e-12)
    assert len({search.schedule().at(epoch) for epoch in (1, 2, 3, 4)}) == 4
    assert search.schedule().at(4) == search.policy != Strength(0.5)
    assert {len(ids) for _, ids, _ in loop.seen} == {8}


def test_a_resumed_search_goes_on():
    straight, stopped, resumed = search_of(), search_of(), search_of()
    loop, first = Loop(straight), Loop(stopped)
    loop.run()
    first.run(stop_after=2)
    resumed.load_state_dict(stopped.state_dict())
    rest = Loop(resumed)
    rest.model.load_state_dict(first.model.state_dict())
    rest.run()
    assert resumed.state == straight.state
    assert resumed.schedule() == straight.schedule()
    assert rest.means == loop.means[2:]


def test_losses_that_were_observed_are_kept_until_the_step():
    """Trainers save between the last batch of an epoch and its step."""
    search, again = search_of(), search_of()
    search.begin_epoch(1)
    ids = search.training_set().ids
    search.augment(IMAGES[ids], ids)
    search.observe(ids, torch.linspace(0.5, 1.5, len(ids)))
    again.load_state_dict(search.state_dict())
    model = network()
    records = [each.step(model, loss=cross_entropy, preprocess=preprocess) for each in (search, again)]
    assert records[0] == records[1]
    assert again.state.training_loss == pytest.approx(1.0)


@pytest.mark.parametrize(("batches", "observed"), [(0, 0), (2, 16), (3, 24)])
def test_a_loop_that_observes_too_little_is_told(batches, observed):
    loop = Loop(search_of())
    if batches == 3:
        loop.run(observe=lambda number: number < batches)
        assert loop.search.steps_taken == 3, "more than half, as a loader that drops its last batch has"
        return
    message = (
        rf"the filter needs the training losses, but epoch 1 observed {observed} of 48 samples; call search.observe"
    )
    with pytest.raises(ValueError, match=message):
        loop.run(observe=lambda number: number < batches)
    assert loop.search.steps_taken == 0


def test_epochs_of_fewer_batches_than_the_data_set_has():
    search, model = search_of(), network()
    for _ in search.epochs():
        for number, (images, _, ids) in enumerate(DataLoader(search.training_set(), batch_size=8)):
            if number == 2:
                break
            search.augment(images, ids)
            search.observe(ids, torch.full((8,), 0.5))
        search.step(model, loss=cross_entropy, preprocess=preprocess)
    assert search.steps_taken == 3
    assert search.state.training_loss == 0.5


def test_what_observe_takes():
    search = search_of()
    search.begin_epoch(1)
    with pytest.raises(ValueError, match=r"one loss per sample, \[4\], or their mean, \[\], got \(4, 8\); average"):
        search.observe(torch.arange(4), torch.ones(4, 8))
    losses = torch.ones(4, 1, requires_grad=True)
    search.observe(torch.arange(4), losses)
    assert search.state_dict()["observed"] == ((4.0, 4),)
    search.observe(torch.arange(2), torch.tensor(0.5, requires_grad=True))
    assert search.state_dict()["observed"] == ((5.0, 6),)


def test_filters_that_need_no_losses_take_them_all_the_same():
    paper = pa.PaperFilter(num_particles=4, clone_size=24, measure_size=12)
    search, model = pa.ParticleAugment((IMAGES, LABELS), epochs=2, filter=paper), network()
    clone = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.05), "batch_size": 12}
    for _ in search.epochs():
        for images, _, ids in DataLoader(search.training_set(), batch_size=36):
            search.augment(images, ids)
            search.observe(ids, torch.ones(len(ids)))
        search.step(model, loss=cross_entropy, preprocess=preprocess, **clone)
    assert search.steps_taken == 1


@pytest.mark.parametrize("losses", [[1.0] * 4, 0.5, None, torch.ones(4, dtype=torch.complex64)])
def test_what_observe_refuses(losses):
    search = search_of()
    search.begin_epoch(1)
    with pytest.raises(TypeError, match=r"^search.observe takes a tensor of losses, got "):
        search.observe(torch.arange(4), losses)


@pytest.mark.parametrize("epoch", [0, -1, 1.0, 1.5, True, "1", None, 10**6])
def test_epochs_that_cannot_begin(epoch):
    with pytest.raises((TypeError, ValueError), match="epoch"):
        search_of().begin_epoch(epoch)
