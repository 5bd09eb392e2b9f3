"""The difficulty filter: where its strength goes, what it measures, and what it remembers."""

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import particleaugment as pa
from particleaugment.search.difficulty import STEERED, DifficultyState, own_statistics
from particleaugment.search.filter_base import Subject
from particleaugment.training.records import RecordError, check_record

OPS = ("Rotate", "Color", "Equalize")
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def steered(filter, epochs, losses):
    """Take the steps of a run; ``losses(strength, step)`` returns the training and the held-out loss."""
    state = filter.init(0, OPS)
    strengths = []
    for step in range(1, int(STEERED * epochs) + 1):
        state = filter.updated(
            DifficultyState(seed=0, ops=OPS, steps=step, strength=state.strength, error=state.error),
            *losses(state.strength, step),
            epochs,
        )
        strengths.append(state.strength)
    return strengths


@PROPERTY
@given(
    harder=st.floats(0.05, 1.0),
    held_out=st.floats(0.2, 2.0),
    learned=st.floats(0.01, 0.1),
    epochs=st.integers(100, 400),
)
def test_a_simulated_network_reaches_the_set_point_by_two_fifths_of_training(harder, held_out, learned, epochs):
    filter = pa.DifficultyFilter()

    def losses(strength, step):
        return learned * held_out + harder * held_out * strength, held_out

    strengths = steered(filter, epochs, losses)
    wanted = min(filter.strongest, (1 - learned) / harder)
    for strength in strengths[int(0.4 * epochs) :]:
        assert strength == pytest.approx(wanted, rel=0.15)


def test_where_plain_training_is_as_hard_as_new_samples_nothing_is_added():
    assert max(steered(pa.DifficultyFilter(), 100, lambda strength, step: (0.5 + strength, 0.4))) == 0


def test_where_augmentation_does_not_raise_the_loss_strength_goes_to_its_end():
    assert steered(pa.DifficultyFilter(), 100, lambda strength, step: (0.01, 1.0))[-1] == 4


def test_a_single_jump_of_the_held_out_loss_counts_for_little():
    def losses(jump):
        return lambda strength, step: (0.2 + 0.4 * strength, 50.0 if jump and step == 40 else 0.8)

    calm, disturbed = (steered(pa.DifficultyFilter(), 100, losses(jump)) for jump in (False, True))
    assert max(abs(a - b) for a, b in zip(calm, disturbed)) < 0.5


@PROPERTY
@given(
    strength=st.floats(0, 4),
    error=st.floats(-1, 1),
    training=st.floats(0, 1e3),
    held_out=st.floats(0, 1e3),
    easier=st.floats(0, 1),
)
def test_strength_keeps_its_bounds_and_falls_with_the_training_loss(strength, error, training, held_out, easier):
    filter = pa.DifficultyFilter()
    state = DifficultyState(seed=0, ops=OPS, steps=5, strength=strength, error=error)
    harder, softer = (
        filter.updated(state, loss, held_out, epochs=50).strength for loss in (training, easier * training)
    )
    assert 0 <= harder <= softer <= 4


def test_strength_is_the_number_of_ops_and_the_ops_are_even():
    filter = pa.DifficultyFilter(semantics="timm-increasing")
    state = DifficultyState(seed=0, ops=("Rotate", "Color"), strength=2.5)
    policy = filter.policy(state)
    assert policy.ops_per_image == pytest.approx(2.5)
    assert policy.inclusion == pytest.approx({"Rotate": 1.25, "Color": 1.25})
    assert filter.init(0, pa.OPS).ops == pa.TrivialAugment().ops


def test_it_starts_with_nothing_and_holds_out_until_the_last_fifth():
    filter = pa.DifficultyFilter()
    assert filter.policy(filter.init(0, OPS)).ops_per_image == 0
    assert [filter.holds_out_in(epoch, 10) for epoch in (1, 8, 9, 10)] == [True, True, False, False]


class FixedLosses:
    """Stands where a trainee would, with losses that are given."""

    def __init__(self, value):
        self.model, self.value = nn.Linear(1, 1), value

    def losses(self, ids, *, progress):
        return torch.full((len(ids),), self.value, dtype=torch.float64)


def subject(held_out, training_loss):
    split = torch.arange(8), torch.arange(8, 12)
    return Subject(
        trainee=FixedLosses(held_out), labels=torch.zeros(12).long(), split=split, training_loss=training_loss
    )


def test_a_step_says_what_it_measured():
    filter = pa.DifficultyFilter()
    state, record = filter.step(filter.init(0, OPS), subject(1.0, 0.5), epoch=1, epochs=50)
    assert (record.step, record.training_loss, record.held_out_loss, record.difficulty) == (1, 0.5, 1.0, 0.5)
    assert state.strength == record.strength == pytest.approx(60 / 50 * math.log(2))
    later, record = filter.step(state, subject(9.0, 0.1), epoch=41, epochs=50)
    assert later.strength == state.strength
    assert (record.step, record.held_out_loss) == (2, None)


