import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from particleaugment import filter as pf

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
DELTAS = st.lists(
    st.floats(-1e6, 1e6) | st.floats(-5, 5) | st.sampled_from([-1e6, 1e6, 0.0, 1.0, -1.7e308, 1.7e308]),
    min_size=2,
    max_size=30,
)
ETAS = st.sampled_from([0.01, 0.15, 1.0, 4.0, 100.0])


def uniform_set(num_particles):
    return pf.ParticleSet(torch.linspace(0, 1, num_particles, dtype=torch.float64).unsqueeze(1))


@PROPERTY
@given(DELTAS, ETAS, st.integers(1, 3))
def test_weights_sum_to_one_whatever_the_measurement(deltas, eta, steps):
    s = uniform_set(len(deltas))
    for _ in range(steps):
        s, info = pf.reweight(s, deltas, eta=eta)
        assert s.weights.isfinite().all()
        assert (s.weights >= 0).all()
        assert float(s.weights.sum()) == pytest.approx(1.0, abs=1e-14)
        assert s.log_weights.isfinite().all()
        assert info.log_factors.isfinite().all()
        assert 1.0 <= info.effective_sample_size == pf.effective_sample_size(s)
        assert info.max_weight == float(s.weights.max())
        assert math.isfinite(info.log_normalizer)


@PROPERTY
@given(st.floats(-1e6, 1e6), st.lists(st.floats(-5, 5), min_size=2, max_size=20), ETAS)
def test_equal_measurements_leave_the_weights_alone(delta, log_weights, eta):
    s = pf.ParticleSet(torch.full((len(log_weights), 2), 0.5), log_weights)
    updated, _ = pf.reweight(s, [delta] * len(log_weights), eta=eta)
    # log-weights are added to factors as large as eta * 2e6, and keep what digits that leaves.
    torch.testing.assert_close(updated.weights, s.weights, rtol=1e-15 * (1 + eta * 2 * abs(delta)) * 10, atol=1e-15)


@PROPERTY
@given(DELTAS, ETAS, st.randoms(use_true_random=False))
def test_reweight_keeps_the_order_of_particles(deltas, eta, random):
    order = random.sample(range(len(deltas)), len(deltas))
    s = uniform_set(len(deltas))
    updated, info = pf.reweight(s, deltas, eta=eta)
    permuted, permuted_info = pf.reweight(pf.ParticleSet(s.particles[order]), [deltas[i] for i in order], eta=eta)
    assert torch.equal(permuted.particles, updated.particles[order])
    torch.testing.assert_close(permuted.weights, updated.weights[order], rtol=1e-12, atol=1e-300)
    assert permuted_info.effective_sample_size == pytest.approx(info.effective_sample_size, rel=1e-12)


@PROPERTY
@given(st.lists(st.floats(-3, 5), min_size=2, max_size=20), ETAS)
def test_reweight_is_the_formula(deltas, eta):
    factors = [(math.tanh(delta - 1) + 1) ** eta for delta in deltas]
    updated, info = pf.reweight(uniform_set(len(deltas)), deltas, eta=eta)
    expected = torch.tensor(factors, dtype=torch.float64) / math.fsum(factors)
    torch.testing.assert_close(updated.weights, expected, rtol=1e-9 * max(1.0, eta), atol=1e-300)
    assert info.log_normalizer == pytest.approx(math.log(math.fsum(factors) / len(factors)), rel=1e-9, abs=1e-9 * eta)


def test_a_better_measurement_never_loses_weight():
    updated, _ = pf.reweight(uniform_set(5), [-1.0, 0.0, 1.0, 2.0, 3.0])
    assert updated.weights.diff().gt(0).all()


def test_reweight_by_hand():
    s = pf.ParticleSet([[0.0], [0.5], [1.0]], torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log())
    updated, info = pf.reweight(s, [1.0, 2.0, 0.0], eta=1.0)
    # The factors are 1, tanh(1) + 1 and tanh(-1) + 1; tanh(1) = 0.761594155955765 from a table.
    products = [0.2, 0.3 * 1.761594155955765, 0.5 * 0.238405844044235]
    assert updated.weights.tolist() == pytest.approx([p / sum(products) for p in products], rel=1e-14)
    assert info.log_normalizer == pytest.approx(math.log(sum(products)))
    assert info.log_factors.tolist() == pytest.approx([0.0, math.log(1.761594155955765), math.log(0.238405844044235)])


