import copy
import io
import json
import math
import re

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import particleaugment as pa
from particleaugment import filter as pf
from particleaugment.data import load_digits
from particleaugment.probe import CLONE_EPOCHS, Measurement
from particleaugment.search import FilterSettings, filter_step
from particleaugment.transforms import Transform

cross_entropy = nn.CrossEntropyLoss(reduction="none")


def pictures(count=48, side=8):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 120, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    images[torch.arange(count), labels] += 100  # the class is the brightest channel
    return images, labels


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(384, 3))


def preprocess(images):
    return images.float() / 255 - 0.5


def learning():
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def search_of(**settings):
    defaults = {"num_particles": 5, "nonzero": 2, "m": 4, "seed": 7, "clone_size": 24, "measure_size": 12}
    return pa.ParticleAugment(**(defaults | settings))


def step(search, model, optimizer, **changes):
    arguments = {"dataset": pictures(), "loss": cross_entropy, "preprocess": preprocess, "batch_size": 8}
    return search.step(model=model, optimizer=optimizer, **(arguments | changes))


def train_epoch(search, model, optimizer, epoch, with_ids=True):
    images, labels = pictures()
    search.set_epoch(epoch)
    model.train()
    for ids in torch.arange(len(images)).split(16):
        x = search.augment(images[ids], ids if with_ids else None)
        optimizer.zero_grad()
        cross_entropy(model(preprocess(x)), labels[ids]).mean().backward()
        optimizer.step()


# One's own loop.


def test_a_plain_training_loop_learns():
    data = load_digits()
    torch.manual_seed(0)
    images, labels = data.train_images[:400], data.train_labels[:400]
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    epochs = 8
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    search = pa.ParticleAugment(num_particles=8, nonzero=3, m=3, seed=0, clone_size=200, measure_size=80)
    for epoch in range(1, epochs + 1):
        search.set_epoch(epoch)
        for ids in torch.randperm(400).split(32):
            loss = cross_entropy(model(preprocess(search.augment(images[ids], ids))), labels[ids]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        if search.due(epoch, epochs):
            search.step(model=model, optimizer=optimizer, dataset=(images, labels), loss=cross_entropy,
                        preprocess=preprocess, batch_size=32)  # fmt: skip
    with torch.no_grad():
        right = (model(preprocess(data.test_images)).argmax(1) == data.test_labels).float().mean()
    assert right > 0.8
    assert search.steps_taken == epochs - 1
    assert search.skipped_steps < epochs - 1
    assert search.policy != search.schedule(epochs).at(1)


def run_epochs(search, model, optimizer, epochs, with_ids=True):
    records = []
    for epoch in epochs:
        train_epoch(search, model, optimizer, epoch, with_ids)
        records.append(step(search, model, optimizer))
    return records


def test_the_same_seed_gives_the_same_result():
    results = []
    for seed in (7, 7, 8):
        search, (model, optimizer) = search_of(seed=seed), learning()
        records = run_epochs(search, model, optimizer, (1, 2, 3))
        results.append((search.state, records, model[0].weight))
    assert results[0][0] == results[1][0] != results[2][0]
    assert results[0][1] == results[1][1] != results[2][1]
    assert torch.equal(results[0][2], results[1][2])
    assert not torch.equal(results[0][2], results[2][2])


def test_the_global_generator_plays_no_part():
    states = []
    for seed in (0, 1):
        search, (model, optimizer) = search_of(), learning()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        run_epochs(search, model, optimizer, (1, 2))
        states.append(search.state)
        assert torch.equal(torch.get_rng_state(), before)
    assert states[0] == states[1]


def test_a_step_leaves_everything_but_the_policy_alone():
    search, (model, optimizer) = search_of(), learning()
    train_epoch(search, model, optimizer, 1)
    model.eval()
    model[1].train()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    policy = search.policy
    record = step(search, model, optimizer)
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert [module.training for module in model.modules()] == [False, False, True, False, False, False]
    assert search.epoch == 1
    assert search.policy != policy
    assert record.step == search.steps_taken == 1
    assert len(record.delta) == len(record.standard_error) == 5
    assert record.seconds.keys() == {"clone", "measure", "filter"}


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_saved_search_continues_identically(with_ids):
    search, (model, optimizer) = search_of(velocity=(0.01,) * 15), learning()
    run_epochs(search, model, optimizer, (1, 2), with_ids)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "search": search.state_dict()}, file)
    records = run_epochs(search, model, optimizer, (3, 4), with_ids)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, (other, other_optimizer) = search_of(velocity=(0.01,) * 15), learning()
    other.load_state_dict(saved["model"])
    other_optimizer.load_state_dict(saved["optimizer"])
    again.load_state_dict(saved["search"])
    assert again.steps_taken == 2
    again_records = run_epochs(again, other, other_optimizer, (3, 4), with_ids)

    assert again_records == records
    assert again.state == search.state
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert again.state_dict().keys() == search.state_dict().keys()
    assert again.schedule(4) == search.schedule(4)
    images = pictures()[0]
    assert torch.equal(again.augment(images), search.augment(images))


