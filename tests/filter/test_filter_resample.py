import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from particleaugment import filter as pf
from particleaugment.filter.resample import SCHEMES

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
EVERY_SCHEME = pytest.mark.parametrize("scheme", ["systematic", "multinomial", "stratified", "residual"])
WEIGHTS = st.lists(
    st.just(0.0) | st.floats(1e-12, 1.0) | st.sampled_from([1.0, 0.5, 0.25, 1e-300]), min_size=2, max_size=40
).filter(lambda values: max(values) > 1e-12)
STEPS = st.integers(0, 2**32 - 1)
LAST_UNIFORM = 1 - 2.0**-53


def weighted_set(weights):
    weights = torch.tensor(weights, dtype=torch.float64)
    particles = torch.linspace(0, 1, len(weights), dtype=torch.float64).unsqueeze(1)
    return pf.ParticleSet(particles, weights.log())


def counts(weights, scheme, step):
    return torch.bincount(pf.ancestors(weights, scheme, seed=0, step=step), minlength=len(weights))


@EVERY_SCHEME
@PROPERTY
@given(WEIGHTS, STEPS)
def test_ancestors_are_r_indices_that_have_weight(scheme, weights, step):
    chosen = pf.ancestors(weights, scheme, seed=0, step=step)
    assert chosen.dtype == torch.int64
    assert chosen.shape == (len(weights),)
    assert all(weights[i] > 0 for i in chosen.tolist())
    if scheme in ("systematic", "stratified"):
        assert chosen.diff().ge(0).all()


@EVERY_SCHEME
@PROPERTY
@given(WEIGHTS, st.sampled_from([0.0, 2.0**-53, 0.5, LAST_UNIFORM]))
def test_weight_zero_is_not_picked_by_extreme_uniforms(scheme, weights, u):
    w = torch.tensor([0.0, *weights, 0.0, 0.0], dtype=torch.float64)
    chosen = SCHEMES[scheme](w / w.sum(), torch.full_like(w, u))
    assert len(chosen) == len(w)
    assert (w[chosen] > 0).all()


@pytest.mark.parametrize(("scheme", "bound"), [("systematic", 1), ("stratified", 2)])
@PROPERTY
@given(weights=WEIGHTS, step=STEPS)
def test_counts_stay_close_to_their_expectation(scheme, bound, weights, step):
    expected = len(weights) * torch.tensor(weights, dtype=torch.float64) / math.fsum(weights)
    assert float((counts(weights, scheme, step) - expected).abs().max()) <= bound + 1e-9


@PROPERTY
@given(WEIGHTS, STEPS)
def test_residual_keeps_what_is_certain(weights, step):
    expected = len(weights) * torch.tensor(weights, dtype=torch.float64) / math.fsum(weights)
    assert (counts(weights, "residual", step) >= (expected - 1e-9).floor()).all()


UNEVEN = torch.tensor([0.265, 0.0, 0.02, 0.18, 0.13, 0.095, 0.11, 0.001, 0.199, 0.0], dtype=torch.float64)


@EVERY_SCHEME
def test_expected_counts_are_exact(scheme):
    # A count's expectation needs only each draw's own distribution, so a grid of uniforms shared by all draws gives it.
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    drawn = sum(torch.bincount(SCHEMES[scheme](UNEVEN, u.repeat(10)), minlength=10) for u in grid) / len(grid)
    assert float((drawn - 10 * UNEVEN).abs().max()) <= 10 / len(grid)


@EVERY_SCHEME
def test_resampling_is_unbiased(scheme):
    weights = UNEVEN
    trials = 1500
    drawn = torch.stack([counts(weights, scheme, step) for step in range(trials)]).double()
    expected = len(weights) * weights
    standard_error = drawn.std(dim=0) / math.sqrt(trials)
    error = (drawn.mean(dim=0) - expected).abs()
    # With the most spread-out scheme, a count's mean is known to 0.04: a bias of a fifth of a copy cannot hide.
    assert float(standard_error.max()) < 0.04
    assert (error <= 4.5 * standard_error + 1e-9).all()


def test_multinomial_draws_of_one_step_are_independent():
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    drawn = torch.stack([pf.ancestors(weights, "multinomial", seed=3, step=step) for step in range(1500)]).double()
    correlation = torch.corrcoef(drawn.T) - torch.eye(4)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(1500)
    assert float((drawn.var(dim=0) - 1.25).abs().max()) < 0.15  # 0..3 equally likely: variance 1.25


@pytest.mark.parametrize(
    ("scheme", "u", "expected"),
    [
        ("systematic", [0.5, 9, 9, 9], [0, 0, 2, 3]),
        ("systematic", [0.0, 9, 9, 9], [0, 0, 2, 3]),
        ("stratified", [0.9, 0.9, 0.1, 0.9], [0, 0, 2, 3]),
        ("stratified", [0.1, 0.9, 0.1, 0.9], [0, 0, 2, 3]),
        ("multinomial", [0.9, 0.1, 0.5, 0.49], [3, 0, 2, 0]),
        ("residual", [0.5, 9, 9, 9], [0, 0, 2, 3]),
    ],
)
def test_schemes_by_hand(scheme, u, expected):
    weights = torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64)
    assert SCHEMES[scheme](weights, torch.tensor(u, dtype=torch.float64)).tolist() == expected