def test_eta_is_an_exponent():
    once, _ = pf.reweight(uniform_set(3), [0.5, 1.0, 2.0], eta=2.0)
    twice, _ = pf.reweight(pf.reweight(uniform_set(3), [0.5, 1.0, 2.0])[0], [0.5, 1.0, 2.0])
    torch.testing.assert_close(once.weights, twice.weights, rtol=1e-13, atol=0)


def test_log_factors_are_linear_far_below_zero():
    _, info = pf.reweight(uniform_set(3), [-1e6, -2e6, 1e6])
    assert info.log_factors.tolist() == pytest.approx([math.log(2) - 2e6 - 2, math.log(2) - 4e6 - 2, math.log(2)])


def test_one_survivor_takes_all():
    updated, info = pf.reweight(uniform_set(4), [-1e6, -1e6, 1.0, -1e6])
    assert updated.weights.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert (info.effective_sample_size, info.max_weight) == (1.0, 1.0)
    assert updated.log_weights.isfinite().all()


def test_a_dead_particle_stays_dead():
    s = pf.ParticleSet([[0.0], [0.5], [1.0]], [0.0, -math.inf, 0.0])
    updated, _ = pf.reweight(s, [-1e6, 1e6, -1e6])
    assert updated.weights.tolist() == [0.5, 0.0, 0.5]


def test_reweight_is_pure():
    s = uniform_set(3)
    before, delta = s.to_dict(), torch.tensor([0.5, 1.0, 2.0])
    first, second = pf.reweight(s, delta), pf.reweight(s, delta)
    assert first[0] == second[0]
    assert torch.equal(first[1].log_factors, second[1].log_factors)
    assert s.to_dict() == before
    assert delta.tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("delta", "eta", "message"),
    [
        ([1.0, math.nan], 1.0, "delta must be finite, got nan for particle 1; skip the update"),
        ([-math.inf, 1.0], 1.0, "delta must be finite, got -inf for particle 0"),
        ([1.0, 1.0, 1.0], 1.0, r"delta must have shape \[2\].*got \[3\]"),
        (1.0, 1.0, r"delta must have shape \[2\].*got \[\]"),
        ([1.0, 1.0], 0.0, "eta must be finite and above 0, got 0.0"),
        ([1.0, 1.0], -1.0, "eta must be finite and above 0, got -1.0"),
        ([1.0, 1.0], math.nan, "eta must be finite and above 0, got nan"),
    ],
)
def test_reweight_names_bad_arguments(delta, eta, message):
    with pytest.raises(ValueError, match=message):
        pf.reweight(uniform_set(2), delta, eta=eta)


def test_relative_loss_difference_of_sums_by_hand():
    m = pf.relative_loss_difference(ref=[10.0, 8.0, 6.0], upd=[6.0, 7.0, 7.0], ref_clean=5.0, upd_clean=3.0)
    assert m.delta.tolist() == [2.0, 0.5, -0.5]
    assert m.d0 == 2.0
    assert m.standard_error is None
    assert m.skip_reason is None


def test_relative_loss_difference_per_sample_by_hand():
    # Falls of particle 0: 1, 2, 3 (sum 6); of particle 1: 0, 2, 1 (sum 3); plain: 1, 1, 2 (sum 4).
    m = pf.relative_loss_difference(
        ref=[[2.0, 4.0, 5.0], [1.0, 3.0, 2.0]],
        upd=[[1.0, 2.0, 2.0], [1.0, 1.0, 1.0]],
        ref_clean=[2.0, 3.0, 4.0],
        upd_clean=[1.0, 2.0, 2.0],
    )
    assert m.delta.tolist() == [1.5, 0.75]
    assert m.d0 == 4.0
    # Residuals a - delta b: (-0.5, 0.5, 0), variance 1/4; (-0.75, 1.25, -0.5), variance (9 + 25 + 4) / 16 / 2 = 19/16.
    assert m.standard_error.tolist() == pytest.approx([math.sqrt(3 / 4) / 4, math.sqrt(3 * 19 / 16) / 4])
    assert m.skip_reason is None


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list, lambda v: torch.tensor(v, requires_grad=True)])
def test_losses_may_come_in_any_array(kind):
    m = pf.relative_loss_difference(kind([2.0, 4.0]), kind([1.0, 2.0]), torch.tensor(3), np.float32(2))
    assert m.delta.dtype == torch.float64
    assert m.delta.tolist() == [1.0, 2.0]
    assert not m.delta.requires_grad
    assert isinstance(m.d0, float)


