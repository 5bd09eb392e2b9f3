"""Mixtures: what is drawn how often and how strongly, their tables, files and schedules."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import MANY, PROPERTY, agrees_with, frequencies_agree

import particleaugment as pa
from particleaugment.core.op_table import lookup
from particleaugment.core.random import Stream, uniforms
from particleaugment.policies.exports import export
from particleaugment.policies.mixture import even_counts


def test_at_full_level_with_one_slot_it_is_trivial_augment():
    for epoch in (0, 3):
        assert pa.Mixture().sample(MANY[:500], epoch, 7).equal(pa.TrivialAugment().sample(MANY[:500], epoch, 7))
    two = pa.Mixture(slots=(1.0, 1.0))
    assert two.sample(MANY[:500]).equal(pa.TrivialAugment(n=2).sample(MANY[:500]))
    assert two.static() == (pa.TrivialAugment(n=2), [])


def test_slots_are_applied_by_their_probabilities_and_ops_are_even():
    ops = ("Rotate", "Invert", "Equalize", "ShearX")
    policy = pa.Mixture(slots=(0.9, 0.3), level=0.5, ops=ops)
    op = policy.sample(MANY).op
    for slot, probability in enumerate((0.9, 0.3)):
        # Half of the ops have no level, and are applied with its half as a probability instead.
        assert agrees_with((op[:, slot] > 0).sum(), len(MANY), probability * (1 + 0.5) / 2)
        counts = [(op[:, slot] == lookup(name).index).sum() for name in ops]
        assert frequencies_agree(counts, [1, 0.5, 0.5, 1])
    assert policy.ops_per_image == pytest.approx((0.9 + 0.3) * 0.75)
    assert policy.inclusion["Invert"] == pytest.approx((0.9 + 0.3) * 0.5 / 4)
    assert float((op > 0).double().sum(1).mean()) == pytest.approx(policy.ops_per_image, abs=0.02)


@pytest.mark.parametrize("mean", [0.3, 1.0, 1.75, 2.0, 4.0])
def test_even_counts_give_all_numbers_of_ops_as_often(mean):
    policy = pa.Mixture(slots=even_counts(mean, 8), ops=("Rotate", "ShearX"))
    assert policy.ops_per_image == pytest.approx(mean)
    counts = torch.bincount((policy.sample(MANY).op > 0).sum(1), minlength=9).tolist()
    most, above = int(2 * mean), 2 * mean % 1
    expected = [(1 - above) * (k <= most) / (most + 1) + above * (k <= most + 1) / (most + 2) for k in range(9)]
    assert frequencies_agree(counts, expected)


@PROPERTY
@given(mean=st.floats(0, 4), slots=st.integers(8, 12))
def test_even_counts_have_their_mean_and_never_rise(mean, slots):
    found = even_counts(mean, slots)
    assert len(found) == slots
    assert sum(found) == pytest.approx(mean)
    assert list(found) == sorted(found, reverse=True)


@PROPERTY
@given(level=st.floats(0, 1), probability=st.floats(0, 1), seed=st.integers(0, 2**40))
def test_levels_are_even_up_to_the_highest(level, probability, seed):
    policy = pa.Mixture(slots=(probability,), level=level, ops=("Rotate",))
    arg = policy.sample(MANY[:300], seed=seed).arg.abs()
    assert float(arg.max()) <= 135.0 * level + 1e-9
    if level == 0 or probability == 0:
        assert not policy.sample(MANY[:300], seed=seed).op.any()
    else:
        steps = arg / (135.0 * level) * 30
        assert torch.allclose(steps, steps.round(), atol=1e-6)


def test_level_zero_leaves_images_alone():
    images = torch.full((50, 3, 8, 8), 255, dtype=torch.uint8)
    program = pa.Mixture(slots=(1.0, 1.0, 1.0), level=0.0).sample(torch.arange(50))
    assert torch.equal(pa.apply(images, program), images)
    assert pa.Mixture(level=0.0).ops_per_image == 0


@pytest.mark.parametrize("semantics", ["trivial-wide", "timm-increasing"])
def test_the_tables_say_what_is_drawn(semantics):
    policy = pa.Mixture(slots=(1.0, 0.4), level=0.7, semantics=semantics)
    tables, ids = policy.tables((32, 32)), torch.arange(400)
    streams = dict.fromkeys((Stream.OP, Stream.LEVEL, Stream.SIGN), tables.slots) | {Stream.GATE: 1}
    drawn = uniforms(5, 2, ids, streams)
    choice = (drawn[Stream.OP] * tables.choices).long()
    entry = choice * tables.levels + (drawn[Stream.LEVEL] * tables.levels).long()
    applied = drawn[Stream.GATE] < tables.gate[torch.arange(tables.slots), choice]
    sign = (drawn[Stream.SIGN] >= 0.5).long()
    arg = tables.table_arg.reshape(-1, 2)[entry, sign]
    program = policy.sample(ids, epoch=2, seed=5)
    assert torch.equal(program.op, torch.where(applied, tables.table_op[choice], 0))
    assert torch.equal(program.arg, torch.where(applied, arg, 0.0))


def test_its_numbers_are_level_and_slots():
    policy = pa.Mixture(slots=(1.0, 0.4), level=0.7)
    assert policy.numbers().tolist() == [0.7, 1.0, 0.4]
    assert policy.with_numbers(torch.tensor([0.5, 0.25, 0.0], dtype=torch.float64)) == pa.Mixture((0.25, 0.0), 0.5)


def test_files(tmp_path):
    policy = pa.Mixture((0.5, 0.1), 0.3, ops=("FlipX", "Rotate90", "Color"), semantics="timm")
    policy.save(tmp_path / "mixture.json")
    assert pa.load_policy(tmp_path / "mixture.json") == policy


def test_exports_say_that_draws_stand_for_it():
    made = export(pa.Mixture((1.0, 0.4), 0.5, semantics="timm-increasing"), "timm")
    assert "256 draws" in made.lost
    assert "Rotate" in made.text


def test_a_schedule_has_its_mixtures_by_epoch(tmp_path):
    schedule = pa.MixtureSchedule(((1, 0.0, (0.0, 0.0)), (5, 0.5, (1.0, 0.0)), (9, 1.0, (1.0, 0.5))), epochs=10)
    assert [schedule.at(epoch).level for epoch in (0, 1, 4, 5, 8, 9, 10, 99)] == [0, 0, 0, 0.5, 0.5, 1, 1, 1]
    assert schedule.rescaled(20).at(17) == schedule.at(9)
    assert schedule.sample(MANY[:50], epoch=9).equal(schedule.at(9).sample(MANY[:50], epoch=9))
    schedule.save(tmp_path / "policy.json")
    assert pa.load_policy(tmp_path / "policy.json") == schedule
    assert pa.Schedule.load(tmp_path / "policy.json", epochs=20) == schedule.rescaled(20)
    assert "the schedule (3 policies over the epochs; this is the last)" in export(schedule, "timm").lost


def test_a_schedule_made_of_lists_is_the_same(tmp_path):
    schedule = pa.MixtureSchedule([[1, 0, [1, 0]]], epochs=10, semantics=pa.semantics.get("timm"))
    twin = pa.MixtureSchedule(((1, 0.0, (1.0, 0.0)),), epochs=10, semantics="timm")
    assert (schedule, hash(schedule)) == (twin, hash(twin))
    schedule.save(tmp_path / "policy.json")
    assert pa.load_policy(tmp_path / "policy.json") == schedule


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: pa.Mixture(slots=()), r"slots must be 1 to 64 probabilities"),
        (lambda: pa.Mixture(slots=0.5), r"slots must be 1 to 64 probabilities, one per op of an image, got 0.5"),
        (lambda: pa.Mixture(slots=(1.5,)), r"a probability of slots must be a number from 0 to 1, got 1.5"),
        (lambda: pa.Mixture(slots=(0.5, 0.6)), r"slots must not increase, .* got 0.5, 0.6"),
        (lambda: pa.Mixture(level=2), r"level must be a number from 0 to 1, got 2"),
        (lambda: pa.Mixture(ops=("Cutout",), semantics="autoaugment-original"), r"cannot contain Cutout"),
        (lambda: pa.Mixture(ops=("SolarizeAdd",)), r"'trivial-wide' does not define SolarizeAdd"),
        (lambda: pa.MixtureSchedule((), epochs=3), r"needs at least one step"),
        (lambda: pa.MixtureSchedule(((2, 1, (1,)), (1, 1, (1,))), epochs=3), r"rising order"),
        (lambda: pa.MixtureSchedule(((1, 1, (1,)), (2, 1, (1, 1))), epochs=3), r"same number of slots"),
    ],
)
def test_what_is_wrong_is_said(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
