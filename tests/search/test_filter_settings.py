"""A search's settings: when steps are due, what a saved search must agree with, and what is refused."""

import math

import pytest
from searching import search_of


@pytest.mark.parametrize(
    ("settings", "epochs", "expected"),
    [
        ({}, 6, [1, 2, 3, 4, 5]),
        ({"warmup": 3}, 6, [3, 4, 5]),
        ({"every": 2}, 7, [2, 4, 6]),
        ({"every": 3, "warmup": 4}, 10, [6, 9]),
        ({"every": 2}, 6, [2, 4]),
        ({"warmup": 0}, 12, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ],
)
def test_due(settings, epochs, expected):
    search = search_of(epochs=epochs, **settings)
    assert [epoch for epoch in range(1, 13) if search.due(epoch)] == expected


@pytest.mark.parametrize(
    ("change", "what"), [({"eta": 0.5}, "filter"), ({"seed": 8}, "seed"), ({"epochs": 8}, "epochs")]
)
def test_a_search_with_other_settings_cannot_be_loaded(change, what):
    with pytest.raises(
        ValueError, match=f"the saved search has a different {what}, .* create ParticleAugment with the saved one"
    ):
        search_of(**change).load_state_dict(search_of().state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_particles": 1}, "num_particles must be at least 2, got 1"),
        ({"num_particles": 2.5}, "num_particles must be a whole number"),
        ({"nonzero": 16}, r"nonzero must be in 1..15, the number of ops, got 16"),
        ({"nonzero": 0}, "nonzero must be a whole number from 1 to 1,000, got 0"),
        ({"nonzero": 3, "ops": ("Rotate", "Invert")}, r"nonzero must be in 1..2"),
        ({"eta": 0.0}, "eta must be finite and above 0, got 0.0"),
        ({"eta": -1.0}, "eta must be"),
        ({"eta": math.nan}, "eta must be"),
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\]"),
        ({"sigma": -0.1}, "sigma must be"),
        ({"velocity": (0.1, 0.2)}, "velocity must be one number or one for each of the 15 ops"),
        ({"velocity": math.inf}, "velocity must be finite"),
        ({"start_value": 1.5}, r"value must be in \[0, 1\]"),
        ({"m": 11}, "m must be a number from 0 to 10"),
        ({"m": "3"}, "m must be a number"),
        ({"semantics": "tim-increasing"}, "did you mean timm-increasing"),
        ({"order": "fixd"}, "order must be one of fixed, random"),
        ({"resampling": "sistematic"}, "did you mean systematic"),
        ({"ops": ("Rotat", "Invert"), "nonzero": 1}, "did you mean Rotate"),
        ({"unit_vectors": True}, "unit_vectors needs a particle for each of the 15 ops"),
        ({"every": 0}, "every must be auto, or a number of epochs from 1 to 1,000,000, got 0"),
        ({"warmup": -1}, "warmup must be a whole number from 0 to 1,000,000, got -1"),
        ({"clone_epochs": 0}, "clone_epochs must be a whole number from 1 to 1,000, got 0"),
        ({"clone_epochs": True}, "clone_epochs must be a whole number"),
        ({"clone_size": 0}, "clone_size must be a number of samples or a fraction between 0 and 1, got 0"),
        ({"clone_size": 1}, "clone_size must be at least 2: batch norm"),
        ({"clone_size": 1.5}, "clone_size must be a number of samples or a fraction"),
        ({"measure_size": True}, "measure_size must be a number of samples"),
        ({"measure_size": "all"}, "measure_size must be a number of samples"),
        ({"executor": "pill"}, "did you mean pil"),
        ({"resample": "bilinea"}, "did you mean bilinear"),
        ({"measure_on": "held-out"}, "measure_on cannot be 'held-out'; did you mean heldout"),
        ({"num_particles": 10**6}, "num_particles must be at most 100,000"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("?", r"\?")):
        search_of(**settings)
