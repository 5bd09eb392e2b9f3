"""A search in one's own loop: what it learns, keeps and continues, what it draws, and its schedule."""

import copy
import io
import json
import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from searching import difficulty_search, learning, pictures, run_epochs, search_of, step, train_epoch
from torch import nn
from torch.utils.data import DataLoader
from toy import cross_entropy, preprocess

import particleaugment as pa
from particleaugment.augment.transforms import Transform
from particleaugment.data import load_digits
from particleaugment.search.clone import CLONE_EPOCHS

# One's own loop.


def test_a_plain_training_loop_learns():
    data = load_digits()
    torch.manual_seed(0)
    images, labels = data.train_images[:400], data.train_labels[:400]
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    epochs = 8
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    paper = pa.PaperFilter(num_particles=8, nonzero=3, m=3, clone_size=200, measure_size=80)
    search = pa.ParticleAugment((images, labels), epochs=epochs, filter=paper, seed=0)
    loader = DataLoader(search.training_set(), batch_size=32, shuffle=True)
    for _ in search.epochs():
        for batch, targets, ids in loader:
            loss = cross_entropy(model(preprocess(search.augment(batch, ids))), targets).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        search.step(model, loss=cross_entropy, preprocess=preprocess, optimizer=optimizer, batch_size=32)
    with torch.no_grad():
        right = (model(preprocess(data.test_images)).argmax(1) == data.test_labels).float().mean()
    assert right > 0.8
    assert search.steps_taken == epochs - 1
    assert search.skipped_steps < epochs - 1
    assert search.policy != search.schedule().at(1)


def test_a_search_needs_to_know_how_long_training_lasts():
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'epochs'"):
        pa.ParticleAugment(pictures())
    for epochs in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="epochs must be a whole number of at least 1"):
            pa.ParticleAugment(pictures(), epochs=epochs)


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


RESAMPLED = ("systematic", "multinomial", "stratified", "residual")


@pytest.mark.parametrize(
    "make",
    [difficulty_search, *(partial(search_of, resampling=scheme, alpha=1.0) for scheme in RESAMPLED)],
    ids=["difficulty", *RESAMPLED],
)
def test_the_default_device_plays_no_part(make):
    results = []
    items = [(image, int(label)) for image, label in zip(*pictures())]
    whole = pictures()
    for context in (nullcontext(), torch.device("meta")):
        model, optimizer = learning()
        with context:
            search = make(data=whole)
            records = [step(search, model, optimizer)]
            again = make(data=items)
            again.load_state_dict(search.state_dict())
            records.append(step(again, model, optimizer))
        results.append((again.state, records, again.schedule(4)))
    assert results[0] == results[1]


@pytest.mark.parametrize("make", [search_of, difficulty_search], ids=["paper", "difficulty"])
def test_the_default_dtype_plays_no_part(make, another_default_dtype):
    results = []
    for context in (nullcontext, another_default_dtype):
        model, optimizer = learning()
        with context():
            search = make()
            records = run_epochs(search, model, optimizer, (1, 2, 3))
        results.append((search.state, records))
    assert results[0] == results[1]
    assert not results[0][1][-1].skip_reason


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


def test_a_saved_search_continues_identically():
    search, (model, optimizer) = search_of(velocity=(0.01,) * 15), learning()
    run_epochs(search, model, optimizer, (1, 2))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "search": search.state_dict()}, file)
    records = run_epochs(search, model, optimizer, (3, 4))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, (other, other_optimizer) = search_of(velocity=(0.01,) * 15), learning()
    other.load_state_dict(saved["model"])
    other_optimizer.load_state_dict(saved["optimizer"])
    again.load_state_dict(saved["search"])
    assert again.steps_taken == 2
    again_records = run_epochs(again, other, other_optimizer, (3, 4))

    assert again_records == records
    assert again.state == search.state
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert again.state_dict().keys() == search.state_dict().keys()
    assert again.schedule(4) == search.schedule(4)
    images, ids = pictures()[0], torch.arange(48)
    assert torch.equal(again.augment(images, ids), search.augment(images, ids))


@pytest.mark.parametrize("lonely", [0, 20, 47])
@pytest.mark.parametrize(
    "filter",
    [pa.DifficultyFilter(measure_size=24), pa.PaperFilter(measure_on="heldout", measure_size=24, clone_size=12)],
    ids=["difficulty", "paper"],
)
def test_a_class_of_one_sample_is_trained_on(filter, lonely):
    images, labels = pictures()
    labels = labels.clone()
    labels[lonely] = 3
    search = pa.ParticleAugment((images, labels), epochs=10, filter=filter)
    trained = search.training_set().ids.unique()
    assert len(trained) == 24
    assert lonely in trained
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    record = step(search, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert math.isfinite(record.difficulty if filter.kind == "difficulty" else record.d0)
    assert "not finite" not in (record.skip_reason or "")


def test_freeze():
    search, (model, optimizer) = search_of(), learning()
    step(search, model, optimizer)
    assert search.due(2)
    search.freeze()
    policy = search.policy
    assert step(search, model, optimizer) is None
    assert search.epoch_ended
    assert not search.due(3)
    assert search.policy == policy
    assert search.steps_taken == 1
    again = search_of()
    again.load_state_dict(search.state_dict())
    assert again.frozen
    assert step(again, model, optimizer) is None


# What augment draws.


def test_augment_draws_from_todays_policy():
    search, (model, optimizer) = search_of(start_value=0.9), learning()
    images, _ = pictures()
    ids = torch.arange(len(images))
    for epoch in (1, 2):
        search.begin_epoch(epoch)
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
    assert before.epochs == after.epochs == [(1, 7, 1), *expected], "one image in the loop, then the clone's"
    assert record.skip_reason is None or "d0" in record.skip_reason


# The schedule.


def test_the_schedule_holds_every_policy_and_replays_it(tmp_path):
    search, (model, optimizer) = search_of(every=2, epochs=7), learning()
    in_force = {}
    for epoch in search.epochs():
        in_force[epoch] = search.policy
        step(search, model, optimizer)
    search.schedule().save(tmp_path / "policy.json")
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
