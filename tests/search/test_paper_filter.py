"""One step of a search: the filter's parts in order, steps without a meaning, and losses, precision and data."""

import copy
import math
import re
from dataclasses import replace

import pytest
import torch
from searching import difficulty_search, learning, pictures, run_epochs, search_of, step
from torch import nn
from torch.utils.data import Dataset
from toy import cross_entropy, preprocess

from particleaugment import OPS, PaperFilter
from particleaugment import filter as pf
from particleaugment.data.samples import Samples
from particleaugment.search.clone import CloneLosses
from particleaugment.search.controls import (
    AuthorsFilter,
    FrozenPaperFilter,
    ShuffledPaperFilter,
    UnskippedPaperFilter,
)
from particleaugment.search.filter_base import Subject
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner

# One step of the filter.


def measurement(d0=2.0, particles=6, samples=10, seed=0):
    """Losses whose fall on the plain samples sums to ``d0``, with little noise."""
    generator = torch.Generator().manual_seed(seed)
    ref = 2 + torch.rand(particles, samples, generator=generator, dtype=torch.float64)
    fall = torch.rand(particles, 1, generator=generator, dtype=torch.float64) * 3 * d0 / samples
    clean = 2 + torch.rand(samples, generator=generator, dtype=torch.float64)
    return CloneLosses(ref, ref - fall, clean, clean - d0 / samples, {"clone": 1.0, "measure": 2.0})


def started(filter, delta, steps=0):
    """A state whose weights have been updated by some δ."""
    state = filter.init(3, OPS, epochs=60)
    return replace(state, steps=steps, particles=pf.reweight(state.particles, delta)[0])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_a_step_is_its_parts_one_after_the_other(alpha, scheme):
    filter = PaperFilter(num_particles=6, nonzero=2, sigma=0.1, velocity=-0.01, eta=0.5, alpha=alpha, resampling=scheme)
    state = started(filter, torch.linspace(0.5, 1.5, 6), steps=8)
    kept = copy.deepcopy(state)
    measured = measurement()
    seen = filter.moved(state)
    new, record = filter.update(seen, measured)

    noised = pf.transition(kept.particles, sigma=0.1, velocity=-0.01, seed=3, step=9)
    assert seen.particles == noised != kept.particles
    difference = pf.relative_loss_difference(*measured[:4])
    expected, info = pf.reweight(noised, difference.delta, eta=0.5)
    expected, resampling = pf.resample(expected, alpha=alpha, scheme=scheme, seed=3, step=9)
    assert new.particles == expected
    assert (new.steps, new.skipped) == (9, 0)
    assert state == kept
    assert resampling.resampled == record.resampled == (alpha == 1.0)
    assert record.skip_reason is None
    assert record.step == 9
    assert record.d0 == pytest.approx(2.0)
    assert record.delta == tuple(difference.delta.tolist())
    assert record.standard_error == tuple(difference.standard_error.tolist())
    assert record.effective_sample_size == info.effective_sample_size
    assert record.ops_per_image == pytest.approx(filter.policy(new).ops_per_image)
    assert filter.update(filter.moved(state), measured) == (new, record)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (measurement(d0=-1.0), "d0 = -1 is not positive"),
        (measurement()._replace(upd_clean=measurement().ref_clean), "d0 = 0 is not positive"),
        (measurement()._replace(upd=torch.full((6, 10), math.nan)), r"not finite \(60 in upd\)"),
        (measurement()._replace(upd_clean=measurement().upd_clean * torch.tensor([9.0, -8.0] * 5)), "standard errors"),
    ],
)
def test_a_step_without_a_meaning_leaves_the_weights(measured, reason):
    filter = PaperFilter(num_particles=6, nonzero=2, alpha=1.0)
    state = started(filter, torch.linspace(-3, 2, 6))
    new, record = filter.update(filter.moved(state), measured)
    assert re.search(reason, record.skip_reason)
    assert new.particles == pf.transition(state.particles, seed=3, step=1)
    assert (new.steps, new.skipped) == (1, 1)
    assert torch.equal(new.particles.weights, state.particles.weights)
    assert not record.resampled
    assert record.effective_sample_size == pf.effective_sample_size(state.particles)
    assert len(record.delta) == 6


