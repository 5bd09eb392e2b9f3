"""The gap filter: severity measured op by op, and a search that steers it by the generalisation gap."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from toy import search_by

import particleaugment as pa
from particleaugment import filter as pf
from particleaugment.data.samples import Samples
from particleaugment.data.split import disjoint_stratified_subsets, held_out_split
from particleaugment.search.controls import FrozenGapFilter
from particleaugment.search.gap import FINAL, Severity, averaged_gap, final_share, measure_severity
from particleaugment.trainee.eager import EagerTrainee
from particleaugment.trainee.learner import Learner

SETTINGS = {"num_particles": 16, "gain": 1.0, "measure_size": 64, "epochs": 10}


def problem(seed=0, count=400):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    noise = torch.randint(0, 70, (count, 3, 8, 8), generator=generator)
    images = (noise + 60 * labels[:, None, None, None]).to(torch.uint8)  # brightness tells the classes apart
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    learner = Learner(model, optimizer, nn.CrossEntropyLoss(reduction="none"), lambda x: x / 255.0)
    trainee = EagerTrainee(learner, Samples((images, labels)), pa.Augment(pa.parse("none"), 0), 32)
    return trainee, labels


def fitted(epochs=4):
    trainee, labels = problem()
    trainee.model.train()
    for epoch in range(1, epochs + 1):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(epoch))
        trainee.train(pa.parse("none"), order, epoch, progress=lambda *_: None)
    return trainee, labels


def search_on(trainee, kind=pa.GapFilter, **settings):
    """Return a search on a trainee's samples."""
    return search_by(kind, trainee.samples.tensors, **SETTINGS | settings)


def policy(m=10, ops=pa.OPS):
    return pa.ParticlePolicy(torch.full((2, len(ops)), 0.1), torch.ones(2), m=m, ops=ops)


def test_effects_are_mean_rises_of_the_loss():
    trainee, labels = fitted()
    split = held_out_split(labels, 80, seed=0)
    found = measure_severity(policy(), trainee, labels, split, seed=3, step=5)
    ids = split[1]
    trainee.model.eval()
    images, targets = trainee.samples.gather(ids)
    plain = trainee.learner.losses(images, targets).double()
    for name in ("Solarize", "Rotate", "Brightness"):
        one = torch.zeros(1, 15, dtype=torch.float64)
        one[0, pa.OPS.index(name)] = 1.0
        program = pa.ParticlePolicy(one, [1.0], m=10).sample_particle(
            torch.zeros(80, dtype=torch.int64), ids, (1 << 31) + 5, 0, (8, 8)
        )
        rises = trainee.learner.losses(pa.apply(images, program), targets).double() - plain
        index = pa.OPS.index(name)
        assert float(found.effects.effects[index]) == pytest.approx(float(rises.mean()), rel=1e-4, abs=1e-5)
        error = float(rises.std()) / 80**0.5
        assert float(found.effects.covariance[index, index].sqrt()) == pytest.approx(error, rel=1e-3, abs=1e-6)
    assert found.loss == pytest.approx(float(plain.mean()), rel=1e-5)


def test_identity_is_not_severe_and_inversion_is():
    trainee, labels = fitted()
    effects, covariance = measure_severity(
        policy(), trainee, labels, held_out_split(labels, 200, seed=0), seed=0, step=1
    ).effects
    assert float(effects[pa.OPS.index("Identity")]) == 0
    solarize = pa.OPS.index("Solarize")  # level 10 inverts the brightness that tells the classes apart
    assert float(effects[solarize]) > 10 * float(covariance[solarize, solarize].sqrt())


def test_everything_is_as_before():
    trainee, labels = fitted(epochs=1)
    trainee.model.train()
    trainee.model[1].eval()  # a mode of its own must survive
    before = copy.deepcopy((trainee.model.state_dict(), trainee.optimizer.state_dict()))
    modes = [module.training for module in trainee.model.modules()]
    measure_severity(policy(), trainee, labels, held_out_split(labels, 64, seed=0), seed=0, step=1)
    for old, new in zip(before, (trainee.model.state_dict(), trainee.optimizer.state_dict())):
        torch.testing.assert_close(new, old, rtol=0, atol=0)
    assert [module.training for module in trainee.model.modules()] == modes


def test_augmentation_is_taken_back_over_the_last_fifth():
    shares = [final_share(step / 100) for step in range(101)]
    assert shares[:80] == [1.0] * 80
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(0.0, abs=1e-9)


