"""A search that holds out whole groups: no patient is both trained on and measured on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import particleaugment as pa
from particleaugment.trainee.eager import EagerTrainee

LABELS = torch.arange(120) % 3
PATIENTS = [f"patient {number // 6}" for number in range(120)]


def held_out(search, labels=LABELS):
    mask = torch.ones(len(labels), dtype=torch.bool)
    mask[search.training_ids(labels)] = False
    return mask.nonzero().flatten()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(6, 60))
def test_held_out_samples_are_whole_groups(seed, size):
    search = pa.ParticleAugment(pa.GapFilter(measure_size=size), epochs=10, seed=seed, groups=PATIENTS)
    measured = held_out(search)
    names = {PATIENTS[index] for index in measured.tolist()}
    assert len(measured) == 6 * len(names)
    assert abs(len(measured) - size) <= 6
    assert LABELS[measured].bincount().tolist() == [2 * len(names)] * 3


def test_without_groups_nothing_changes():
    plain = pa.ParticleAugment(pa.GapFilter(measure_size=12), epochs=10, seed=3)
    none = pa.ParticleAugment(pa.GapFilter(measure_size=12), epochs=10, seed=3, groups=None)
    assert torch.equal(held_out(plain), held_out(none))
    assert not torch.equal(
        held_out(plain), held_out(pa.ParticleAugment(pa.GapFilter(measure_size=12), epochs=10, seed=3, groups=PATIENTS))
    )


def test_a_step_measures_on_the_groups_that_are_held_out(monkeypatch):
    measured = []
    measure = EagerTrainee.measure

    def noted(trainee, policy, ids, *arguments, **options):
        measured.append(ids)
        return measure(trainee, policy, ids, *arguments, **options)

    monkeypatch.setattr(EagerTrainee, "measure", noted)
    groups = torch.arange(120) // 6
    search = pa.ParticleAugment(pa.GapFilter(measure_size=12, num_particles=3), epochs=4, seed=0, groups=groups)
    expected = held_out(search)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    search.set_epoch(1)
    search.step(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=(torch.zeros(120, 3, 8, 8, dtype=torch.uint8), LABELS),
        loss=torch.nn.CrossEntropyLoss(reduction="none"),
        preprocess=lambda images: images / 255,
        batch_size=8,
    )
    on_held_out, on_trained = measured
    assert torch.equal(on_held_out, expected)
    assert set(groups[on_trained].tolist()).isdisjoint(groups[expected].tolist())


def test_groups_that_do_not_fit_the_samples():
    search = pa.ParticleAugment(pa.GapFilter(measure_size=12), epochs=10, groups=PATIENTS[:-1])
    with pytest.raises(ValueError, match="groups must name the group of each of the 120 samples, got 119"):
        search.training_ids(LABELS)
    with pytest.raises(TypeError, match="groups must be one whole number or name per sample"):
        pa.ParticleAugment(pa.PaperFilter(), groups=[0.5, 1.5])