def test_losses_that_are_not_finite_are_skipped_and_said():
    filter = pa.DifficultyFilter()
    state, record = filter.step(filter.init(0, OPS), subject(math.nan, 0.5), epoch=1, epochs=50)
    assert (state.skipped, state.strength) == (1, 0)
    assert record.skip_reason == "the held-out loss is nan, so the difficulty is not known"


def test_in_ones_own_loop_it_steers_by_the_losses_that_it_is_shown():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(60) % 3
    search = pa.ParticleAugment((images, labels), epochs=6, seed=0, filter=pa.DifficultyFilter(measure_size=12))
    model, loss = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), nn.CrossEntropyLoss(reduction="none")
    for epoch in search.epochs():
        ids = torch.tensor([search.training_set()[number][2] for number in range(len(search.training_set()))])
        held_out = len(set(ids.tolist()) & set(search.division.split[1].tolist()))
        assert (held_out == 0) == (epoch <= 5)
        losses = loss(model(search.augment(images[ids], ids) / 255), labels[ids])
        search.observe(ids, losses / 10)  # as if they were memorised
        record = search.step(model, loss=loss, preprocess=lambda images: images / 255)
        if epoch < 5:
            assert record.training_loss == pytest.approx(float(losses.detach().mean()) / 10)
            assert record.difficulty == pytest.approx(record.training_loss / record.held_out_loss)
    assert search.policy.ops_per_image > 1


def test_a_loop_that_shows_no_losses_is_stopped():
    data = torch.zeros(60, 3, 8, 8, dtype=torch.uint8), torch.arange(60) % 3
    search = pa.ParticleAugment(data, epochs=6, seed=0, filter=pa.DifficultyFilter(measure_size=12))
    model, loss = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), nn.CrossEntropyLoss(reduction="none")
    next(iter(search.epochs()))
    image, _, number = search.training_set()[0]
    search.augment(image[None], torch.tensor([number]))
    with pytest.raises(ValueError, match="observe"):
        search.step(model, loss=loss, preprocess=lambda images: images / 255)


def test_its_state_comes_back():
    state = DifficultyState(seed=3, ops=OPS, steps=7, skipped=1, strength=1.25, error=-0.5)
    assert pa.DifficultyFilter().init(3, OPS).restored(state.to_dict()) == state


def test_a_schedule_replays_its_mixtures(tmp_path):
    filter = pa.DifficultyFilter()
    first = filter.init(0, OPS)
    later = DifficultyState(seed=0, ops=OPS, steps=1, strength=1.5)
    schedule = filter.schedule([(1, first), (4, later)], epochs=10)
    assert schedule.at(3) == filter.policy(first)
    assert schedule.at(4) == filter.policy(later)
    schedule.save(tmp_path / "policy.json")
    assert pa.Schedule.load(tmp_path / "policy.json") == schedule


def test_batch_norm_uses_the_batch_and_keeps_its_averages():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    model[1].eval()
    images = torch.randn(16, 3, 8, 8, generator=generator) * 5 + 3
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    with own_statistics(model), torch.no_grad():
        found = model(images)
    assert found.mean((0, 2, 3)).abs().max() < 1e-5  # normalised by the batch, and nothing dropped
    assert float(found.var((0, 2, 3)).sub(1).abs().max()) < 1e-2
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"slots": 0}, "slots must be a whole number from 2 to 64"),
        ({"difficulty": 0}, "difficulty must be in"),
        ({"speed": -1}, "speed must be finite and at least 0"),
        ({"start": 5}, r"start must be in \[0, 4\]"),
        ({"measure_size": 0}, "measure_size must be a number of samples or a fraction"),
        ({"every": 0}, "every must be auto"),
    ],
)
def test_what_is_wrong_is_said(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        pa.DifficultyFilter(**changes)


def test_a_step_records_the_difficulty_that_was_wanted():
    filter = pa.DifficultyFilter(early_difficulty=1.0, difficulty=0.5)
    state, record = filter.step(filter.init(0, OPS), subject(1.0, 0.5), epoch=20, epochs=50)
    assert record.wanted == filter.wanted(20, 50) == pytest.approx(0.75), "half-way through four fifths"
    assert filter.step(state, subject(1.0, 0.5), epoch=41, epochs=50)[1].wanted is None, "nothing is steered any more"
    check_record({"kind": "filter", "epoch": 20} | asdict(record))
    with pytest.raises(RecordError, match="wanted must be a number or null, got 'much'"):
        check_record({"kind": "filter", "epoch": 20} | asdict(record) | {"wanted": "much"})
