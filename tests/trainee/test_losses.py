"""The probe: its subsets, its clone, what it measures, and that everything is restored."""

import copy

import pytest
import torch
from probing import OPS, SEED, STEP, Pictures, everything, learner_of, network, pictures, policy_of, run
from torch import nn
from toy import cross_entropy

from particleaugment import Program, apply
from particleaugment import filter as pf
from particleaugment.core.random import Stream, uniform
from particleaugment.data import disjoint_stratified_subsets, epoch_permutation
from particleaugment.data.samples import Samples
from particleaugment.search.clone import CLONE_EPOCHS, MEASUREMENTS


def assert_same(before, after):
    for old, new in zip(before[:3], after[:3]):
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)
    assert before[3] == after[3]
    assert torch.equal(before[4], after[4])


def test_the_subsets_are_fresh_disjoint_stratified_and_keyed():
    dataset = Pictures(*pictures(), targets=pictures()[1])
    samples = Samples(dataset)
    seen = []
    for step in (1, 2, 3):
        dataset.asked.clear()
        run(learner_of(), samples, step=step, clone_size=0.5, measure_size=12)
        measured, trained = dataset.asked[:12], dataset.asked[12:]
        expected = disjoint_stratified_subsets(samples.labels, [30, 12], SEED, step)
        assert sorted(trained) == sorted(expected[0].tolist())
        assert measured == expected[1].tolist()
        assert not set(measured) & set(trained)
        assert samples.labels[trained].bincount().tolist() == [10, 10, 10]
        assert samples.labels[measured].bincount().tolist() == [4, 4, 4]
        seen.append((frozenset(measured), frozenset(trained)))
    assert len({measured for measured, _ in seen}) == len({trained for _, trained in seen}) == 3


def test_the_clone_sees_each_sample_once_an_epoch_under_keys_of_its_own():
    calls = []

    def augment(images, ids, epoch_key):
        calls.append((epoch_key, ids.tolist()))
        return images

    for step in (1, 2):
        run(learner_of(), Samples(pictures()), augment=augment, step=step, clone_epochs=2)
    keys = list(dict.fromkeys(key for key, _ in calls))
    assert len(keys) == 4
    assert all(CLONE_EPOCHS <= key < MEASUREMENTS for key in keys)
    orders = {key: [i for k, ids in calls for i in ids if k == key] for key in keys}
    assert sorted(orders[keys[0]]) == sorted(orders[keys[1]]) != sorted(orders[keys[2]])
    assert orders[keys[0]] != orders[keys[1]], "shuffled anew each epoch"
    assert all(len(set(order)) == len(order) == 30 for order in orders.values())
    assert [len(ids) for _, ids in calls[:4]] == [8, 8, 8, 6]


def test_a_sample_that_is_left_over_trains_with_the_batch_before_it():
    sizes = []

    def augment(images, ids, epoch_key):
        sizes.append(len(ids))
        return images

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))  # refuses one sample
    measured = run(learner_of(model), Samples(pictures()), augment=augment, clone_size=33)
    assert sizes == [8, 8, 8, 9]
    assert measured.upd.isfinite().all()


