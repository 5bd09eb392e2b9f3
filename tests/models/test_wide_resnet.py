import math
import time

import pytest
import torch
from torch import nn

from particleaugment.core.random import Stream, standard_normal, uniform
from particleaugment.models import WideResNet, initialise_parameters, keyed_normal_, keyed_uniform_


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("depth", "width", "num_classes", "published"),
    [(10, 1, 10, 77_850), (28, 2, 10, 1_467_610), (28, 10, 10, 36_479_194), (28, 10, 100, 36_536_884)],
)
def test_parameter_counts_are_the_published_ones(depth, width, num_classes, published):
    with torch.device("meta"):
        assert parameter_count(WideResNet(depth, width, num_classes)) == published


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (33, 47), (1, 1), (64, 32)])
def test_any_image_size_gives_logits(size):
    model = WideResNet(10, 1, 7).eval()
    assert model(torch.zeros(2, 3, *size)).shape == (2, 7)


def test_the_stages_halve_the_image_twice():
    model = WideResNet(10, 2, 10).eval()
    features = model.stem(torch.zeros(1, 3, 32, 32))
    shapes = [tuple(features.shape[1:])]
    for stage in (model.stage1, model.stage2, model.stage3):
        features = stage(features)
        shapes.append(tuple(features.shape[1:]))
    assert shapes == [(16, 32, 32), (32, 32, 32), (64, 16, 16), (128, 8, 8)]


def test_grey_input_is_possible():
    assert WideResNet(10, 1, 3, in_channels=1).eval()(torch.zeros(1, 1, 16, 16)).shape == (1, 3)


def test_weights_are_a_pure_function_of_the_seed():
    first, again, other = (WideResNet(10, 1, 10, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_weights_stay_what_they_were():
    model = WideResNet(10, 1, 10, seed=3)
    draws = uniform(3, Stream.MODEL, epoch=0, ids=torch.arange(216), slots=2).flatten()
    expected = (standard_normal(draws) * math.sqrt(2 / (16 * 9))).to(torch.float32)
    assert torch.equal(model.stem.weight.flatten(), expected)


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    WideResNet(10, 1, 10, dropout=0.3)
    assert torch.equal(torch.get_rng_state(), before)


def test_starting_distribution():
    model = WideResNet(16, 4, 10)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            target = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2))
            tolerance = 5 / math.sqrt(2 * module.weight.numel())
            assert float(module.weight.detach().std()) == pytest.approx(target, rel=tolerance), name
            assert abs(float(module.weight.detach().mean())) < 5 * target / math.sqrt(module.weight.numel()), name
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())
            assert bool((module.running_mean == 0).all())
            assert bool((module.running_var == 1).all())
            assert int(module.num_batches_tracked) == 0
    assert bool((model.head.bias == 0).all())
    assert float(model.head.weight.detach().abs().max()) == pytest.approx(1 / 16, rel=0.01)
    assert float(model.head.weight.detach().std()) == pytest.approx(1 / 16 / math.sqrt(3), rel=0.05)


def test_no_two_parameters_share_their_draws():
    weights = [
        p.flatten()[:100] / p.std() for p in WideResNet(10, 1, 10).parameters() if p.dim() > 1 and p.numel() > 99
    ]
    correlation = torch.corrcoef(torch.stack(weights)) - torch.eye(len(weights))
    assert float(correlation.detach().abs().max()) < 0.5


def test_a_training_step_reaches_every_parameter():
    model = WideResNet(10, 1, 10)
    images = keyed_normal_(torch.empty(8, 3, 32, 32), 1.0, seed=1, ordinal=0)
    nn.functional.cross_entropy(model(images), torch.arange(8)).backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())


def test_channels_last_gives_the_same_logits():
    model = WideResNet(10, 2, 10).eval()
    images = keyed_normal_(torch.empty(4, 3, 32, 32), 1.0, seed=1, ordinal=0)
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    got = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_only():
    model = WideResNet(10, 1, 10, dropout=0.3)
    images = keyed_normal_(torch.empty(2, 3, 16, 16), 1.0, seed=1, ordinal=0)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    assert model.state_dict().keys() == WideResNet(10, 1, 10).state_dict().keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 27}, r"6k \+ 4 .* got 27"),
        ({"depth": 4}, r"6k \+ 4 .* got 4"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"in_channels": 0}, "in_channels must be at least 1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_impossible_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        WideResNet(**{"depth": 10, "width": 1, "num_classes": 10} | arguments)


@pytest.mark.parametrize("fill", [keyed_normal_, keyed_uniform_])
def test_filling_does_not_depend_on_chunks_shape_or_memory_format(fill, monkeypatch):
    expected = fill(torch.empty(7, 5, 3, 3), 0.1, 9, 4)
    last = fill(torch.empty(7, 5, 3, 3).to(memory_format=torch.channels_last), 0.1, 9, 4)
    assert torch.equal(last, expected)
    monkeypatch.setattr("particleaugment.models.initialise.CHUNK", 8)
    assert torch.equal(fill(torch.empty(315), 0.1, 9, 4), expected.flatten())
    assert torch.equal(fill(torch.empty(3), 0.1, 9, 4), expected.flatten()[:3])
    assert fill(torch.empty(0), 0.1, 9, 4).numel() == 0


def test_unknown_layers_are_not_left_uninitialised():
    with pytest.raises(TypeError, match="'1' is a Embedding"):
        initialise_parameters(nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 4)), seed=0)


def test_initialising_is_fast():
    start = time.process_time()
    WideResNet(28, 2, 10)
    assert time.process_time() - start < 3  # 0.4 s of two cores
