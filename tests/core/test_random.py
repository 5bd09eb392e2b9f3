import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from particleaugment.core import random
from particleaugment.core.random import Stream, exp, log, philox4x32, sqrt, standard_normal, uniform, uniforms

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**63 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63 - 1])
EPOCHS = st.integers(0, 2**32 - 1) | st.sampled_from([0, 2**32 - 1])
IDS = st.integers(0, 2**63 - 1) | st.integers(0, 100) | st.sampled_from([2**32 - 1, 2**32, 2**63 - 1])


# The generator.


def words(*values):
    return tuple(torch.tensor(value) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_philox(counter, key, expected):
    assert tuple(int(word) for word in philox4x32(words(*counter), words(*key))) == expected


def philox_by_the_book(counter, key):
    """Philox4x32-10 in unbounded integers."""
    for _ in range(10):
        products = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (
            (products[1] >> 32) ^ counter[1] ^ key[0],
            products[1] & 0xFFFFFFFF,
            (products[0] >> 32) ^ counter[3] ^ key[1],
            products[0] & 0xFFFFFFFF,
        )
        key = (key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF
    return counter


@PROPERTY
@given(SEEDS, EPOCHS, IDS, st.sampled_from(list(Stream)), st.integers(0, 40))
def test_uniforms_are_the_documented_function_of_their_key(seed, epoch, sample_id, stream, slot):
    counter = (sample_id & 0xFFFFFFFF, sample_id >> 32, epoch, (stream << 24) | (slot >> 1))
    block = philox_by_the_book(counter, (seed & 0xFFFFFFFF, seed >> 32))
    high, low = block[2 * (slot % 2) : 2 * (slot % 2) + 2]
    expected = ((high << 21) | (low >> 11)) / 2**53
    assert float(uniform(seed, stream, epoch, torch.tensor([sample_id]), slot + 1)[0, slot]) == expected


def test_the_numbers_of_the_streams_never_change():
    fixed = {
        "CROP": 1, "FLIP": 2, "ERASE": 3, "PARTICLE": 4, "OP": 5, "SIGN": 6, "ORDER": 7, "NOISE": 8, "RESAMPLE": 9,
        "SPLIT": 10, "GATE": 11, "LEVEL": 12, "INTERPOLATION": 13, "INIT": 14, "SHUFFLE": 15, "MODEL": 16,
    }  # fmt: skip
    assert {name: int(Stream[name]) for name in fixed} == fixed
    assert len(Stream.__members__) == len(set(Stream))  # no two names for one number
    assert all(0 < stream < 256 for stream in Stream)  # they share a word with the slot


@PROPERTY
@given(SEEDS, EPOCHS, st.lists(IDS, min_size=1, max_size=8))
def test_a_tensor_for_seed_or_epoch_is_the_same_as_an_int(seed, epoch, ids):
    ids = torch.tensor(ids)
    expected = uniform(seed, Stream.OP, epoch, ids, 3)
    assert torch.equal(uniform(torch.tensor(seed), Stream.OP, torch.tensor(epoch), ids, 3), expected)


@PROPERTY
@given(st.lists(IDS, min_size=1, max_size=12), st.data())
def test_a_draw_depends_on_its_own_key_alone(ids, data):
    ids = torch.tensor(ids)
    whole = uniforms(7, 3, ids, {Stream.OP: 5, Stream.SIGN: 2, Stream.ERASE: 23})
    order = torch.tensor(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=20)))
    for stream, values in whole.items():
        assert torch.equal(uniform(7, stream, 3, ids[order], values.shape[1]), values[order])
        assert torch.equal(uniform(7, stream, 3, ids, 1), values[:, :1])


def test_shapes():
    ids = torch.arange(6).view(2, 3)
    assert uniform(0, Stream.OP, 0, ids, 5).shape == (2, 3, 5)
    assert torch.equal(uniform(0, Stream.OP, 0, ids, 5).view(6, 5), uniform(0, Stream.OP, 0, ids.flatten(), 5))
    assert uniform(0, Stream.OP, 0, torch.zeros(0, dtype=torch.int64), 4).shape == (0, 4)
    assert uniform(0, Stream.OP, 0, ids, 0).shape == (2, 3, 0)
    assert uniform(0, Stream.OP, 0, ids, 1).dtype == torch.float64