def test_stratified_uses_a_uniform_for_each_stratum():
    weights = torch.tensor([0.375, 0.125, 0.25, 0.25], dtype=torch.float64)
    positions = {(0.1, 0.9, 0.1, 0.1): [0, 1, 2, 3], (0.9, 0.1, 0.1, 0.1): [0, 0, 2, 3]}
    for u, expected in positions.items():
        assert SCHEMES["stratified"](weights, torch.tensor(u, dtype=torch.float64)).tolist() == expected


def test_residual_by_hand():
    # r w = 2.4, 1.0, 0.6, 0: three certain copies, then one draw with probabilities 0.4 and 0.6 for particles 0 and 2.
    weights = torch.tensor([0.6, 0.25, 0.15, 0.0], dtype=torch.float64)
    for u, last in [(0.0, 0), (0.39, 0), (0.41, 2), (LAST_UNIFORM, 2)]:
        drawn = SCHEMES["residual"](weights, torch.tensor([u, 0.0, 0.0, 0.0], dtype=torch.float64))
        assert drawn.tolist() == [0, 0, 1, last]


@EVERY_SCHEME
def test_one_survivor_fills_the_set(scheme):
    s, info = pf.resample(weighted_set([0.0, 0.0, 1.0, 0.0]), scheme=scheme, seed=0, step=1)
    assert info.resampled
    assert info.num_distinct == 1
    assert info.ancestors.tolist() == [2] * 4
    assert s.particles.flatten().tolist() == pytest.approx([2 / 3] * 4)
    assert s.weights.tolist() == [0.25] * 4


@EVERY_SCHEME
def test_resample_copies_its_ancestors_and_is_pure(scheme):
    s = weighted_set([0.6, 0.1, 0.1, 0.1, 0.05, 0.05])
    before = s.to_dict()
    global_state = torch.random.get_rng_state()
    new, info = pf.resample(s, alpha=0.8, scheme=scheme, seed=0, step=1)
    again, info_again = pf.resample(s, alpha=0.8, scheme=scheme, seed=0, step=1)
    assert new == again
    assert torch.equal(info.ancestors, info_again.ancestors)
    assert torch.equal(new.particles, s.particles[info.ancestors])
    assert info.num_distinct == len(set(info.ancestors.tolist()))
    assert info.effective_sample_size == pf.effective_sample_size(s)
    assert pf.effective_sample_size(new) == 6
    assert s.to_dict() == before
    assert torch.equal(global_state, torch.random.get_rng_state())


@EVERY_SCHEME
def test_seeds_and_steps_give_fresh_draws(scheme):
    weights = torch.linspace(1, 3, 20)
    by_step = {tuple(pf.ancestors(weights, scheme, seed=0, step=step).tolist()) for step in range(8)}
    by_seed = {tuple(pf.ancestors(weights, scheme, seed=seed, step=0).tolist()) for seed in range(8)}
    assert len(by_step) > 2
    assert len(by_seed) > 2


def test_resampling_waits_for_the_threshold():
    s = weighted_set([0.5, 0.25, 0.25, 0.0])  # N_eff = 1 / 0.375 = 2.67 of 4, a share of 0.667
    for alpha, resampled in [(0.0, False), (0.66, False), (0.67, True), (1.0, True)]:
        new, info = pf.resample(s, alpha=alpha, seed=0, step=1)
        assert info.resampled is resampled
        if not resampled:
            assert new == s
            assert info.ancestors.tolist() == [0, 1, 2, 3]
            assert info.num_distinct == 4


@EVERY_SCHEME
def test_uniform_weights_are_never_resampled(scheme):
    for r in (3, 7, 50):
        _, info = pf.resample(weighted_set([0.3] * r), alpha=1.0, scheme=scheme, seed=0, step=1)
        assert not info.resampled


def test_underflowed_weights_have_no_descendants():
    s, _ = pf.reweight(weighted_set([0.25] * 4), [-1e6, 1.0, 1.0, -1e6])
    for scheme in SCHEMES:
        _, info = pf.resample(s, scheme=scheme, seed=0, step=1)
        assert set(info.ancestors.tolist()) <= {1, 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 1.1}, r"alpha must be in \[0, 1\], got 1.1"),
        ({"alpha": -0.1}, r"alpha must be in \[0, 1\], got -0.1"),
        ({"alpha": math.nan}, r"alpha must be in \[0, 1\], got nan"),
        ({"scheme": "sytematic"}, "got 'sytematic'; did you mean 'systematic'?"),
        ({"scheme": "multi"}, "did you mean 'multinomial'?"),
        ({"scheme": None}, "scheme must be one of systematic, multinomial, stratified, residual, got None"),
        ({"step": 2**32}, "step must be in"),
    ],
)
def test_resample_names_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        pf.resample(weighted_set([0.9, 0.1]), **{"seed": 0, "step": 1} | arguments)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.0, 0.0], "not all zero, got sum 0.0"),
        ([0.5, -0.5], "not negative"),
        ([0.5, math.nan], "must be finite"),
        ([0.5, math.inf], "must be finite"),
        ([[0.5, 0.5]], r"shape \[r\] with r at least 1, got \[1, 2\]"),
        ([], r"shape \[r\] with r at least 1, got \[0\]"),
    ],
)
def test_ancestors_names_bad_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        pf.ancestors(weights, seed=0, step=1)
