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


def search_of(size=12, filter=None, **settings):
    filter = filter or pa.DifficultyFilter(measure_size=size)
    return pa.ParticleAugment(DATA, epochs=10, filter=filter, **settings)


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
    seen = {"train": [], "measure": [], "losses": []}

    def noting(name):
        original = getattr(EagerTrainee, name)

        def noted(trainee, *arguments, **options):
            seen[name].append(next(each for each in arguments if isinstance(each, torch.Tensor)))
            return original(trainee, *arguments, **options)

        monkeypatch.setattr(EagerTrainee, name, noted)

    for name in seen:
        noting(name)
    groups = torch.arange(120) // 6
    paper = pa.PaperFilter(measure_on="heldout", measure_size=12, clone_size=40, num_particles=3)
    for search in (search_of(groups=groups), search_of(filter=paper, groups=groups)):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
        step(search, model, torch.optim.SGD(model.parameters(), lr=0.1))
    expected = held_out(search)
    (plain,), (before, after), (cloned,) = seen["losses"], seen["measure"], seen["train"]
    assert all(torch.equal(ids, expected) for ids in (plain, before, after))
    assert len(cloned) == 40
    assert set(groups[cloned].tolist()).isdisjoint(groups[expected].tolist())


def test_groups_that_do_not_fit_the_samples():
    with pytest.raises(ValueError, match="groups must have one entry for each of the 120 samples, got 119"):
        search_of(groups=PATIENTS[:-1])
    with pytest.raises(TypeError, match="groups must be one whole number or name per sample"):
        search_of(groups=[0.5, 1.5])