def test_samples_are_held_out_until_augmentation_is_taken_back():
    start = 2 / math.pi * math.acos(math.sqrt(1 / 10))
    assert final_share(start - 1e-6) == 1.0 > final_share(start + 1e-6)
    assert round(start, 1) == FINAL


def test_the_first_epoch_is_plain():
    assert search_on(problem()[0]).policy.ops_per_image == 0
    assert search_on(problem()[0], FrozenGapFilter).policy.ops_per_image > 0.8


def test_a_search_needs_to_know_how_long_training_lasts():
    data = problem()[0].samples.tensors
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'epochs'"):
        pa.ParticleAugment(data)
    for epochs in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="epochs must be a whole number of at least 1"):
            pa.ParticleAugment(data, epochs=epochs)


def test_held_out_samples_are_given_back_for_the_last_fifth():
    trainee, _ = fitted()
    search = search_on(trainee)
    images, _ = trainee.samples.tensors
    unseen = search.division.split[1]
    images[unseen] = 255 - images[unseen]
    for epoch in range(1, 9):
        assert len(search.division.ids_in(epoch)) == 336
        before = search.step_with(trainee, epoch=epoch).wanted_severity / final_share(epoch / 10)
    images[unseen] = 255 - images[unseen]  # as if they had been learned: no gap is left to be measured
    saved = search.state_dict()
    for epoch in (9, 10):
        search = search_on(trainee)
        search.load_state_dict(saved)
        assert search.division.ids_in(epoch).tolist() == list(range(400))
        record = search.step_with(trainee, epoch=epoch)
        assert before > 0.3
        assert record.wanted_severity == pytest.approx(before * final_share(epoch / 10), abs=1e-9)
        saved = search.state_dict()


def test_training_on_after_the_end_stays_there():
    trainee, _ = fitted()
    search = search_on(trainee, epochs=2)
    assert search.step_with(trainee, epoch=5).wanted_severity == pytest.approx(0.0, abs=1e-9)


def test_the_gap_is_that_of_held_out_and_training_samples():
    trainee, labels = fitted()
    search = search_on(trainee, seed=4)
    trained, unseen_ids = held_out_split(labels, 64, seed=4)
    assert torch.equal(search.training_set().ids.unique(), trained)
    assert torch.equal(torch.cat([trained, unseen_ids]).sort().values, torch.arange(400))
    assert len(unseen_ids) == 64
    assert labels[unseen_ids].bincount().tolist() == [16, 16, 16, 16]
    found = measure_severity(policy(), trainee, labels, (trained, unseen_ids), seed=4, step=1)
    trainee.model.eval()
    images, targets = trainee.samples.gather(unseen_ids)
    unseen = float(trainee.learner.losses(images, targets).double().mean())
    ids = trained[disjoint_stratified_subsets(labels[trained], [64], 4, 1)[0]]
    images, targets = trainee.samples.gather(ids)
    seen = float(trainee.learner.losses(images, targets).double().mean())
    assert found.loss == pytest.approx(unseen, rel=1e-5)
    assert found.gap == pytest.approx(0.9 * unseen - seen, rel=1e-4, abs=1e-6)


def test_severity_follows_the_gap_and_ends_at_none():
    trainee, labels = fitted()
    search = search_on(trainee, epochs=20)
    assert search.policy.ops_per_image == 0
    split = search.division.split
    images, _ = trainee.samples.tensors
    images[split[1]] = 255 - images[split[1]]  # what was never trained on looks unlike the rest: a gap that lasts
    for epoch in range(1, 21):
        record = search.step_with(trainee, epoch=epoch)
        if epoch == 15:
            found = measure_severity(policy(), trainee, labels, split, seed=search.seed, step=15)
            assert record.wanted_severity == pytest.approx(found.gap, rel=1e-3)
            assert record.wanted_severity > 0.3
            assert record.severity == pytest.approx(record.wanted_severity, rel=0.5)
            height = record.severity
    assert record.wanted_severity == pytest.approx(0.0, abs=1e-9)
    assert record.severity < 0.1 * height


def test_gaps_are_averaged_over_a_twentieth_of_training():
    trainee, labels = fitted()
    search = search_on(trainee, epochs=100, every=2)
    split = search.division.split
    wanted = 0.0
    for step in range(1, 5):
        record = search.step_with(trainee, epoch=2 * step)
        measured = measure_severity(policy(), trainee, labels, split, seed=search.seed, step=step).gap
        wanted += (measured - wanted) / (0.05 * 100 / 2)
        assert record.gap == pytest.approx(measured, rel=1e-6)
        assert record.mean_gap == pytest.approx(wanted, rel=1e-6)


