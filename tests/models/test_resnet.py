import math

import pytest
import torch
from torch import nn

from particleaugment.models import ResNet, build_model, keyed_normal_
from particleaugment.models.resnet import _BasicBlock, _Bottleneck


def pictures(count, size):
    return keyed_normal_(torch.empty(count, 3, size, size), 1.0, seed=1, ordinal=0)


@pytest.fixture(scope="module")
def resnet18():
    return ResNet(18, 10, seed=5)


@pytest.mark.parametrize(
    ("depth", "num_classes", "published"), [(18, 1000, 11_689_512), (50, 1000, 25_557_032), (50, 10, 23_528_522)]
)
def test_parameter_counts_are_the_published_ones(depth, num_classes, published):
    with torch.device("meta"):
        model = ResNet(depth, num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == published


def test_resnet50_gives_a_thousand_logits_in_both_modes():
    model = build_model("resnet-50", num_classes=1000, seed=0)
    assert model(pictures(2, 64)).shape == (2, 1000)
    with torch.no_grad():
        assert model.eval()(pictures(1, 224)).shape == (1, 1000)


def test_resnet18_without_zero_start_trains_on_224x224_images():
    model = ResNet(18, 10, zero_init_residual=False)
    norms = [module.last_norm for module in model.modules() if isinstance(module, _BasicBlock)]
    assert len(norms) == 8
    assert all(bool((norm.weight == 1).all()) for norm in norms)
    logits = model(pictures(2, 224))
    assert logits.shape == (2, 10)
    nn.functional.cross_entropy(logits, torch.arange(2)).backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())


@pytest.mark.parametrize("size", [(32, 32), (97, 61), (1, 1)])
def test_any_image_size_gives_logits(resnet18, size):
    with torch.no_grad():
        assert resnet18.eval()(torch.zeros(1, 3, *size)).shape == (1, 10)


def test_evaluation_is_deterministic(resnet18):
    with torch.no_grad():
        assert torch.equal(resnet18.eval()(pictures(2, 32)), resnet18(pictures(2, 32)))


@pytest.mark.parametrize(("depth", "expansion"), [(18, 1), (50, 4)])
def test_the_stages_halve_the_image_three_times(depth, expansion):
    with torch.device("meta"):
        model = ResNet(depth, 10).eval()
        features = torch.empty(1, 64, 56, 56)
        shapes = []
        for stage in (model.stage1, model.stage2, model.stage3, model.stage4):
            features = stage(features)
            shapes.append(tuple(features.shape[1:]))
    sizes = [(64, 56), (128, 28), (256, 14), (512, 7)]
    assert shapes == [(channels * expansion, size, size) for channels, size in sizes]
    assert model.stem(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 64, 112, 112)


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution():
    with torch.device("meta"):
        model = ResNet(50, 10)
    for stage, stride in ((model.stage1, 1), (model.stage2, 2), (model.stage3, 2), (model.stage4, 2)):
        first = stage[0]
        assert first.conv1.stride == (1, 1)
        assert first.conv2.stride == (stride, stride)
        assert first.conv3.stride == (1, 1)
        assert all(block.conv2.stride == (1, 1) and block.shortcut is None for block in stage[1:])


def test_weights_are_a_pure_function_of_the_seed(resnet18):
    generator = torch.get_rng_state()
    again, other = ResNet(18, 10, seed=5), ResNet(18, 10, seed=6)
    assert all(torch.equal(one, two) for one, two in zip(resnet18.parameters(), again.parameters()))
    assert not torch.equal(resnet18.stem.weight, other.stem.weight)
    assert not torch.equal(resnet18.head.weight, other.head.weight)
    assert torch.equal(torch.get_rng_state(), generator)


def test_starting_distribution(resnet18):
    for name, module in resnet18.named_modules():
        if isinstance(module, nn.Conv2d):
            target = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2))
            tolerance = 5 / math.sqrt(2 * module.weight.numel())
            assert float(module.weight.detach().std()) == pytest.approx(target, rel=tolerance), name
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == (0 if name.endswith("last_norm") else 1)).all()), name
            assert bool((module.bias == 0).all())
    assert bool((resnet18.head.bias == 0).all())
    assert float(resnet18.head.weight.detach().abs().max()) == pytest.approx(1 / math.sqrt(512), rel=0.01)


@pytest.mark.parametrize("kind", [_BasicBlock, _Bottleneck])
def test_a_block_whose_last_norm_is_zero_is_its_shortcut(kind):
    block = kind(16 * kind.expansion, 16, 1)
    nn.init.zeros_(block.last_norm.weight)
    features = pictures(2, 8)[:, :1].expand(2, 16 * kind.expansion, 8, 8)
    assert block.shortcut is None
    assert torch.equal(block(features), features.relu())


def test_channels_last_gives_the_same_logits(resnet18):
    resnet18.eval()
    with torch.no_grad():
        expected = resnet18(pictures(2, 64))
        resnet18.to(memory_format=torch.channels_last)
        got = resnet18(pictures(2, 64).contiguous(memory_format=torch.channels_last))
        resnet18.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 34}, "depth must be 18 or 50, got 34"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"in_channels": 0}, "in_channels must be at least 1"),
    ],
)
def test_impossible_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResNet(**{"depth": 18, "num_classes": 10} | arguments)