def test_sums_and_their_samples_agree_and_nothing_is_changed():
    generator = torch.Generator().manual_seed(0)
    ref, upd = torch.rand(2, 6, 40, generator=generator) + torch.tensor([1.0, 0.0]).view(2, 1, 1)
    ref_clean, upd_clean = ref[0] + 0.1, upd[0] - 0.1
    copies = [x.clone() for x in (ref, upd, ref_clean, upd_clean)]
    m = pf.relative_loss_difference(ref, upd, ref_clean, upd_clean)
    sums = pf.relative_loss_difference(
        ref.double().sum(1), upd.double().sum(1), ref_clean.double().sum(), upd_clean.double().sum()
    )
    torch.testing.assert_close(m.delta, sums.delta, rtol=1e-12, atol=0)
    again = pf.relative_loss_difference(ref, upd, ref_clean, upd_clean)
    assert torch.equal(again.delta, m.delta)
    assert torch.equal(again.standard_error, m.standard_error)
    assert all(torch.equal(a, b) for a, b in zip(copies, (ref, upd, ref_clean, upd_clean), strict=True))


@PROPERTY
@given(st.integers(1, 12), st.integers(2, 12), st.randoms(use_true_random=False))
def test_measurement_keeps_the_order_of_particles(num_particles, num_samples, random):
    draw = lambda *shape: torch.tensor(np.random.default_rng(random.randrange(2**32)).random(shape))  # noqa: E731
    ref, upd = draw(num_particles, num_samples) + 1, draw(num_particles, num_samples)
    clean = draw(num_samples) + 1, draw(num_samples)
    order = random.sample(range(num_particles), num_particles)
    m = pf.relative_loss_difference(ref, upd, *clean)
    permuted = pf.relative_loss_difference(ref[order], upd[order], *clean)
    torch.testing.assert_close(permuted.delta, m.delta[order], rtol=1e-12, atol=0)
    torch.testing.assert_close(permuted.standard_error, m.standard_error[order], rtol=1e-9, atol=1e-12)
    assert permuted.skip_reason == m.skip_reason


def test_standard_error_matches_the_spread_over_fresh_samples():
    rng = np.random.default_rng(0)
    num_samples, trials = 300, 1500
    plain = rng.normal(1.0, 1.0, size=(trials, num_samples))
    # Particle 0 follows the plain falls closely, particle 1 loosely, particle 2 not at all.
    spread, slope, level = np.array([[[0.2], [1.0], [2.0]], [[0.9], [0.5], [0.0]], [[0.1], [0.2], [0.7]]])
    noise = spread * rng.normal(size=(trials, 3, num_samples))
    falls = slope * plain[:, None, :] + level + noise
    measured = [
        pf.relative_loss_difference(a, np.zeros_like(a), b, np.zeros_like(b)) for a, b in zip(falls, plain, strict=True)
    ]
    observed = torch.stack([m.delta for m in measured]).std(dim=0)
    claimed = torch.stack([m.standard_error for m in measured]).mean(dim=0)
    # A standard deviation over 1500 trials is known to about 1/sqrt(3000) = 1.8 %.
    torch.testing.assert_close(claimed, observed, rtol=0.08, atol=0)