def test_averaging_does_not_move_the_mean_and_takes_the_noise_away():
    draws = torch.randn(4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    mean, means = 0.08, []
    for draw in draws:
        mean = averaged_gap(mean, 0.08 + 0.03 * draw, steps=12.5)
        means.append(mean)
    assert abs(sum(means) / len(means) - 0.08) < 0.003
    assert 0.004 < torch.tensor(means).std() < 0.008  # 0.03 x sqrt(1 / (2 x 12.5 - 1)) = 0.006
    assert averaged_gap(0.5, 0.1, steps=0.4) == pytest.approx(0.1)


def test_a_negative_gap_wants_nothing():
    assert pa.GapFilter().wanted_severity(-0.2, done=0.1) == 0.0


def test_a_gap_that_was_not_measured_leaves_the_mean_as_it_was():
    filter, effects = pa.GapFilter(), pf.OpEffects(torch.ones(15).double(), torch.eye(15).double())
    moved = filter.moved(replace(filter.init(0, pa.OPS, epochs=60), mean_gap=0.3))

    def mean_gap(effects, gap):
        return filter.update(moved, Severity(effects, 1.0, gap, {}), epoch=1, epochs=10)[0].mean_gap

    assert mean_gap(effects, None) == 0.3
    assert mean_gap(None, float("nan")) == 0.3
    assert mean_gap(effects, 0.1) == pytest.approx(0.1)  # 10 epochs: no memory


def test_gain_multiplies_what_is_wanted():
    trainee, _ = fitted()
    unseen = search_on(trainee).division.split[1]
    images, _ = trainee.samples.tensors
    images[unseen] = 255 - images[unseen]
    wanted = []
    for gain in (0.0, 1.0, 3.0):
        search = search_on(trainee, gain=gain)
        wanted.append(search.step_with(trainee, epoch=1).wanted_severity)
    assert wanted[1] > 0.1
    assert wanted == pytest.approx([0.0, wanted[1], 3 * wanted[1]])


def test_a_gain_is_a_number_of_at_least_zero():
    for gain in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="gain must be finite and at least 0"):
            pa.GapFilter(gain=gain)


def test_without_a_gap_nothing_is_applied():
    trainee, _ = problem()  # an untrained network knows all samples equally well
    search = search_on(trainee, epochs=20)
    for epoch in range(1, 6):
        record = search.step_with(trainee, epoch=epoch)
    assert record.wanted_severity < 0.05


def test_a_search_by_severity_resumes():
    trainee, _ = fitted()
    search, again = search_on(trainee), search_on(trainee)
    for epoch in (1, 2):
        record = search.step_with(trainee, epoch=epoch)
    assert len(record.delta) == 16
    assert len(record.effects) == len(record.effect_errors) == 15
    again.load_state_dict(search.state_dict())
    assert again.step_with(trainee, epoch=3) == search.step_with(trainee, epoch=3)
    assert again.state == search.state


def test_losses_that_are_not_finite_are_no_measurement():
    trainee, labels = problem()
    with torch.no_grad():
        trainee.model[0].weight.fill_(float("nan"))
    assert (
        measure_severity(policy(), trainee, labels, held_out_split(labels, 32, seed=0), seed=0, step=1).effects is None
    )
    search = search_on(trainee)
    before = search.state
    record = search.step_with(trainee, epoch=1)
    assert "not finite" in record.skip_reason
    assert search.skipped_steps == 1
    assert torch.equal(search.state.particles.weights, before.particles.weights)


def test_one_sample_gives_no_standard_error():
    with pytest.raises(ValueError, match="measure_size must be at least 2: one sample gives no standard error"):
        pa.GapFilter(measure_size=1)
    with pytest.raises(ValueError, match=r"measure_size=0\.03 holds out one of 40 samples"):
        search_on(problem(count=40)[0], measure_size=0.03)


def test_the_frozen_copy_needs_no_measurement():
    trainee, labels = problem()
    search = search_on(trainee, FrozenGapFilter)
    assert len(search.training_set()) == len(labels)
    record = search.step_with(trainee, epoch=1)
    assert not hasattr(record, "delta")
    assert record.effective_sample_size == pf.effective_sample_size(search.state.particles) == pytest.approx(16)