@pytest.mark.parametrize(("change", "what"), [({"eta": 0.5}, "settings"), ({"seed": 8}, "seed")])
def test_a_search_with_other_settings_cannot_be_loaded(change, what):
    with pytest.raises(ValueError, match=f"the saved search has other {what}: .* make ParticleAugment with those"):
        search_of(**change).load_state_dict(search_of().state_dict())


def test_freeze():
    search, (model, optimizer) = search_of(), learning()
    step(search, model, optimizer)
    assert search.due(2)
    search.freeze()
    policy = search.policy
    assert step(search, model, optimizer) is None
    assert not search.due(2)
    assert search.policy == policy
    assert search.steps_taken == 1
    again = search_of()
    again.load_state_dict(search.state_dict())
    assert again.frozen
    assert step(again, model, optimizer) is None


@pytest.mark.parametrize(
    ("settings", "epochs", "expected"),
    [
        ({}, 6, [1, 2, 3, 4, 5]),
        ({"warmup": 3}, 6, [3, 4, 5]),
        ({"every": 2}, 7, [2, 4, 6]),
        ({"every": 3, "warmup": 4}, 10, [6, 9]),
        ({"every": 2}, 6, [2, 4]),
        ({"warmup": 0}, None, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ],
)
def test_due(settings, epochs, expected):
    search = search_of(**settings)
    assert [epoch for epoch in range(1, 12) if search.due(epoch, epochs)] == expected


# What augment draws.


def test_augment_draws_from_todays_policy():
    search, (model, optimizer) = search_of(start_value=0.9), learning()
    images, _ = pictures()
    ids = torch.arange(len(images))
    for epoch in (1, 2):
        search.set_epoch(epoch)
        program = search.policy.sample(ids, epoch, 7, (8, 8))
        assert torch.equal(search.augment(images, ids), pa.apply(images, program))
        step(search, model, optimizer)


class Spy(Transform):
    """Does nothing to the images and notes for which epochs it is asked."""

    def __init__(self):
        self.epochs = []

    def sample(self, ids, epoch, seed, size):
        self.epochs.append((epoch, seed, len(ids)))
        return ids

    def run(self, images, draws):
        return images


def test_always_on_transforms_act_on_the_clones_training_and_not_on_the_measurement():
    before, after = Spy(), Spy()
    search, (model, optimizer) = search_of(before=[before], after=[after], clone_epochs=2), learning()
    record = step(search, model, optimizer)
    expected = [(CLONE_EPOCHS + 2 + number, 7, 8) for number in (0, 1) for _ in range(3)]
    assert before.epochs == after.epochs == expected
    assert record.skip_reason is None or "d0" in record.skip_reason


# The schedule.


def test_the_schedule_holds_every_policy_and_replays_it(tmp_path):
    search, (model, optimizer) = search_of(every=2), learning()
    in_force = {}
    for epoch in range(1, 8):
        search.set_epoch(epoch)
        in_force[epoch] = search.policy
        if search.due(epoch, 7):
            step(search, model, optimizer)
    search.schedule(7).save(tmp_path / "policy.json")
    schedule = pa.Schedule.load(tmp_path / "policy.json")
    assert schedule == search.schedule(7)
    assert [s.from_epoch for s in schedule.steps] == [1, 3, 5, 7]
    assert {epoch: schedule.at(epoch) for epoch in in_force} == in_force
    assert len(set(in_force.values())) == 4

    ids = torch.arange(20)
    for epoch in (1, 4, 7):
        assert schedule.sample(ids, epoch, 3).equal(in_force[epoch].sample(ids, epoch, 3))

    longer = pa.Schedule.load(tmp_path / "policy.json", epochs=14)
    assert [longer.at(epoch) for epoch in range(1, 15)] == [in_force[(epoch + 1) // 2] for epoch in range(1, 15)]
    shorter = pa.Schedule.load(tmp_path / "policy.json", epochs=2)
    assert [shorter.at(1), shorter.at(2)] == [in_force[1], in_force[4]]
    assert pa.Schedule.load(tmp_path / "policy.json", epochs=7).at(7) == in_force[7]


def test_steps_taken_without_new_epochs_are_still_in_order():
    search, (model, optimizer) = search_of(), learning()
    for _ in range(3):
        step(search, model, optimizer)
    assert [s.from_epoch for s in search.schedule(5).steps] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2; this release reads version 1"),
        ({"format": "other"}, "is not a policy file"),
        ({"ops": ["Swirl", *pa.OPS[1:]]}, "there is no op named 'Swirl'"),
        ({"ops": list(pa.OPS[:14])}, "one column per op, 14, got shape"),
        ({"kind": "particles"}, "lacks the field|holds a policy of kind"),
        ({"steps": "none"}, "not valid"),
        ({"steps": []}, "at least one step"),
        ({"steps": [{"from_epoch": 1}]}, "step 0 must hold from_epoch, particles and weights"),
        ({"semantics": "tim"}, "timm"),
        ({"epochs": 0}, "at least one epoch"),
    ],
)
def test_policy_files_that_do_not_fit(tmp_path, change, message):
    path = tmp_path / "policy.json"
    search_of().schedule(3).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        pa.Schedule.load(path, epochs=6)


def test_a_schedule_with_steps_out_of_order(tmp_path):
    path = tmp_path / "policy.json"
    search_of().schedule(3).save(path)
    content = json.loads(path.read_text())
    content["steps"] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="rising order of from_epoch"):
        pa.Schedule.load(path)