def test_skipped_steps_are_counted():
    search, (model, optimizer) = search_of(), learning()
    run_epochs(search, model, optimizer, (1,))
    weights, skipped = search.state.particles.weights, search.skipped_steps
    optimizer.param_groups[0]["lr"] = -0.5  # the clone climbs
    record = step(search, model, optimizer)
    assert record.d0 < 0
    assert "is not positive" in record.skip_reason
    assert (search.skipped_steps, search.steps_taken) == (skipped + 1, 2)
    assert torch.equal(search.state.particles.weights, weights)
    optimizer.param_groups[0]["lr"] = 1e30  # the clone diverges
    record = step(search, model, optimizer)
    assert "not finite" in record.skip_reason
    assert (search.skipped_steps, search.steps_taken) == (skipped + 2, 3)
    assert f"{skipped + 2} skipped" in repr(search)
    again = search_of()
    again.load_state_dict(search.state_dict())
    assert again.skipped_steps == skipped + 2
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_good_clone_updates_the_weights():
    search, (model, optimizer) = search_of(alpha=0.0, clone_epochs=3), learning()
    record = step(search, model, optimizer)
    assert record.skip_reason is None
    assert record.d0 > 0
    assert search.state.particles.weights.std() > 0
    factors = torch.tensor([math.tanh(delta - 1) + 1 for delta in record.delta], dtype=torch.float64)
    torch.testing.assert_close(search.state.particles.weights, factors / factors.sum(), rtol=1e-9, atol=0)


# Controls.


def test_the_frozen_control_moves_the_particles_and_measures_nothing():
    filter = FrozenPaperFilter(num_particles=6, nonzero=2)
    state = filter.init(3, OPS, epochs=60)
    new, record = filter.step(state, Subject(trainee=None, labels=torch.arange(4)), epoch=1, epochs=None)
    assert new.particles == pf.transition(state.particles, seed=3, step=1)
    assert (new.steps, record.step, record.skip_reason, record.effective_sample_size) == (1, 1, None, 6.0)
    assert not hasattr(record, "delta")


def test_the_shuffled_control_permutes_what_was_measured():
    plain, shuffled = (kind(num_particles=6, nonzero=2, alpha=0.0) for kind in (PaperFilter, ShuffledPaperFilter))
    state, measured = started(plain, torch.zeros(6)), measurement()
    (_, expected), (new, record) = (each.update(each.moved(state), measured) for each in (plain, shuffled))
    assert sorted(record.delta) == sorted(expected.delta)
    assert record.delta != expected.delta
    pairs = set(zip(expected.delta, expected.standard_error))
    assert set(zip(record.delta, record.standard_error)) == pairs, "errors go with their δ"
    particles, _ = pf.reweight(pf.transition(state.particles, seed=3, step=1), torch.tensor(record.delta))
    assert new.particles.weights.tolist() == pytest.approx(particles.weights.tolist())
    assert shuffled.update(shuffled.moved(state), measured)[1].delta == record.delta
    assert shuffled.update(shuffled.moved(new), measured)[1].delta != record.delta, "each step has its own order"


def test_the_unskipped_control_updates_by_the_wrong_sign_too():
    filter = UnskippedPaperFilter(num_particles=6, nonzero=2, alpha=0.0)
    state, measured = filter.init(3, OPS, epochs=60), measurement(d0=-1.0)
    new, record = filter.update(filter.moved(state), measured)
    assert (record.skip_reason, new.skipped) == (None, 0)
    falls = (measured.ref - measured.upd).sum(1)
    order = new.particles.weights.argsort()
    assert torch.equal(order, falls.argsort(descending=True)), "the particles that helped most lose most"
    unusable = measured._replace(upd=torch.full((6, 10), math.nan))
    assert "not finite" in filter.update(filter.moved(state), unusable)[1].skip_reason


def test_the_authors_code_forgets_its_weights_and_gates_twice():
    filter = AuthorsFilter(num_particles=6, nonzero=2)
    state = started(filter, torch.linspace(-3, 2, 6), steps=4)
    moved = filter.moved(state)
    assert moved.particles == pf.transition(filter.init(3, OPS, epochs=60).particles, seed=3, step=5)
    assert torch.equal(filter.policy(moved).particles, moved.particles.particles / 2)
    assert (filter.m, filter.start_value, filter.resampling) == (10.0, 0.5, "multinomial")


def test_a_clone_takes_an_optimizer():
    model, optimizer = learning()
    message = (
        "the filter 'paper' trains a clone of the network; pass the network's optimizer and batch_size to search.step"
    )
    with pytest.raises(ValueError, match=message):
        step(search_of(), model, None)
    with pytest.raises(ValueError, match=message):
        step(search_of(), model, optimizer, batch_size=None)
    search = difficulty_search()
    assert step(search, model, None, batch_size=None).step == 1


# Losses, precision, data.


