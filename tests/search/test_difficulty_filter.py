"""The difficulty filter: where its strength goes, what it measures, and what it remembers."""

import math
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import particleaugment as pa
from particleaugment.search.difficulty import FADED, INFORMED, STEERED, TOLERANCE, DifficultyState
from particleaugment.search.filter_base import Subject
from particleaugment.search.training_signs import LEARNED, lag, loss_of_chance, nothing_is_certain
from particleaugment.training.records import RecordError, check_record

OPS = ("Rotate", "Color", "Equalize")
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def steered(filter, epochs, losses, chance=math.inf):
    """Take the steps of a run; ``losses(strength, epoch)`` returns the training and the held-out loss."""
    state = filter.init(0, OPS, epochs)
    strengths = []
    for epoch in range(1, int(STEERED * epochs) + 1):
        state = filter.updated(
            replace(state, steps=epoch),
            *losses(state.strength, epoch),
            epoch=epoch,
            epochs=epochs,
            chance=chance,
        )
        strengths.append(state.strength)
    return strengths


def test_the_wanted_difficulty_falls_until_samples_are_no_longer_held_out():
    filter = pa.DifficultyFilter(early_difficulty=1.2, difficulty=0.8)
    assert [filter.wanted(epoch, 50) for epoch in (0, 20, 40, 50)] == pytest.approx([1.2, 1.0, 0.8, 0.8])