# Quality: every check below runs on the generator, and on broken ones, which must fail.

COUNT = 1 << 14


def uniformity(values, bins=64):
    """P-value of a chi-square test against the uniform distribution."""
    return stats.chisquare(np.bincount((values * bins).astype(int), minlength=bins)).pvalue


def relations():
    """Pairs of draws that differ in one part of the key, for the same COUNT samples."""
    ids = torch.arange(COUNT)
    base = uniform(1, Stream.OP, 3, ids, 6)
    yield "this and the next id", base[:-1, 0], base[1:, 0]
    yield "ids 2^32 apart", base[:, 0], uniform(1, Stream.OP, 3, ids + 2**32, 1)[:, 0]
    yield "ids 2^20 apart", base[:, 0], uniform(1, Stream.OP, 3, ids + 2**20, 1)[:, 0]
    for first, second in ((0, 1), (0, 2), (1, 2), (0, 5)):
        yield f"slots {first} and {second}", base[:, first], base[:, second]
    for other in Stream:
        if other is not Stream.OP:
            yield f"streams op and {other.name.lower()}", base[:, 0], uniform(1, other, 3, ids, 1)[:, 0]
    for epoch in (2, 4, 3 + 2**16, 2**32 - 1):
        yield f"epochs 3 and {epoch}", base[:, 0], uniform(1, Stream.OP, epoch, ids, 1)[:, 0]
    for seed in (0, 2, 1 + 2**32, 2**63 - 1):
        yield f"seeds 1 and {seed}", base[:, 0], uniform(seed, Stream.OP, 3, ids, 1)[:, 0]
    # Parts of the key that are added up rather than mixed: one more here is one more there.
    later = base[1:, 0]
    yield "next id and next stream", later, uniform(1, Stream(Stream.OP + 1), 3, ids[:-1], 1)[:, 0]
    yield "next id and next epoch", later, uniform(1, Stream.OP, 4, ids[:-1], 1)[:, 0]
    yield "next id and next seed", later, uniform(2, Stream.OP, 3, ids[:-1], 1)[:, 0]
    yield "next id and next block of slots", later, base[:-1, 2]


def independence_p_values():
    p_values = {}
    for name, first, second in relations():
        first, second = first.numpy(), second.numpy()
        p_values[f"uniform: {name}"] = uniformity(second)
        joint = (first * 16).astype(int) * 16 + (second * 16).astype(int)
        p_values[f"joint: {name}"] = stats.chisquare(np.bincount(joint, minlength=256)).pvalue
        p_values[f"difference: {name}"] = uniformity((first - second) % 1.0)
        correlation = np.corrcoef(first, second)[0, 1]
        p_values[f"correlation: {name}"] = 2 * stats.norm.sf(abs(correlation) * math.sqrt(len(first)))
    return p_values


def flip_p_value():
    """Smallest p-value, over all pairs of a key bit and an output bit, of the output bit flipping half the time."""
    count = 2048
    # Multiples of a prime: flipping a bit of one never gives another, which would count the pair twice.
    ids, shifts = torch.arange(count) * 6_700_417, torch.arange(53)

    def bits(seed=5, epoch=9, ids=ids, stream=Stream.OP, slot=0):
        values = (uniform(seed, stream, epoch, ids, slot + 1)[:, slot] * 2**53).to(torch.int64)
        return (values.unsqueeze(-1) >> shifts) & 1

    base = bits()
    changed = [bits(ids=ids ^ (1 << bit)) for bit in (*range(11), 20, 31, 32, 40, 62)]
    changed += [bits(epoch=9 ^ (1 << bit)) for bit in range(32)]
    changed += [bits(seed=5 ^ (1 << bit)) for bit in range(63)]
    changed += [bits(slot=slot) for slot in (1, 2, 4, 8)] + [
        bits(stream=stream) for stream in (Stream.CROP, Stream.GATE)
    ]
    flips = torch.stack([(base ^ other).sum(0) for other in changed])
    flips = torch.cat([flips, base.sum(0, keepdim=True)]).numpy()  # the last row: the balance of the bits themselves
    worst = np.abs(flips - count / 2).max() / math.sqrt(count / 4)
    return 2 * stats.norm.sf(worst) * flips.size


