"""What every filter must do, and a filter of another kind: a controller of strength, whose policy has no particles."""

import math
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import pytest
import torch
from searching import learning, pictures, step
from toy import IMAGES, LABELS, cross_entropy, preprocess

import particleaugment as pa
from particleaugment.data.samples import Samples
from particleaugment.search.filters import FILTERS, filter_settings
from particleaugment.search.history import packed, unpacked
from particleaugment.search.protocol import Filter, FilterRecord, FilterState
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner


@dataclass(frozen=True, kw_only=True)
class StrengthState(FilterState):
    """A strength, and two averaged losses."""

    strength: float = 0.5
    training_loss: float = 0.0
    held_out_loss: float = 0.0

    def to_dict(self):
        own = ("strength", "training_loss", "held_out_loss")
        return super().to_dict() | {name: getattr(self, name) for name in own}

    def restored(self, saved):
        own = {name: saved[name] for name in ("strength", "training_loss", "held_out_loss")}
        return replace(super().restored(saved), **own)


@dataclass(frozen=True, kw_only=True)
class StrengthRecord(FilterRecord):
    """The strength after a step."""

    strength: float


@dataclass(frozen=True, kw_only=True)
class StrengthFilter(Filter[StrengthState]):
    """Makes training as hard as held-out samples are."""

    gain: float = 0.2
    every: int | str = "auto"
    warmup: int = 1
    measure_size: int | float = 12

    kind: ClassVar[str] = "test-strength"

    def init(self, seed, ops):
        return StrengthState(seed=seed, ops=ops)

    def policy(self, state):
        return pa.RandAugment(n=2, m=10 * state.strength, ops=state.ops)

    def step(self, state, subject, *, epoch, epochs):
        nothing = pa.ParticlePolicy(torch.zeros(1, len(state.ops)), [1.0], ops=state.ops)
        subject.trainee.model.eval()
        _, losses = subject.trainee.measure(
            nothing, subject.split[1], epoch, progress=subject.progress, phase="measure"
        )
        subject.trainee.model.train()
        error = math.log(float(losses.mean()) / subject.training_loss)
        strength = min(1.0, max(0.0, state.strength + self.gain * error))
        new = replace(
            state,
            steps=state.steps + 1,
            strength=strength,
            training_loss=subject.training_loss,
            held_out_loss=float(losses.mean()),
        )
        return new, StrengthRecord(step=new.steps, ops_per_image=2.0, strength=strength)

    def schedule(self, history, epochs):
        return self.policy(history[-1][1])

    @property
    def held_out(self):
        return self.measure_size


@pytest.fixture(params=[*FILTERS.values(), StrengthFilter], ids=lambda kind: kind.kind)
def searching(request):
    """A search by each filter that has taken two steps, and its records."""
    settings = {"measure_size": 12, "num_particles": 4, "clone_size": 24, "clone_epochs": 2}
    known = request.param.__dataclass_fields__
    filter = request.param(**{name: value for name, value in settings.items() if name in known})
    search = pa.ParticleAugment(filter, epochs=5, seed=7)
    search.training_ids(LABELS)
    model, optimizer = learning()
    learner = Learner(model, optimizer, cross_entropy, preprocess)
    trainee = EagerTrainee(learner, Samples((IMAGES, LABELS)), search.training_augmentation(), 8)
    records = []
    for epoch in (1, 2):
        search.set_epoch(epoch)
        records.append(search.step_with(trainee, LABELS, training_loss=0.9))
    return search, records


def test_a_search_by_any_filter_counts_its_steps_and_continues(searching):
    search, records = searching
    assert [record.step for record in records] == [1, 2]
    assert search.steps_taken == search.state.steps == 2
    assert all(record.seconds["filter"] >= 0 for record in records)
    assert all(math.isfinite(record.ops_per_image) for record in records)
    again = pa.ParticleAugment(search.filter, epochs=5, seed=7)
    again.load_state_dict(search.state_dict())
    assert again.state == search.state
    assert again.policy == search.policy
    assert again.schedule(5) == search.schedule(5)


def test_states_are_immutable_and_come_back_from_plain_values(searching):
    search, _ = searching
    with pytest.raises(AttributeError):
        search.state.steps = 9
    history = [(1, search.filter.init(7, search.ops)), (2, search.state)]
    saved = packed(history)
    plain = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in saved.values()]
    assert all(len(column) == 2 for column in plain)
    assert unpacked(saved, search.filter.init(7, search.ops)) == history


def test_what_is_held_out_is_what_the_filter_says(searching):
    search, _ = searching
    left_out = len(LABELS) - len(search.training_ids(LABELS, epoch=1))
    assert left_out == search.filter.held_out
    assert search.filter.holds_out_in(1, 5) == bool(left_out)


def test_filters_are_told_apart_by_their_settings():
    assert filter_settings(pa.GapFilter()) == {"kind": "gap"} | asdict(pa.GapFilter())
    assert filter_settings(pa.PaperFilter(velocity=(0.1, 0.2)))["velocity"] == [0.1, 0.2]
    assert len(FILTERS) == 7


def test_a_controller_without_particles_steers_by_the_training_loss():
    search, (model, optimizer) = pa.ParticleAugment(StrengthFilter(), epochs=5), learning()
    learner = Learner(model, optimizer, cross_entropy, preprocess)
    trainee = EagerTrainee(learner, Samples((IMAGES, LABELS)), search.training_augmentation(), 8)
    search.training_ids(LABELS)
    search.set_epoch(1)
    first = search.policy
    images, ids = pictures()[0], torch.arange(48)
    assert torch.equal(search.augment(images, ids), pa.apply(images, first.sample(ids, 1, 0, (8, 8))))
    easy = search.step_with(trainee, LABELS, training_loss=0.1)
    assert easy.strength > 0.5
    assert search.policy == pa.RandAugment(n=2, m=10 * easy.strength)
    assert torch.equal(search.augment(images, ids), pa.apply(images, search.policy.sample(ids, 1, 0, (8, 8))))
    hard = search.step_with(trainee, LABELS, training_loss=9.0)
    assert hard.strength < easy.strength
    assert search.state.training_loss == 9.0


def test_what_is_no_filter_is_refused():
    with pytest.raises(TypeError, match=r"filter must be a filter, such as pa.GapFilter\(\).*, got int"):
        pa.ParticleAugment(50)
    search, (model, optimizer) = pa.ParticleAugment(pa.GapFilter(measure_size=12), epochs=5), learning()
    with pytest.raises(ValueError, match="make the training loader"):
        step(search, model, optimizer)