def test_standard_error_is_zero_for_proportional_losses_and_unknown_for_one_sample():
    plain = torch.rand(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    m = pf.relative_loss_difference(torch.stack([plain, 2 * plain]), torch.zeros(2, 20), plain, torch.zeros(20))
    torch.testing.assert_close(m.standard_error, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    single = pf.relative_loss_difference([[2.0], [1.0]], [[1.0], [0.0]], [2.0], [1.0])
    assert single.delta.tolist() == [1.0, 1.0]
    assert single.standard_error.isnan().all()
    assert single.skip_reason is None


@pytest.mark.parametrize("name", ["ref", "upd", "ref_clean", "upd_clean"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_losses_are_a_reason_to_skip(name, value):
    sums = {"ref": [3.0, 3.0], "upd": [1.0, 1.0], "ref_clean": 2.0, "upd_clean": 1.0}
    samples = {"ref": [[3.0, 3.0]] * 2, "upd": [[1.0, 1.0]] * 2, "ref_clean": [2.0, 2.0], "upd_clean": [1.0, 1.0]}
    broken = {
        "sums": sums | {name: value if name.endswith("clean") else [3.0, value]},
        "samples": samples | {name: [2.0, value] if name.endswith("clean") else [[3.0, 3.0], [value, 3.0]]},
    }
    for losses in broken.values():
        m = pf.relative_loss_difference(**losses)
        assert m.skip_reason is not None
        assert f"1 in {name}" in m.skip_reason
        if not name.endswith("clean"):
            assert m.delta[0].isfinite() or m.delta[1].isfinite()


@pytest.mark.parametrize(("upd_clean", "d0"), [(5.0, "d0 = 0 "), (6.5, "d0 = -1.5 ")])
def test_no_improvement_on_plain_samples_is_a_reason_to_skip(upd_clean, d0):
    m = pf.relative_loss_difference([10.0, 8.0], [6.0, 7.0], 5.0, upd_clean)
    assert m.skip_reason.startswith(d0)
    assert "not positive" in m.skip_reason
    samples = pf.relative_loss_difference(
        [[5.0, 5.0], [4.0, 4.0]], [[3.0, 3.0], [3.5, 3.5]], [2.5, 2.5], [upd_clean / 2, upd_clean / 2]
    )
    assert samples.skip_reason == m.skip_reason
    assert torch.equal(samples.delta.isnan(), m.delta.isnan())
    assert bool(m.delta.isnan().all()) == (m.d0 == 0)
    assert samples.standard_error.shape == (2,)


def test_a_signal_below_its_noise_is_a_reason_to_skip():
    plain = torch.tensor([3.0, -2.0, 1.0, -1.0])  # d0 = 1, its standard error sqrt(4 * 59/12) = 4.43
    arguments = torch.ones(2, 4), torch.zeros(2, 4), plain, torch.zeros(4)
    reason = pf.relative_loss_difference(*arguments).skip_reason
    assert "d0 = 1 is below 1 of its standard errors (4.43471 over 4 samples)" in reason
    assert pf.relative_loss_difference(*arguments, min_signal=0.23).skip_reason is not None
    assert pf.relative_loss_difference(*arguments, min_signal=0.22).skip_reason is None
    assert pf.relative_loss_difference(*arguments, min_signal=0.0).skip_reason is None
    assert pf.relative_loss_difference(torch.ones(2), torch.zeros(2), 1.0, 0.0).skip_reason is None


def test_sums_too_large_for_a_float_are_a_reason_to_skip():
    huge = pf.relative_loss_difference([[1.0, 1.0]] * 2, [[0.0, 0.0]] * 2, [1e308, 1e308], [0.0, 0.0])
    assert "d0 = inf is not finite" in huge.skip_reason
    tiny = pf.relative_loss_difference([1e10, 0.0], [0.0, 0.0], 1e-310, 0.0)
    assert "1 of 2 relative differences are not finite" in tiny.skip_reason


@PROPERTY
@given(st.lists(st.floats(), min_size=4, max_size=4), st.floats(), st.floats())
def test_what_is_not_skipped_can_be_used(losses, ref_clean, upd_clean):
    m = pf.relative_loss_difference(losses[:2], losses[2:], ref_clean, upd_clean)
    if m.skip_reason is None:
        updated, _ = pf.reweight(uniform_set(2), m.delta)
        assert float(updated.weights.sum()) == pytest.approx(1.0)
    else:
        assert not math.isfinite(m.d0) or m.d0 <= 0 or not m.delta.isfinite().all()


@pytest.mark.parametrize(
    "shapes",
    [
        [(2,), (3,), (), ()],
        [(2,), (2,), (2,), (2,)],
        [(2, 3), (2, 3), (3,), (2,)],
        [(2, 3), (2, 3), (2,), (2,)],
        [(2, 3), (2, 3), (), ()],
        [(), (), (), ()],
        [(2, 0), (2, 0), (0,), (0,)],
        [(1, 2, 3), (1, 2, 3), (2, 3), (2, 3)],
    ],
)
def test_relative_loss_difference_names_shapes_that_disagree(shapes):
    losses = [torch.ones(shape) for shape in shapes]
    with pytest.raises(ValueError, match=r"sums \[r\] with scalars, or per sample \[r, N\] with \[N\], got ref"):
        pf.relative_loss_difference(*losses)


def test_relative_loss_difference_wants_a_sensible_threshold():
    with pytest.raises(ValueError, match=r"min_signal must be finite and at least 0, got -1\.0"):
        pf.relative_loss_difference([1.0], [0.0], 1.0, 0.0, min_signal=-1.0)