def failures():
    """Names of the checks that fail; a p-value near 1 is as suspicious as one near 0, since lattices are too even."""
    failed = [name for name, p in independence_p_values().items() if not 1e-6 < p < 1 - 1e-6]
    return failed + (["flipped bits"] if flip_p_value() < 1e-6 else [])


def test_streams_ids_slots_epochs_and_seeds_are_independent():
    assert failures() == []


def linear(counter, key):
    """A sum of odd multiples of the words: what a hash by multiplication alone would be."""
    primes = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1, 0xD3A2646D)
    total = sum(word * prime for word, prime in zip((*counter, *key), primes))
    return tuple((total * multiple) & 0xFFFFFFFF for multiple in (0x2545F491, 0x9E3779B9, 0xBB67AE85, 0x1B873593))


def two_rounds(counter, key):
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    for step in range(2):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (second >> 32 & 0xFFFFFFFF) ^ c1 ^ key[0] + step, second & 0xFFFFFFFF
        c2, c3 = (first >> 32 & 0xFFFFFFFF) ^ c3 ^ key[1] + step, first & 0xFFFFFFFF
    return tuple(word & 0xFFFFFFFF for word in (c0, c1, c2, c3))


def deaf_to_the_epoch(counter, key):
    return philox4x32((counter[0], counter[1], torch.zeros(()).long(), counter[3]), key)


def streams_added_to_ids(counter, key):
    return philox4x32((counter[0] + (counter[3] >> 24), counter[1], counter[2], counter[3] & 0xFFFFFF), key)


def low_bits_of_the_seed(counter, key):
    return philox4x32(counter, (key[0] & 0xFFFF, key[1]))


def a_stuck_bit(counter, key):
    first, *rest = philox4x32(counter, key)
    return first | 1 << 20, *rest


@pytest.mark.parametrize(
    ("mixer", "caught_by"),
    [
        (linear, "difference: this and the next id"),
        (two_rounds, "flipped bits"),
        (deaf_to_the_epoch, "joint: epochs 3 and 4"),
        (streams_added_to_ids, "joint: next id and next stream"),
        (low_bits_of_the_seed, "flipped bits"),
        (a_stuck_bit, "flipped bits"),
    ],
)
def test_the_checks_catch_a_bad_mixer(monkeypatch, mixer, caught_by):
    monkeypatch.setattr(random, "philox4x32", mixer)
    assert caught_by in failures()


def test_moments_and_extremes():
    values = uniform(3, Stream.NOISE, 0, torch.arange(200_000), 2).numpy().ravel()
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 5 * math.sqrt(1 / 12 / values.size)
    assert abs(values.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / values.size)
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert len(np.unique(values)) == values.size  # of 2^53 values, 400,000 draws repeat one with probability 9e-6


# Bad input.


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([3, -1]), ValueError, "sample ids must not be negative, got -1"),
        (torch.tensor([1.0]), TypeError, r"sample ids must be an int64 tensor, got torch.float32"),
        (torch.tensor([1], dtype=torch.int32), TypeError, "sample ids must be an int64 tensor, got torch.int32"),
        ([1, 2], TypeError, "sample ids must be an int64 tensor, got list"),
    ],
)
def test_bad_ids(ids, error, message):
    with pytest.raises(error, match=message):
        uniform(0, Stream.OP, 0, ids, 1)


@pytest.mark.parametrize("name", ["seed", "epoch"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, r"must be in 0..2\^(63|32)-1, got -1"),
        (2**63, ValueError, r"must be in 0..2\^(63|32)-1, got 9223372036854775808"),
        (1.0, TypeError, "must be an int or a 0-d int64 tensor, got float"),
        (True, TypeError, "must be an int or a 0-d int64 tensor, got bool"),
        (torch.tensor([1]), TypeError, r"must be an int or a 0-d int64 tensor, got torch.int64 of shape \(1,\)"),
        (torch.tensor(1.0), TypeError, "must be an int or a 0-d int64 tensor, got torch.float32"),
    ],
)
def test_bad_seed_or_epoch(name, value, error, message):
    key = {"seed": 0, "epoch": 0} | {name: value}
    with pytest.raises(error, match=f"{name} {message}"):
        uniform(key["seed"], Stream.OP, key["epoch"], torch.tensor([1]), 1)