# One step of the filter.


def measurement(d0=2.0, particles=6, samples=10, seed=0):
    """Losses whose fall on the plain samples sums to ``d0``, with little noise."""
    generator = torch.Generator().manual_seed(seed)
    ref = 2 + torch.rand(particles, samples, generator=generator, dtype=torch.float64)
    fall = torch.rand(particles, 1, generator=generator, dtype=torch.float64) * 3 * d0 / samples
    clean = 2 + torch.rand(samples, generator=generator, dtype=torch.float64)
    return Measurement(ref, ref - fall, clean, clean - d0 / samples, {"clone": 1.0, "measure": 2.0})


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_a_step_is_its_parts_one_after_the_other(alpha, scheme):
    settings = FilterSettings(
        num_particles=6, nonzero=2, sigma=0.1, velocity=-0.01, eta=0.5, alpha=alpha, resampling=scheme
    )
    state = settings.initial_state(3)
    state, _ = pf.reweight(state, torch.linspace(0.5, 1.5, 6))
    kept = copy.deepcopy(state)
    seen, measured = [], measurement()

    def measure(policy):
        seen.append(policy)
        return measured

    new, record = filter_step(state, settings, measure, seed=3, step=9)

    noised = pf.transition(kept, sigma=0.1, velocity=-0.01, seed=3, step=9)
    assert len(seen) == 1
    assert torch.equal(seen[0].particles, noised.particles)
    assert torch.equal(seen[0].weights, noised.weights)
    assert not torch.equal(noised.particles, kept.particles)
    difference = pf.relative_loss_difference(*measured[:4])
    expected, info = pf.reweight(noised, difference.delta, eta=0.5)
    expected, resampling = pf.resample(expected, alpha=alpha, scheme=scheme, seed=3, step=9)
    assert new == expected
    assert state == kept
    assert resampling.resampled == record.resampled == (alpha == 1.0)
    assert record.skip_reason is None
    assert record.step == 9
    assert record.d0 == pytest.approx(2.0)
    assert record.delta == tuple(difference.delta.tolist())
    assert record.standard_error == tuple(difference.standard_error.tolist())
    assert record.effective_sample_size == info.effective_sample_size
    assert record.ops_per_image == pytest.approx(settings.policy(new).ops_per_image)
    assert filter_step(state, settings, measure, seed=3, step=9) == (new, record)


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
    settings = FilterSettings(num_particles=6, nonzero=2, alpha=1.0)
    state, _ = pf.reweight(settings.initial_state(3), torch.linspace(-3, 2, 6))
    new, record = filter_step(state, settings, lambda policy: measured, seed=3, step=1)
    assert re.search(reason, record.skip_reason)
    assert new == pf.transition(state, seed=3, step=1)
    assert torch.equal(new.weights, state.weights)
    assert not record.resampled
    assert record.effective_sample_size == pf.effective_sample_size(state)
    assert len(record.delta) == 6


