"""Gradient alignment against gradients taken sample by sample, and what it leaves behind: nothing."""

import copy

import pytest
import torch
from torch import nn

import particleaugment as pa
from particleaugment import alignment
from particleaugment import filter as pf
from particleaugment.average import WeightAverage, estimate_batch_statistics
from particleaugment.probe import EagerTrainee, Learner, Samples


def problem(norm=False, seed=0, count=400):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    noise = torch.randint(0, 70, (count, 3, 8, 8), generator=generator)
    images = (noise + 60 * labels[:, None, None, None]).to(torch.uint8)  # brightness tells the classes apart
    torch.manual_seed(seed)
    parts = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6) if norm else nn.Identity(), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(6 * 36, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nn.CrossEntropyLoss(reduction="none")
    learner = Learner(model, optimizer, lambda logits, targets: loss(logits.double(), targets), lambda x: x / 255.0)
    learner.preprocess = lambda x: x.double() / 255.0
    trainee = EagerTrainee(learner, Samples((images, labels)), pa.Augment(pa.parse("none"), 0), 32)
    return trainee, labels


def policy(rows=6):
    state = pf.sparse_init(num_particles=rows, num_ops=15, nonzero=5, value=0.5, seed=1)
    return pa.ParticlePolicy(state.particles, state.weights, m=5)


def test_alignment_is_the_product_of_gradients(monkeypatch):
    monkeypatch.setattr(alignment, "_STEP", 1e-5)  # near enough to the limit to compare with it
    trainee, _ = problem()
    trainee.model.eval()
    target, ids = torch.arange(100), torch.arange(200, 230)
    direction, loss, distance = alignment._gradient(trainee, target, 64)
    inputs, targets = trainee.inputs(target, None, 0)
    mean = trainee.loss(trainee.model(inputs), targets).mean()
    exact = torch.autograd.grad(mean, list(trainee.model.parameters()))
    norm = torch.sqrt(sum(g.square().sum() for g in exact))
    # logits pass through float32 in the trainee's loss, so agreement is to about 1e-6 of the largest value
    for mine, theirs in zip(direction, exact):
        torch.testing.assert_close(mine, theirs / norm, rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(float(mean.detach()), rel=1e-5)

    inputs, targets = trainee.inputs(ids, policy(), 7)
    found, lengths = alignment._alignment(trainee, inputs, targets, direction, distance)
    logits = trainee.model(inputs).detach().float()
    error = torch.softmax(logits, 1) - torch.nn.functional.one_hot(targets, logits.shape[1])
    torch.testing.assert_close(lengths, error.norm(dim=1).double(), rtol=1e-3, atol=1e-5)
    for k in range(len(ids)):
        single = trainee.loss(trainee.model(inputs[k : k + 1]), targets[k : k + 1]).sum()
        gradient = torch.autograd.grad(single, list(trainee.model.parameters()))
        product = sum((a * b).sum() for a, b in zip(gradient, direction))
        assert float(found[k]) == pytest.approx(float(product), rel=0.01, abs=2e-3)


def test_inputs_are_the_policys_pixels():
    trainee, _ = problem()
    ids = torch.arange(40)
    inputs, _ = trainee.inputs(ids, policy(), 9)
    program = policy().sample(ids, 9, 0, (8, 8))
    images, _ = trainee.samples.gather(ids)
    assert torch.equal(inputs, pa.apply(images, program).double() / 255.0)


def test_effects_belong_to_their_ops_and_identity_has_none():
    ids, values = torch.arange(3000), torch.zeros(3000, dtype=torch.float64)
    program = policy().sample(ids, 9, 0, (8, 8))
    planted = torch.linspace(-1, 1, 15, dtype=torch.float64)
    for j, name in enumerate(pa.OPS):
        values += planted[j] * (program.op == j).any(1) if name != "Identity" else 0.0
    effects, covariance = alignment._op_effects(program.op, policy(), values)
    used = (policy().particles.sum(0) > 0) & (torch.arange(15) > 0)
    torch.testing.assert_close(effects[used], planted[used], rtol=0.05, atol=0.02)
    assert float(effects[0]) == float(covariance[0, 0]) == 0


@pytest.mark.parametrize("average", [False, True])
def test_everything_is_as_before(average):
    trainee, labels = problem(norm=True)
    trainee.train(policy(), torch.arange(128), 1, progress=lambda *_: None)
    if average:
        trainee.average = WeightAverage(trainee.model.parameters())
        trainee.train(policy(), torch.arange(256), 2, progress=lambda *_: None)
    trainee.model.train()
    trainee.model[1].eval()  # a mode of its own must survive
    before = copy.deepcopy((trainee.model.state_dict(), trainee.optimizer.state_dict()))
    kept = None if trainee.average is None else copy.deepcopy(trainee.average.state_dict())
    modes = [module.training for module in trainee.model.modules()]
    found = alignment.measure_alignment(policy(), trainee, labels, sample_size=128, target_size=64, seed=0, step=1)
    assert found.effects is not None
    assert found.effects.effects.shape == (15,)
    for old, new in zip(before, (trainee.model.state_dict(), trainee.optimizer.state_dict())):
        torch.testing.assert_close(new, old, rtol=0, atol=0)
    assert [module.training for module in trainee.model.modules()] == modes
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in trainee.model.parameters())
    if kept is not None:
        torch.testing.assert_close(trainee.average.state_dict(), kept, rtol=0, atol=0)


def test_the_measurement_works_at_the_averaged_weights():
    trainee, labels = problem()
    options = {"sample_size": 128, "target_size": 64, "seed": 0, "step": 1}
    live = alignment.measure_alignment(policy(), trainee, labels, **options)
    trainee.average = WeightAverage(trainee.model.parameters())
    same = alignment.measure_alignment(policy(), trainee, labels, **options)
    torch.testing.assert_close(same.effects, live.effects, rtol=0, atol=0)
    for tensor in trainee.average.tensors:
        tensor.mul_(0.5)
    other = alignment.measure_alignment(policy(), trainee, labels, **options)
    assert other.target_loss != live.target_loss


def test_to_a_fitted_network_a_severe_op_may_look_useful():
    """Solarize at level 10 inverts the brightness that tells the classes apart, and its long gradients align."""
    trainee, labels = problem(count=1200)
    trainee.optimizer.param_groups[0]["lr"] = 0.01
    for epoch in range(1, 5):
        order = torch.randperm(1200, generator=torch.Generator().manual_seed(epoch))
        trainee.train(pa.parse("none"), order, epoch, progress=lambda *_: None)
    particles = torch.tensor([[0.5, 0.0], [0.0, 0.5]], dtype=torch.float64)
    two = pa.ParticlePolicy(particles, [0.5, 0.5], m=10, ops=("Sharpness", "Solarize"))
    found = alignment.measure_alignment(two, trainee, labels, sample_size=800, target_size=200, seed=0, step=1)
    assert found.target_loss < 0.1
    assert float(found.effects.effects[1]) > 3 * float(found.effects.covariance[1, 1].sqrt())


def test_losses_that_are_not_finite_are_no_measurement():
    trainee, labels = problem()
    with torch.no_grad():
        trainee.model[0].weight.fill_(float("nan"))
    found = alignment.measure_alignment(policy(), trainee, labels, sample_size=64, target_size=32, seed=0, step=1)
    assert found.effects is None
    search = pa.ParticleAugment(
        num_particles=6, nonzero=5, measure="gradient", update="tempered", clone_size=64, measure_size=32
    )
    record = search.step_with(trainee, labels)
    assert "not finite" in record.skip_reason
    assert search.skipped_steps == 1


def test_a_search_by_gradients_learns_tracks_and_resumes():
    trainee, _ = problem(norm=True)
    settings = {
        "num_particles": 8, "nonzero": 3, "measure": "gradient", "update": "tempered", "transition": "sparse",
        "clone_size": 128, "measure_size": 64, "eta": 0.5,
    }  # fmt: skip
    search = pa.ParticleAugment(**settings)
    images, targets = trainee.samples.tensors
    arguments = {
        "model": trainee.model, "optimizer": trainee.optimizer, "dataset": (images, targets), "batch_size": 32,
        "loss": trainee.learner.loss, "preprocess": trainee.learner.preprocess,
    }  # fmt: skip
    for epoch in (1, 2):
        search.set_epoch(epoch)
        for _ in range(10):
            search.track(trainee.model)
        record = search.step(**arguments)
    assert len(record.delta) == 8
    assert len(record.effects) == len(record.effect_errors) == 15
    assert record.d0 is None
    again = pa.ParticleAugment(**settings)
    again.load_state_dict(search.state_dict())
    search.set_epoch(3)
    again.set_epoch(3)
    assert again.step(**arguments) == search.step(**arguments)
    assert again.state == search.state


def test_gradient_scores_need_the_tempered_update():
    with pytest.raises(ValueError, match="set update=tempered"):
        pa.ParticleAugment(measure="gradient")


def test_batch_statistics_are_those_of_the_inputs():
    trainee, _ = problem(norm=True)
    model = trainee.model
    inputs = [torch.rand(16, 3, 8, 8, dtype=torch.float64) for _ in range(3)]
    before = copy.deepcopy(model.state_dict())
    with estimate_batch_statistics(model, inputs):
        inside = model[1].running_mean.clone()
        assert not model.training
    expected = torch.stack([model[0](batch).mean((0, 2, 3)) for batch in inputs]).mean(0)
    torch.testing.assert_close(inside, expected)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert model[1].momentum == 0.1


def test_an_average_follows_and_is_saved():
    model = nn.Linear(3, 2)
    average = WeightAverage(model.parameters(), steps=16)
    with torch.no_grad():
        model.weight += 1.0
    start = average.tensors[0].clone()
    for _ in range(8):
        average.follow(model)
    torch.testing.assert_close(average.tensors[0], start + 0.5)
    other = WeightAverage(nn.Linear(3, 2).parameters(), steps=16)
    other.load_state_dict(average.state_dict())
    assert other.steps_seen == 8
    torch.testing.assert_close(other.tensors, average.tensors)
    with pytest.raises(ValueError, match="another network"):
        WeightAverage(nn.Linear(4, 2).parameters()).load_state_dict(average.state_dict())