def reference_clone(learner, samples, augment, clone_size, clone_epochs, batch_size):
    """Train a real copy with a plain loop."""
    model = copy.deepcopy(learner.model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    optimizer.load_state_dict(copy.deepcopy(learner.optimizer.state_dict()))
    ids = disjoint_stratified_subsets(samples.labels, [clone_size, 12], SEED, STEP)[0]
    for number in range(clone_epochs):
        key = CLONE_EPOCHS + STEP * clone_epochs + number
        for chosen in ids[epoch_permutation(len(ids), SEED, key)].split(batch_size):
            images, labels = samples.gather(chosen)
            optimizer.zero_grad()
            inputs = augment(images, chosen, key).float() / 255 - 0.5
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model


def by_hand(policy, particle, image, sample_id):
    """One image under one particle: which ops are drawn, with which signs, run by Pillow."""
    key = (MEASUREMENTS + STEP, torch.tensor([sample_id]), len(OPS))
    drawn = uniform(SEED, Stream.OP, *key)[0] < policy.particles[particle]
    sign = [1.0 if u < 0.5 else -1.0 for u in uniform(SEED, Stream.SIGN, *key)[0]]
    level_five = [15.0 * sign[0], 128, 0.15 * sign[2], 2]
    chosen = [(name, level_five[j]) for j, name in enumerate(OPS) if drawn[j]]
    return apply(image.unsqueeze(0), Program.from_ops([chosen]), executor="pil")


@pytest.mark.parametrize("clone_epochs", [1, 2])
def test_the_measurement_is_that_of_a_plain_loop(clone_epochs):
    samples, policy = Samples(pictures()), policy_of()
    learner = learner_of(network(dropout=0.0))
    learner.train_batch(*pictures(12, seed=5))  # so that there is momentum to copy

    def augment(images, ids, epoch_key):
        return apply(images, policy.sample(ids, epoch_key, SEED, (8, 8)))

    measured = run(learner, samples, policy, augment, clone_epochs=clone_epochs)
    clone = reference_clone(learner, samples, augment, 30, clone_epochs, 8).eval()
    reference = copy.deepcopy(learner.model).eval()
    ids = disjoint_stratified_subsets(samples.labels, [30, 12], SEED, STEP)[1]
    images, labels = samples.gather(ids)
    with torch.no_grad():
        for losses, clean, model in (
            (measured.ref, measured.ref_clean, reference),
            (measured.upd, measured.upd_clean, clone),
        ):
            for k, sample_id in enumerate(ids.tolist()):
                expected = cross_entropy(model(images[k : k + 1].float() / 255 - 0.5), labels[k : k + 1])
                assert float(clean[k]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
                for i in range(3):
                    picture = by_hand(policy, i, images[k], sample_id)
                    expected = cross_entropy(model(picture.float() / 255 - 0.5), labels[k : k + 1])
                    assert float(losses[i, k]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    assert measured.ref.shape == measured.upd.shape == (3, 12)
    assert measured.ref.dtype == torch.float64
    assert not torch.allclose(measured.ref, measured.upd, atol=1e-3), "the clone has learned something"
    assert not torch.allclose(measured.ref[0], measured.ref[2], atol=1e-3), "the particles differ"
    assert measured.seconds.keys() == {"clone", "measure"}


def test_common_random_numbers():
    rows = [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]]
    measured = run(learner_of(), Samples(pictures()), policy_of(rows, torch.tensor([0.7, 0.2, 0.1])))
    for losses, clean in ((measured.ref, measured.ref_clean), (measured.upd, measured.upd_clean)):
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(losses[2], clean, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(losses[0], clean, atol=1e-2)


def test_measuring_in_many_batches_changes_nothing():
    samples = Samples(pictures(60, side=64))
    learner = learner_of(network(side=64))
    calls = []
    rows = torch.rand(7, 4, generator=torch.Generator().manual_seed(0)).tolist()
    whole = run(
        learner, samples, policy_of(rows), clone_size=8, measure_size=51, progress=lambda *told: calls.append(told)
    )
    assert ("measure before", 1, 2) in calls, "357 images of 64x64 are more than one batch holds"
    for i, row in enumerate(rows):
        alone = run(learner, samples, policy_of([row, row]), clone_size=8, measure_size=51)
        torch.testing.assert_close(alone.ref[0], whole.ref[i], rtol=1e-4, atol=1e-5)


class Watch(nn.Module):
    """Passes its input on and notes the mode and the batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append((self.training, len(x), torch.is_autocast_enabled("cpu")))
        return x


def test_the_reference_and_the_clone_are_measured_in_eval_mode():
    for mode in (True, False):
        watch = Watch()
        model = nn.Sequential(watch, network())
        model.train(mode)
        before = everything(learner := learner_of(model))
        run(learner, Samples(pictures()))
        expected = [(False, 36), (False, 12), *[(True, 8)] * 3, (True, 6), (False, 36), (False, 12)]
        assert [(training, size) for training, size, _ in watch.seen] == expected
        assert_same(before, everything(learner))


def test_modules_that_the_user_froze_stay_in_eval_mode_in_the_clone():
    watch = Watch()
    model = nn.Sequential(watch, network())
    model.train()
    watch.eval()
    model[1][1].eval()
    statistics = model[1][1].running_mean.clone()
    seen = []

    def augment(images, ids, epoch_key):
        seen.append(torch.equal(model[1][1].running_mean, statistics))
        return images

    run(learner_of(model), Samples(pictures()), augment=augment)
    assert seen == [True] * 4, "frozen batch norms gather no statistics"
    assert not any(training for training, *_ in watch.seen)
    assert model.training
    assert not watch.training


def test_autocast_covers_training_and_measurement():
    watch = Watch()
    learner = learner_of(nn.Sequential(watch, network()), autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    measured = run(learner, Samples(pictures()))
    assert all(autocast for *_, autocast in watch.seen)
    assert measured.ref.isfinite().all()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_everything_is_restored_with_a_scaler_and_gradients_being_accumulated(kind):
    model = network()
    optimizers = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    learner = learner_of(model, optimizer=optimizers[kind](model.parameters(), lr=0.01), scaler=scaler, accumulate=2)
    for seed in range(3):
        learner.train_batch(*pictures(12, seed=seed))
    assert learner._pending == 1
    before, scale = everything(learner), scaler.state_dict()
    gradients = [parameter.grad for parameter in model.parameters()]
    run(learner, Samples(pictures()))
    assert_same(before, everything(learner))
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients))
    assert learner._pending == 1
    assert scaler.state_dict() == scale
    learner.train_batch(*pictures(12, seed=9))
    assert learner._pending == 0


def test_a_clone_that_diverges_is_a_measurement_to_skip():
    learner = learner_of()
    learner.optimizer.param_groups[0]["lr"] = 1e30
    before = everything(learner)
    measured = run(learner, Samples(pictures()))
    assert_same(before, everything(learner))
    assert measured.ref.isfinite().all()
    assert measured.upd.isnan().all()
    assert measured.upd.shape == measured.ref.shape
    assert measured.upd_clean.isnan().all()
    assert "not finite" in pf.relative_loss_difference(*measured[:4]).skip_reason


def test_gradients_left_at_the_end_of_an_epoch_are_not_lost():
    steps = []
    learner = learner_of(accumulate=3)
    learner.optimizer.register_step_pre_hook(lambda *_: steps.append(learner.model[0].weight.grad.norm()))
    run(learner, Samples(pictures()), clone_epochs=2)
    assert len(steps) == 4, "of four batches an epoch, three make a step and one makes another"
    assert all(norm > 0 for norm in steps)


def test_progress_is_told_of_every_batch():
    calls = []
    run(learner_of(), Samples(pictures()), clone_epochs=2, progress=lambda *told: calls.append(told))
    assert calls == [
        ("measure before", 1, 1),
        *[("train clone", done, 8) for done in range(1, 9)],
        ("measure after", 1, 1),
    ]


@pytest.mark.parametrize("phase", ["measure before", "train clone", "measure after"])
def test_progress_may_stop_the_probe_and_everything_is_restored(phase):
    class Enough(Exception):
        pass

    def progress(name, done, total):
        if name == phase:
            raise Enough

    learner = learner_of(accumulate=3)
    learner.train_batch(*pictures(12))
    before = everything(learner)
    with pytest.raises(Enough):
        run(learner, Samples(pictures()), progress=progress)
    assert_same(before, everything(learner))
    assert learner._pending == 1


def test_soft_targets_in_the_loss():
    images, labels = pictures()
    soft = torch.nn.functional.one_hot(labels, 3).float()
    hard = run(learner_of(network(dropout=0.0)), Samples((images, labels)))
    same = run(learner_of(network(dropout=0.0)), Samples((images, soft)))
    torch.testing.assert_close(same[:4], hard[:4], rtol=1e-4, atol=1e-5)
    smooth = run(learner_of(network(dropout=0.0)), Samples((images, soft * 0.7 + 0.1)))
    assert not torch.allclose(smooth.ref, hard.ref, atol=1e-2)


def test_subsets_larger_than_the_data():
    learner = learner_of()
    before = everything(learner)
    with pytest.raises(ValueError, match=r"subsets of 50 \+ 12 samples do not fit into 60"):
        run(learner, Samples(pictures()), clone_size=50)
    assert_same(before, everything(learner))