def test_skipped_steps_are_counted():
    search, (model, optimizer) = search_of(), learning()
    run_epochs(search, model, optimizer, (1,))
    weights, skipped = search.state.weights, search.skipped_steps
    optimizer.param_groups[0]["lr"] = -0.5  # the clone climbs
    record = step(search, model, optimizer)
    assert record.d0 < 0
    assert "is not positive" in record.skip_reason
    assert (search.skipped_steps, search.steps_taken) == (skipped + 1, 2)
    assert torch.equal(search.state.weights, weights)
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
    assert search.state.weights.std() > 0
    factors = torch.tensor([math.tanh(delta - 1) + 1 for delta in record.delta], dtype=torch.float64)
    torch.testing.assert_close(search.state.weights, factors / factors.sum(), rtol=1e-9, atol=0)


# Losses, precision, data.


def test_label_smoothing_and_soft_targets():
    images, labels = pictures()
    smooth = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    soft = nn.functional.one_hot(labels, 3).float() * 0.9 + 0.1 / 3
    records = []
    for dataset, loss in (((images, labels), smooth), ((images, soft), cross_entropy)):
        search, (model, optimizer) = search_of(), learning()
        records.append(step(search, model, optimizer, dataset=dataset, loss=loss))
    torch.testing.assert_close(records[0].delta, records[1].delta, rtol=1e-3, atol=1e-3)
    search, (model, optimizer) = search_of(), learning()
    assert step(search, model, optimizer).d0 != pytest.approx(records[0].d0, rel=1e-3)


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

    dataset, search, (model, optimizer) = Slow(), search_of(), learning()
    for _ in range(2):
        step(search, model, optimizer, dataset=dataset)
    assert dataset.reads == 48 + 2 * (24 + 12)
    expected = step(search_of(), *learning()).delta
    assert step(search_of(), *learning(), dataset=Slow()).delta == pytest.approx(expected, rel=1e-4)


# Bad input.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_particles": 1}, "num_particles must be at least 2, got 1"),
        ({"num_particles": 2.5}, "num_particles must be a whole number"),
        ({"nonzero": 16}, r"nonzero must lie in 1..15, the number of ops, got 16"),
        ({"nonzero": 0}, r"nonzero must lie in 1..15"),
        ({"nonzero": 3, "ops": ("Rotate", "Invert")}, r"nonzero must lie in 1..2"),
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
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0"),
        ({"clone_epochs": 0}, "clone_epochs must be a whole number of at least 1"),
        ({"clone_epochs": True}, "clone_epochs must be a whole number"),
        ({"clone_size": 0}, "clone_size must be a number of samples or a fraction between 0 and 1, got 0"),
        ({"clone_size": 1.5}, "clone_size must be a number of samples or a fraction"),
        ({"measure_size": True}, "measure_size must be a number of samples"),
        ({"measure_size": "all"}, "measure_size must be a number of samples"),
        ({"executor": "pill"}, "did you mean pil"),
        ({"resample": "bilinea"}, "did you mean bilinear"),
        ({"num_partikles": 4}, "has no setting 'num_partikles'; did you mean num_particles?"),
        ({"Eta": 4}, "has no setting 'Eta'; did you mean eta?"),
        ({"exekutor": "pil"}, "did you mean executor?"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("?", r"\?")):
        search_of(**settings)


def test_subsets_that_do_not_fit_the_data():
    search, (model, optimizer) = search_of(clone_size=40, measure_size=12), learning()
    with pytest.raises(ValueError, match=r"subsets of 40 \+ 12 samples do not fit into 48"):
        step(search, model, optimizer)
    assert search.steps_taken == 0


def test_a_mean_loss_is_refused_with_advice():
    search, (model, optimizer) = search_of(), learning()
    before, policy = copy.deepcopy(model.state_dict()), search.policy
    with pytest.raises(ValueError, match="use reduction='none'"):
        step(search, model, optimizer, loss=nn.CrossEntropyLoss())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert search.policy == policy
    assert search.steps_taken == 0