@PROPERTY
@given(
    harder=st.floats(0.1, 1.0),
    held_out=st.floats(0.2, 2.0),
    learned=st.floats(0.01, 0.1),
    epochs=st.integers(100, 400),
)
def test_a_simulated_network_is_at_a_tolerated_difficulty_from_half_of_training_on(harder, held_out, learned, epochs):
    filter = pa.DifficultyFilter()

    def losses(strength, epoch):
        return learned * held_out + harder * held_out * strength, held_out

    strengths = steered(filter, epochs, losses)
    for epoch in range(epochs // 2, int(STEERED * epochs) + 1):
        difficulty, wanted = learned + harder * strengths[epoch - 1], filter.wanted(epoch, epochs)
        assert difficulty < 1.1 * wanted * math.exp(TOLERANCE)
        assert difficulty > 0.9 * wanted * math.exp(-TOLERANCE) or strengths[epoch - 1] == filter.strongest


@PROPERTY
@given(error=st.floats(-0.99, 0.99), strength=st.floats(0, 4), done=st.floats(0.01, 0.8))
def test_strength_stays_as_it_is_where_training_is_about_as_hard_as_wanted(error, strength, done):
    filter, epoch = pa.DifficultyFilter(), max(1, int(done * 200))
    training = filter.wanted(epoch, 200) * math.exp(error * TOLERANCE)
    state = DifficultyState(seed=0, ops=OPS, steps=epoch, strength=strength, held_out_loss=1.0)
    kept = filter.updated(state, training, 1.0, epoch=epoch, epochs=200)
    assert kept.strength == pytest.approx(strength, abs=1e-12)


def test_training_that_is_far_too_hard_loses_its_augmentation_early():
    # Flipped digits are three times as hard as new ones after a fifth of training, while both are still hard.
    strengths = steered(pa.DifficultyFilter(), 100, lambda strength, epoch: (1.0 + 1.5 * min(1, strength), 1.0))
    assert strengths[29] < 0.5


@PROPERTY
@given(strength=st.floats(0, 4), training=st.floats(0, 10), held_out=st.floats(0, 10), epochs=st.integers(40, 400))
def test_where_the_network_is_sure_of_nothing_strength_falls_to_0_in_a_fifth_of_training(
    strength, training, held_out, epochs
):
    filter = pa.DifficultyFilter()
    state = DifficultyState(seed=0, ops=OPS, steps=1, strength=strength, held_out_loss=1.0)
    for epoch in range(epochs // 4, epochs // 4 + epochs // 5):
        before = state.strength
        state = filter.updated(state, training, held_out, epoch=epoch, epochs=epochs, doubt=True)
        assert state.strength <= before
    assert state.strength == 0


LOSSES = st.lists(st.floats(0, 20), min_size=10, max_size=80)


@PROPERTY
@given(losses=LOSSES, chance=st.floats(0.5, 10), order=st.randoms(use_true_random=False))
def test_doubt_depends_on_no_order_and_an_easy_sixth_removes_it(losses, chance, order):
    shuffled = order.sample(losses, len(losses))
    assert nothing_is_certain(torch.tensor(losses), chance) == nothing_is_certain(torch.tensor(shuffled), chance)
    easy = losses + [0.0] * (len(losses) // 5 + 1)
    assert not nothing_is_certain(torch.tensor(easy), chance)


@pytest.mark.parametrize(
    ("losses", "chance", "doubt"),
    [
        ([math.log(3)] * 64, math.log(30), True),  # ten digits are known, their three tints are not
        ([math.log(3)] * 9, math.log(30), False),  # too few samples to say
        ([2.2] * 64, math.log(10), False),  # nothing is learned yet
        ([0.05] * 16 + [1.5] * 48, math.log(10), False),  # hard samples beside easy ones
        ([0.3] * 64, math.inf, False),  # no classes
    ],
)
def test_a_network_that_has_learned_much_and_is_sure_of_nothing_is_in_doubt(losses, chance, doubt):
    assert nothing_is_certain(torch.tensor(losses, dtype=torch.float64), chance) is doubt


@PROPERTY
@given(bias=st.floats(0.85, 1.15), epochs=st.integers(50, 400))
def test_early_measurements_that_say_little_move_strength_little(bias, epochs):
    # Early in training every policy has about the same difficulty; 64 held-out samples are often off by a tenth.
    filter = pa.DifficultyFilter()
    strengths = steered(filter, epochs, lambda strength, epoch: (bias * filter.wanted(epoch, epochs), 1.0))
    assert all(abs(strength - filter.first_strength(epochs)) < 0.35 for strength in strengths[: epochs // 10])


def test_where_plain_training_is_harder_than_wanted_nothing_is_left_by_half_of_training():
    assert steered(pa.DifficultyFilter(), 100, lambda strength, epoch: (2.0 + strength, 1.0))[49] == 0


def test_where_augmentation_does_not_raise_the_loss_strength_goes_to_its_end():
    assert steered(pa.DifficultyFilter(), 100, lambda strength, epoch: (0.01, 1.0))[-1] == 4


def test_a_single_jump_of_the_held_out_loss_counts_for_little():
    def losses(jump):
        return lambda strength, epoch: (0.2 + 0.4 * strength, 50.0 if jump and epoch == 40 else 0.8)

    calm, disturbed = (steered(pa.DifficultyFilter(), 100, losses(jump)) for jump in (False, True))
    assert max(abs(a - b) for a, b in zip(calm, disturbed)) < 1.0
    assert abs(calm[-1] - disturbed[-1]) < 0.05


@pytest.mark.parametrize("epochs", [20, 40, 200])
def test_a_run_too_short_to_learn_under_augmentation_goes_without_at_once(epochs):
    # Both losses stay near chance, so their ratio is near 1 whatever the policy: it is the pace that tells.
    def losses(strength, epoch):
        loss = 2.3 * (1 - 0.5 * epoch / epochs)
        return loss, loss

    filter = pa.DifficultyFilter(start=1.0)
    assert max(steered(filter, epochs, losses, chance=2.3)[math.ceil(0.1 * epochs) :]) == 0
    unbraked = steered(filter, epochs, losses)[: epochs // 5]
    assert min(unbraked) > 0.5, "where chance is not known"


def test_a_short_run_gets_augmentation_where_training_turns_out_too_easy():
    filter = pa.DifficultyFilter()
    memorising = steered(filter, 40, lambda strength, epoch: (0.3 + 0.3 * strength, 1.0))
    assert memorising[0] < 0.05
    assert memorising[-1] > 0.7


@PROPERTY
@given(training=st.floats(0, 10), chance=st.floats(0.1, 10), done=st.floats(0, 1))
def test_training_lags_only_where_its_loss_has_fallen_less_than_its_time_has_passed(training, chance, done):
    found = lag(training, chance, done)
    due = chance * (1 - min(done, LEARNED))
    assert found == math.inf or -1 <= found <= 0
    if training < due * (1 - 1e-9):
        assert found == math.inf
    if training > due * (1 + 1e-9) and done > 0.05:
        assert found < 0


@PROPERTY
@given(
    strength=st.floats(0, 4),
    average=st.floats(0, 10),
    training=st.floats(0, 1e3),
    held_out=st.floats(0, 1e3),
    easier=st.floats(0, 1),
    epoch=st.integers(1, 40),
)
def test_strength_keeps_its_bounds_and_falls_with_the_training_loss(
    strength, average, training, held_out, easier, epoch
):
    filter = pa.DifficultyFilter()
    state = DifficultyState(seed=0, ops=OPS, steps=5, strength=strength, held_out_loss=average)
    harder, softer = (
        filter.updated(state, loss, held_out, epoch=epoch, epochs=50, chance=2.3).strength
        for loss in (training, easier * training)
    )
    assert 0 <= harder <= softer <= 4


def test_strength_is_the_number_of_ops_and_the_ops_are_even():
    filter = pa.DifficultyFilter()
    state = DifficultyState(seed=0, ops=("Rotate", "Color"), strength=2.5)
    policy = filter.policy(state)
    assert policy.ops_per_image == pytest.approx(2.5)
    assert policy.inclusion == pytest.approx({"Rotate": 1.25, "Color": 1.25})
    assert filter.init(0, pa.OPS, epochs=100).ops == pa.TrivialAugment().ops


def test_it_starts_with_two_ops_and_holds_out_until_the_last_fifth():
    filter = pa.DifficultyFilter()
    assert filter.policy(filter.init(0, OPS, epochs=100)).slots == pytest.approx((0.8, 0.6, 0.4, 0.2, 0, 0, 0, 0))
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


@pytest.mark.parametrize(
    ("samples", "held_out"),
    [(9, 2), (200, 10), (640, 32), (1280, 64), (4000, 64), (12_800, 128), (50_000, 500), (1_281_167, 1024)],
)
def test_how_many_samples_are_held_out_is_left_to_the_data(samples, held_out):
    assert pa.DifficultyFilter().held_out_of(samples) == held_out
    assert pa.DifficultyFilter(measure_size=0.25).held_out_of(samples) == 0.25


def test_the_loss_of_chance_is_known_where_there_are_classes():
    assert loss_of_chance(torch.arange(30) % 10) == pytest.approx(math.log(10))
    assert loss_of_chance(torch.zeros(5).long()) == math.inf


@pytest.mark.parametrize("targets", [torch.linspace(0, 80, 64), torch.linspace(-3, 3, 128).view(64, 2)])
def test_quantities_have_no_loss_of_chance(targets):
    search = pa.ParticleAugment((torch.zeros(64, 3, 8, 8, dtype=torch.uint8), targets), epochs=3)
    assert loss_of_chance(search.division.labels) == math.inf, "the brake and the one more sample are for classes"
    assert len(search.division.split[1]) == 3


def test_a_step_says_what_it_measured():
    filter = pa.DifficultyFilter(start=1.0)
    state, record = filter.step(filter.init(0, OPS, epochs=50), subject(1.0, 0.5), epoch=1, epochs=50)
    assert (record.step, record.training_loss, record.held_out_loss, record.difficulty) == (1, 0.5, 1.0, 0.5)
    error = (math.log(filter.wanted(1, 50) / 0.5) - TOLERANCE) * (1 / 50) / INFORMED
    assert state.strength == record.strength == pytest.approx(1.25 * math.exp(0.5 * error) - 0.25)
    later, record = filter.step(state, subject(9.0, 0.1), epoch=41, epochs=50)
    assert later.strength == state.strength
    assert (record.step, record.held_out_loss) == (2, None)


def test_losses_that_are_not_finite_are_skipped_and_said():
    filter = pa.DifficultyFilter(start=1.0)
    state, record = filter.step(filter.init(0, OPS, epochs=50), subject(math.nan, 0.5), epoch=1, epochs=50)
    assert (state.skipped, state.strength) == (1, 1.0)
    assert record.skip_reason == "the held-out loss is nan, so the difficulty is unknown"
    for loss in (math.nan, math.inf, -math.inf):
        state, record = filter.step(filter.init(0, OPS, epochs=50), subject(1.0, loss), epoch=1, epochs=50)
        assert (state.skipped, state.strength) == (1, 1.0)
        assert record.skip_reason == f"the training loss is {loss}, so the difficulty is unknown"


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
            assert record.difficulty == pytest.approx(record.training_loss / search.state.held_out_loss)
    assert search.policy.ops_per_image > 1.5


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
        partial(nn.functional.cross_entropy, reduction="none", label_smoothing=0.1),
    ],
)
def test_a_loss_under_which_no_sample_is_certain_is_refused(loss):
    data = torch.zeros(60, 3, 8, 8, dtype=torch.uint8), torch.arange(60) % 3
    search = pa.ParticleAugment(data, epochs=3, seed=0)
    image, _, number = search.training_set()[0]
    for _ in search.epochs():
        search.augment(image[None], torch.tensor([number]))
        search.observe(torch.tensor([number]), torch.ones(1))
        with pytest.raises(ValueError, match=r"step's loss has label_smoothing=0.1.*pass it without"):
            search.step(nn.Linear(1, 3), loss=loss, preprocess=lambda images: images / 255)
        break
    pa.PaperFilter().check_loss(loss)  # compares losses of one kind, whatever it is


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
    state = DifficultyState(seed=3, ops=OPS, steps=7, skipped=1, strength=1.25, held_out_loss=0.5, applied=0.25)
    first = pa.DifficultyFilter().init(3, OPS, epochs=50)
    assert first.restored(state.to_dict()) == state
    with pytest.raises(ValueError, match="applied must be above 0 and at most 1, got 2"):
        first.restored(state.to_dict() | {"applied": 2.0})


@PROPERTY
@given(epochs=st.integers(1, 500), every=st.integers(1, 5))
def test_augmentation_fades_out_over_the_last_twentieth_and_strength_is_remembered(epochs, every):
    filter = pa.DifficultyFilter(start=2.0, every=every, warmup=every)
    state, history = filter.init(0, OPS, epochs), [(1, filter.init(0, OPS, epochs))]
    for epoch in range(math.ceil(STEERED * epochs) + 1, epochs):
        if filter.due(epoch, epochs):
            state, record = filter.step(state, subject(1.0, 0.5), epoch=epoch, epochs=epochs)
            assert record.strength == 2
            history.append((epoch + 1, state))
    schedule = filter.schedule(history, epochs)
    strengths = [sum(schedule.at(epoch).slots) for epoch in range(1, epochs + 1)]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[: math.floor((1 - FADED) * epochs)] == pytest.approx([2] * math.floor((1 - FADED) * epochs))
    assert strengths[-1] > 0
    if epochs >= 100 * every:
        assert strengths[-1] <= 2 * every / (FADED * epochs)
    assert sum(schedule.at_or_last(None).slots) == pytest.approx(2), "what was learned"


@PROPERTY
@given(epochs=st.integers(1, 1000), slots=st.integers(2, 16))
def test_runs_start_without_augmentation_up_to_50_epochs_and_at_full_strength_from_100(epochs, slots):
    filter = pa.DifficultyFilter(slots=slots)
    start = filter.init(0, OPS, epochs).strength
    assert start == pytest.approx(min(filter.strongest, max(0, 0.04 * (epochs - 50)), 2))
    assert pa.DifficultyFilter(slots=slots, start=0.5).init(0, OPS, epochs).strength == 0.5


def test_a_schedule_replays_its_mixtures(tmp_path):
    filter = pa.DifficultyFilter()
    first = filter.init(0, OPS, epochs=10)
    later = DifficultyState(seed=0, ops=OPS, steps=1, strength=1.5)
    schedule = filter.schedule([(1, first), (4, later)], epochs=10)
    assert schedule.at(3) == filter.policy(first)
    assert schedule.at(4) == filter.policy(later)
    schedule.save(tmp_path / "policy.json")
    assert pa.Schedule.load(tmp_path / "policy.json") == schedule


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"slots": 0}, "slots must be a whole number from 2 to 64"),
        ({"difficulty": 0}, "difficulty must be in"),
        ({"early_difficulty": -1}, "early_difficulty must be in"),
        ({"speed": -1}, "speed must be finite and at least 0"),
        ({"start": 5}, r"start must be in \[0, 4\]"),
        ({"start": "soon"}, "start must be auto"),
        ({"measure_size": 0}, "measure_size must be a number of samples or a fraction"),
        ({"measure_size": "many"}, "measure_size must be a number of samples or a fraction"),
        ({"every": 0}, "every must be auto"),
    ],
)
def test_what_is_wrong_is_said(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        pa.DifficultyFilter(**changes)


def test_a_step_records_the_difficulty_that_was_wanted():
    filter = pa.DifficultyFilter(early_difficulty=1.0, difficulty=0.5)
    state, record = filter.step(filter.init(0, OPS, epochs=50), subject(1.0, 0.5), epoch=20, epochs=50)
    assert record.wanted == filter.wanted(20, 50) == pytest.approx(0.75), "half-way through four fifths"
    assert filter.step(state, subject(1.0, 0.5), epoch=41, epochs=50)[1].wanted is None, "nothing is steered any more"
    check_record({"kind": "filter", "epoch": 20} | asdict(record))
    with pytest.raises(RecordError, match="wanted must be a number or null, got 'much'"):
        check_record({"kind": "filter", "epoch": 20} | asdict(record) | {"wanted": "much"})


@PROPERTY
@given(harder=st.floats(0.1, 5.0), learned=st.floats(0.0, 0.05), epochs=st.integers(100, 400))
def test_strength_settles_without_swinging_whatever_augmentation_does_to_the_loss(harder, learned, epochs):
    strengths = steered(pa.DifficultyFilter(), epochs, lambda strength, epoch: (learned + harder * strength, 1.0))
    settled = strengths[epochs // 2 : int(0.75 * epochs)]
    assert all(later <= earlier for earlier, later in pairwise(settled)), "it falls with the wanted difficulty"


def test_noise_of_the_held_out_loss_moves_strength_little():
    noise = (1 + 0.3 * torch.randn(200, generator=torch.Generator().manual_seed(0))).tolist()
    strengths = steered(pa.DifficultyFilter(), 200, lambda strength, epoch: (0.4 * strength, noise[epoch - 1]))
    late = torch.tensor(strengths[100:])
    assert late.std() / late.mean() < 0.15
    assert 0.4 * late.max() < 1.15 * pa.DifficultyFilter().wanted(100, 200) * math.exp(TOLERANCE)
    assert 0.4 * late.min() > 0.85 * pa.DifficultyFilter().wanted(160, 200) * math.exp(-TOLERANCE)