def test_an_epoch_has_32_bits():
    with pytest.raises(ValueError, match=r"epoch must be in 0..2\^32-1, got 4294967296"):
        uniform(0, Stream.OP, 2**32, torch.tensor([1]), 1)


@pytest.mark.parametrize("slots", [-1, 2**24 + 1])
def test_bad_number_of_slots(slots):
    with pytest.raises(ValueError, match=f"a stream holds 0 to 16777216 slots, got {slots} for gate"):
        uniform(0, Stream.GATE, 0, torch.tensor([1]), slots)


# The functions that are equal on every device.


def test_log_and_exp_agree_with_numpy():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 50_000)), rng.uniform(0.5, 2, 50_000), [2.0**-54, 1.0, 2.0]])
    np.testing.assert_allclose(log(torch.tensor(x)).numpy(), np.log(x), rtol=6e-16, atol=0)
    assert float(log(torch.tensor(1.0, dtype=torch.float64))) == 0
    x = np.concatenate([rng.uniform(-16, 16, 50_000), rng.uniform(-1e-3, 1e-3, 1000), [0.0, -16.0, 16.0]])
    np.testing.assert_allclose(exp(torch.tensor(x)).numpy(), np.exp(x), rtol=1e-13, atol=0)
    assert float(exp(torch.tensor(0.0, dtype=torch.float64))) == 1


def test_sqrt_agrees_with_numpy():
    rng = np.random.default_rng(2)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 50_000)), rng.uniform(0, 40, 50_000), np.arange(1, 200.0) ** 2])
    np.testing.assert_allclose(sqrt(torch.tensor(x)).numpy(), np.sqrt(x), rtol=2.3e-16, atol=0)


def test_standard_normal_agrees_with_scipy():
    rng = np.random.default_rng(1)
    ends = 2.0 ** -np.arange(1, 54)
    u = np.concatenate(
        [rng.random(100_000), ends, 1 - ends, [0.075, 0.925, 0.5], np.exp(-(rng.uniform(1, 6, 500) ** 2))]
    )
    np.testing.assert_allclose(standard_normal(torch.tensor(u)).numpy(), special.ndtri(u), rtol=2e-15, atol=1e-16)


def test_standard_normal_is_finite_at_zero_and_distributed_right():
    lowest = standard_normal(torch.zeros(1, dtype=torch.float64))
    assert float(lowest) == pytest.approx(special.ndtri(2.0**-54), rel=1e-14)
    z = standard_normal(uniform(0, Stream.NOISE, 0, torch.arange(50_000), 2)).flatten()
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4


@pytest.mark.gpu
def test_a_gpu_draws_the_same_bits():
    ids = torch.cat([torch.arange(50_000), torch.tensor([2**32, 2**63 - 1])])
    for seed, epoch in ((0, 0), (2**63 - 1, 2**32 - 1), (123456789012345, 77)):
        on_cpu, on_gpu = uniform(seed, Stream.OP, epoch, ids, 5), uniform(seed, Stream.OP, epoch, ids.cuda(), 5)
        assert torch.equal(on_cpu, on_gpu.cpu())
        for function in (standard_normal, exp, lambda u: log(u + 1e-9), lambda u: sqrt(u + 1e-9)):
            assert torch.equal(function(on_cpu), function(on_gpu).cpu())


@pytest.mark.parametrize("shape", [(40_000,), (3, 9_000), (5, 0), (0,)])
@pytest.mark.parametrize("slots", [1, 7])
def test_many_draws_are_those_of_few(shape, slots):
    ids = torch.arange(torch.Size(shape).numel()).reshape(shape) * 7919
    whole = uniform(3, Stream.OP, 5, ids, slots)
    assert whole.shape == (*shape, slots)
    few = [uniform(3, Stream.OP, 5, part, slots) for part in ids.flatten().split(1000)]
    assert torch.equal(whole.reshape(-1, slots), torch.cat(few))


def test_one_sample_may_have_more_draws_than_fit_at_once():
    whole = uniform(3, Stream.OP, 5, torch.tensor([7, 8, 9]), slots=50_000)
    assert torch.equal(whole[1, :10], uniform(3, Stream.OP, 5, torch.tensor(8), slots=10))