def test_label_smoothing_and_soft_targets():
    images, labels = pictures()
    smooth = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    soft = nn.functional.one_hot(labels, 3).float() * 0.9 + 0.1 / 3
    records = []
    for dataset, loss in (((images, labels), smooth), ((images, soft), cross_entropy)):
        search, (model, optimizer) = search_of(data=dataset), learning()
        records.append(step(search, model, optimizer, loss=loss))
    torch.testing.assert_close(records[0].delta, records[1].delta, rtol=1e-3, atol=1e-3)
    search, (model, optimizer) = search_of(), learning()
    assert step(search, model, optimizer).d0 != pytest.approx(records[0].d0, rel=1e-3)


binary_cross_entropy = nn.BCEWithLogitsLoss(reduction="none")


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [(1, binary_cross_entropy), (3, lambda logits, targets: binary_cross_entropy(logits, targets).mean(1))],
    ids=["two classes in one column", "several classes at once"],
)
@pytest.mark.parametrize("make", [search_of, difficulty_search], ids=["paper", "difficulty"])
def test_binary_cross_entropy(make, outputs, loss):
    images, labels = pictures()
    targets = nn.functional.one_hot(labels, 3)[:, :outputs].float()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, outputs))
    search = make(data=(images, targets))
    record = step(search, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
    assert search.steps_taken == 1
    found = record.delta if make is search_of else (record.held_out_loss, record.difficulty)
    assert all(math.isfinite(value) for value in found)


def test_mixed_precision():
    plain, (model, optimizer) = search_of(), learning()
    full = step(plain, model, optimizer)
    search, (model, optimizer) = search_of(), learning()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    record = step(
        search, model, optimizer, autocast=lambda: torch.autocast("cpu", torch.bfloat16), scaler=scaler, accumulate=2
    )
    assert all(math.isfinite(delta) for delta in record.delta)
    assert record.d0 != full.d0
    assert scaler.get_scale() == 2.0**8


def test_a_compiled_model():
    model, optimizer = learning()
    expected = step(search_of(), model, optimizer)
    model, _ = learning()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.05, momentum=0.9)
    before = copy.deepcopy(model.state_dict())
    record = step(search_of(), compiled, optimizer)
    torch.testing.assert_close(record.delta, expected.delta, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_labels_of_a_data_set_are_read_once():
    class Slow(Dataset):
        def __init__(self):
            self.reads = 0

        def __len__(self):
            return 48

        def __getitem__(self, index):
            self.reads += 1
            return pictures()[0][index], index % 3

    dataset, (model, optimizer) = Slow(), learning()
    search = search_of(data=dataset)
    for _ in range(2):
        step(search, model, optimizer)
    assert dataset.reads == 48 + 1 + 2 * (24 + 12), "one image more tells that there are colours"
    expected = step(search_of(), *learning()).delta
    assert step(search_of(data=Slow()), *learning()).delta == pytest.approx(expected, rel=1e-4)


# Bad input.


def test_subsets_that_do_not_fit_the_data():
    with pytest.raises(ValueError, match=r"subsets of 40 \+ 12 samples do not fit into 48"):
        search_of(clone_size=40, measure_size=12)


def test_a_clone_of_a_single_sample_is_refused():
    with pytest.raises(ValueError, match=r"clone_size=0\.03 gives the clone a single sample"):
        search_of(clone_size=0.03)


def test_a_mean_loss_is_refused_with_advice():
    search, (model, optimizer) = search_of(), learning()
    before, policy = copy.deepcopy(model.state_dict()), search.policy
    with pytest.raises(ValueError, match="use reduction='none'"):
        step(search, model, optimizer, loss=nn.CrossEntropyLoss())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert search.policy == policy
    assert search.steps_taken == 0


def test_a_held_out_probe_is_never_trained_on():
    """D_vp is the same samples at every step, the clone trains on others, and so should the loop."""
    images, labels = pictures()
    search = search_of(measure_on="heldout", measure_size=9, clone_size=0.5)
    trained = search.training_set().ids.unique()
    assert len(trained) == len(labels) - 9
    held_out = set(range(len(labels))) - set(trained.tolist())
    seen = {"clone": set(), "measured": []}
    model, optimizer = learning()

    class Noted(EagerTrainee):
        def train(self, policy, ids, *arguments, **options):
            seen["clone"] |= set(ids.tolist())
            return super().train(policy, ids, *arguments, **options)

        def measure(self, policy, ids, *arguments, **options):
            seen["measured"].append(set(ids.tolist()))
            return super().measure(policy, ids, *arguments, **options)

    learner = Learner(model, optimizer, cross_entropy, preprocess)
    trainee = Noted(learner, Samples((images, labels)), search.training_augmentation(), 8)
    for epoch in (1, 2):
        search.step_with(trainee, epoch=epoch)
    assert seen["measured"] == [held_out] * 4
    assert seen["clone"]
    assert not seen["clone"] & held_out
    assert search_of(measure_size=9).training_set().ids.tolist() == list(range(len(labels)))
