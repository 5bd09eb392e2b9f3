"""A search that holds out whole groups: no patient is both trained on and measured on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import step

import particleaugment as pa
from particleaugment.trainee.eager import EagerTrainee

LABELS = torch.arange(120) % 3
PATIENTS = [f"patient {number // 6}" for number in range(120)]
DATA = torch.zeros(120, 3, 8, 8, dtype=torch.uint8), LABELS


def search_of(size=12, **settings):
    return pa.ParticleAugment(DATA, epochs=10, filter=pa.GapFilter(measure_size=size, num_particles=3), **settings)


def held_out(search):
    mask = torch.ones(len(LABELS), dtype=torch.bool)
    mask[search.training_set().ids] = False
    return mask.nonzero().flatten()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(6, 60))
def test_held_out_samples_are_whole_groups(seed, size):
    measured = held_out(search_of(size, seed=seed, groups=PATIENTS))
    names = {PATIENTS[index] for index in measured.tolist()}
    assert len(measured) == 6 * len(names)
    assert abs(len(measured) - size) <= 6
    assert LABELS[measured].bincount().tolist() == [2 * len(names)] * 3


def test_without_groups_nothing_changes():
    plain = held_out(search_of(seed=3))
    assert torch.equal(plain, held_out(search_of(seed=3, groups=None)))
    assert not torch.equal(plain, held_out(search_of(seed=3, groups=PATIENTS)))


def test_a_step_measures_on_the_groups_that_are_held_out(monkeypatch):
    measured = []
    measure = EagerTrainee.measure

    def noted(trainee, policy, ids, *arguments, **options):
        measured.append(ids)
        return measure(trainee, policy, ids, *arguments, **options)

    monkeypatch.setattr(EagerTrainee, "measure", noted)
    groups = torch.arange(120) // 6
    search = search_of(groups=groups)
    expected = held_out(search)
    step(search, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)), None)
    on_held_out, on_trained = measured
    assert torch.equal(on_held_out, expected)
    assert set(groups[on_trained].tolist()).isdisjoint(groups[expected].tolist())


def test_groups_that_do_not_fit_the_samples():
    with pytest.raises(ValueError, match="groups must have one entry for each of the 120 samples, got 119"):
        search_of(groups=PATIENTS[:-1])
    with pytest.raises(TypeError, match="groups must be one whole number or name per sample"):
        search_of(groups=[0.5, 1.5])
