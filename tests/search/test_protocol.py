"""What every filter must do, one of another kind included."""

import math
from dataclasses import asdict

import pytest
import torch
from searching import learning
from test_one_more_filter import StrengthFilter
from toy import IMAGES, LABELS, cross_entropy, preprocess

import particleaugment as pa
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import FILTERS, filter_settings
from particleaugment.search.history import packed, unpacked
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner


@pytest.fixture(params=[*FILTERS.values(), StrengthFilter], ids=lambda kind: kind.kind)
def searching(request):
    """A search by each filter that has taken two steps, and its records."""
    settings = {"measure_size": 12, "num_particles": 4, "clone_size": 24, "clone_epochs": 2}
    known = request.param.__dataclass_fields__
    filter = request.param(**{name: value for name, value in settings.items() if name in known})
    search = pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=filter, seed=7)
    model, optimizer = learning()
    learner = Learner(model, optimizer, cross_entropy, preprocess)
    trainee = EagerTrainee(learner, search.samples, search.training_augmentation(), 8)
    return search, [search.step_with(trainee, epoch=epoch, training_loss=0.9) for epoch in (1, 2)]


def test_a_search_by_any_filter_counts_its_steps_and_continues(searching):
    search, records = searching
    assert [record.step for record in records] == [1, 2]
    assert search.steps_taken == search.state.steps == 2
    assert all(record.seconds["filter"] >= 0 for record in records)
    assert all(math.isfinite(record.ops_per_image) for record in records)
    again = pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=search.filter, seed=7)
    again.load_state_dict(search.state_dict())
    assert again.state == search.state
    assert again.policy == search.policy
    assert again.schedule(5) == search.schedule(5)


def test_states_are_immutable_and_come_back_from_plain_values(searching):
    search, _ = searching
    with pytest.raises(AttributeError):
        search.state.steps = 9
    history = [(1, search.filter.init(7, search.ops, search.num_epochs)), (2, search.state)]
    saved = packed(history)
    plain = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in saved.values()]
    assert all(len(column) == 2 for column in plain)
    assert unpacked(saved, search.filter.init(7, search.ops, search.num_epochs)) == history


def test_what_is_held_out_is_what_the_filter_says(searching):
    search, _ = searching
    left_out = len(LABELS) - len(search.division.ids_in(1))
    assert left_out == search.filter.held_out_of(len(search.samples))
    assert search.division.holds_out_in(1) == bool(left_out)


def test_filters_are_told_apart_by_their_settings():
    assert filter_settings(pa.DifficultyFilter()) == {"kind": "difficulty"} | asdict(pa.DifficultyFilter())
    assert filter_settings(pa.PaperFilter(velocity=(0.1, 0.2)))["velocity"] == [0.1, 0.2]


def test_every_filter_has_a_kind_of_its_own_by_which_it_is_found():
    found, classes = list[type](), [Filter]
    while classes:
        below = classes.pop().__subclasses__()
        classes += below
        found += [each for each in below if each.__module__.startswith("particleaugment.") and "kind" in vars(each)]
    assert set(found) == set(FILTERS.values())


def test_what_is_no_filter_is_refused():
    with pytest.raises(TypeError, match=r"filter must be a filter, such as pa.DifficultyFilter\(\).*, got int"):
        pa.ParticleAugment((IMAGES, LABELS), epochs=5, filter=50)
    with pytest.raises(TypeError, match=r"a data set must have len\(\) and items by index, .* got PaperFilter"):
        pa.ParticleAugment(pa.PaperFilter(), epochs=5)
