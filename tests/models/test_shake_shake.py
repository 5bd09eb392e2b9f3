import copy
import io
import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from particleaugment.core.random import Stream, uniform
from particleaugment.models import ShakeShake, build_model, keyed_normal_
from particleaugment.models.shake_shake import _mixing_coefficients, mix, mixing_coefficients
from particleaugment.trainee.snapshot import Snapshot


def small(seed=0):
    return ShakeShake(depth=8, width=16, num_classes=10, seed=seed)


def pictures(count=4, size=16, seed=1):
    return keyed_normal_(torch.empty(count, 3, size, size), 1.0, seed=seed, ordinal=0)


def train_step(model, optimizer, images):
    optimizer.zero_grad()
    F.cross_entropy(model(images), torch.arange(len(images)) % 10).backward()
    optimizer.step()


def same_state(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# The network.


@pytest.mark.parametrize(
    ("width", "num_classes", "count", "published"),
    [(32, 10, 2_923_162, 2.9), (64, 10, 11_653_978, 11.7), (96, 10, 26_192_922, 26.2), (96, 100, 26_227_572, 26.2)],
)
def test_parameter_counts_are_the_published_ones(width, num_classes, count, published):
    with torch.device("meta"):
        model = ShakeShake(26, width, num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert round(count / 1e6, 1) == published


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (33, 47), (1, 1), (64, 32)])
def test_any_image_size_gives_logits_in_both_modes(size):
    model = ShakeShake(8, 4, 7)
    assert model(torch.zeros(2, 3, *size)).shape == (2, 7)
    assert model.eval()(torch.zeros(2, 3, *size)).shape == (2, 7)


def test_the_whole_2x32d_network_trains_on_32x32_images():
    model = build_model("shake-shake-26-2x32d", num_classes=10, seed=0)
    logits = model(pictures(2, 32))
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())


def test_stages_of_four_blocks_halve_the_image_twice():
    with torch.device("meta"):
        model = ShakeShake(26, 32, 10).eval()
        features, shapes = model.stem(torch.empty(1, 3, 32, 32)), []
        for block in model.blocks:
            features = block(features, None)
            shapes.append(tuple(features.shape[1:]))
    assert shapes == [(32, 32, 32)] * 4 + [(64, 16, 16)] * 4 + [(128, 8, 8)] * 4
    assert [index for index, block in enumerate(model.blocks) if block.shortcut is not None] == [0, 4, 8]


def test_depth_counts_the_longest_path_of_convolutions_and_the_linear_layer():
    with torch.device("meta"):
        blocks = ShakeShake(26, 32, 10).blocks
    assert 1 + 2 * len(blocks) + 1 == 26


def test_the_second_path_of_the_shortcut_sees_the_pixel_up_and_left():
    shortcut = ShakeShake(8, 16, 10).blocks[1].shortcut.eval()
    nn.init.zeros_(shortcut.straight.weight)
    nn.init.zeros_(shortcut.shifted.weight)
    shortcut.straight.weight.data[0, 0] = 1
    shortcut.shifted.weight.data[0, 0] = 1
    image = torch.zeros(1, 16, 4, 4)
    image[0, 0] = torch.arange(1.0, 17.0).view(4, 4)
    out = shortcut(image)[0] * math.sqrt(1 + shortcut.norm.eps)
    torch.testing.assert_close(out[0], torch.tensor([[1.0, 3.0], [9.0, 11.0]]))
    torch.testing.assert_close(out[16], torch.tensor([[0.0, 0.0], [0.0, 6.0]]))


def test_grey_input_is_possible():
    assert ShakeShake(8, 2, 3, in_channels=1).eval()(torch.zeros(1, 1, 16, 16)).shape == (1, 3)


def test_channels_last_gives_the_same_logits():
    model = small()
    expected = copy.deepcopy(model)(pictures())
    got = model.to(memory_format=torch.channels_last)(pictures().contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 27}, r"6n \+ 2 .* got 27"),
        ({"depth": 2}, r"6n \+ 2 .* got 2"),
        ({"width": 3}, "width must be even and at least 2, got 3"),
        ({"width": 0}, "width must be even and at least 2, got 0"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"in_channels": 0}, "in_channels must be at least 1"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_impossible_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShakeShake(**{"depth": 8, "width": 16, "num_classes": 10} | arguments)


# Starting weights.


def test_weights_are_a_pure_function_of_the_seed():
    assert same_state(small(5), small(5))
    five, six = small(5), small(6)
    assert not torch.equal(five.stem.weight, six.stem.weight)
    assert not torch.equal(five.head.weight, six.head.weight)
    block = five.blocks[0]
    assert not torch.equal(block.first.conv1.weight, block.second.conv1.weight)


def test_starting_distribution():
    model = ShakeShake(8, 32, 10)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            target = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2))
            tolerance = 5 / math.sqrt(2 * module.weight.numel())
            assert float(module.weight.detach().std()) == pytest.approx(target, rel=tolerance), name
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())
    assert bool((model.head.bias == 0).all())


def test_the_global_generator_is_neither_read_nor_advanced():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    logits = small()(pictures())
    logits.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(small()(pictures()), logits)


# Mixing.


def test_mixing_takes_alpha_forwards_and_beta_backwards():
    first, second = (pictures(3, 5, seed=seed).requires_grad_() for seed in (1, 2))
    alpha, beta = torch.tensor([0.0, 0.3, 1.0]), torch.tensor([0.9, 0.25, 0.0])
    mixed = mix(first, second, alpha, beta)
    share = alpha.view(-1, 1, 1, 1)
    torch.testing.assert_close(mixed, share * first + (1 - share) * second)
    assert torch.equal(mixed[0], second[0])
    assert torch.equal(mixed[2], first[2])
    upstream = pictures(3, 5, seed=3)
    mixed.backward(upstream)
    torch.testing.assert_close(first.grad, beta.view(-1, 1, 1, 1) * upstream)
    torch.testing.assert_close(second.grad, (1 - beta).view(-1, 1, 1, 1) * upstream)


def test_mixing_keeps_the_precision_of_its_branches():
    mixed = mix(*(pictures(2).bfloat16() for _ in range(2)), torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4]))
    assert mixed.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert small()(pictures()).dtype == torch.bfloat16


def test_every_block_of_the_network_mixes_by_its_keyed_coefficients():
    model = small(seed=11)
    model.mixing_key[1] = 4
    expected = uniform(11, Stream.SHAKE, epoch=4, ids=torch.arange(4), slots=6).float()
    seen = {}

    def keep(name):
        def hook(module, inputs, output):
            output.retain_grad()
            seen[name] = output

        return hook

    for index, block in enumerate(model.blocks):
        block.first.register_forward_hook(keep((index, "first")))
        block.second.register_forward_hook(keep((index, "second")))
        if block.shortcut is not None:
            block.shortcut.register_forward_hook(keep((index, "shortcut")))
        block.register_forward_hook(keep((index, "out")))
        block.register_forward_pre_hook(lambda module, inputs, index=index: seen.update({(index, "in"): inputs[0]}))
    model(pictures()).square().sum().backward()
    for index in range(3):
        first, second, out = (seen[index, name] for name in ("first", "second", "out"))
        shortcut = seen.get((index, "shortcut"), seen[index, "in"])
        alpha, beta = (expected[:, 2 * index + k].view(-1, 1, 1, 1) for k in (0, 1))
        torch.testing.assert_close(out, shortcut + alpha * first + (1 - alpha) * second)
        torch.testing.assert_close(first.grad, beta * out.grad)
        torch.testing.assert_close(second.grad, (1 - beta) * out.grad)


def test_evaluation_takes_both_branches_alike_and_leaves_the_key():
    model = small().eval()
    logits = model(pictures())
    assert torch.equal(model(pictures()), logits)
    assert model.mixing_key.tolist() == [0, 0]
    block = model.blocks[0]
    features = pictures(2, 8)[:, :1].expand(2, 16, 8, 8).contiguous()
    activated = features.relu()
    torch.testing.assert_close(
        block(features, None), features + 0.5 * block.first(activated) + 0.5 * block.second(activated)
    )


def test_the_key_decides_the_mixing():
    model, again = small(seed=3), small(seed=3)
    passes = [model(pictures()) for _ in range(3)]
    assert all(torch.equal(again(pictures()), logits) for logits in passes)
    assert not torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[1], passes[2])
    again.mixing_key[1] = 1
    assert torch.equal(again(pictures()), passes[1])
    again.mixing_key[:] = torch.tensor([4, 1])
    assert not torch.equal(again(pictures()), passes[1])


def test_images_steps_blocks_and_directions_are_mixed_independently():
    key = torch.tensor([0, 0])
    one = mixing_coefficients(key, blocks=12, batch=64)
    two = mixing_coefficients(key + torch.tensor([0, 1]), blocks=12, batch=64)
    other_seed = mixing_coefficients(key + torch.tensor([1, 0]), blocks=12, batch=64)
    # Among so many numbers of 24 bits one pair or two may be equal by chance.
    assert torch.cat([one, two, other_seed]).unique().numel() > 3 * 12 * 2 * 64 - 5


def test_coefficients_are_uniform_and_uncorrelated():
    draws = torch.stack([mixing_coefficients(torch.tensor([9, step]), 12, 128) for step in range(60)])
    assert stats.kstest(draws.flatten().double().numpy(), "uniform").pvalue > 0.001
    for block in range(12):
        assert stats.kstest(draws[:, block].flatten().double().numpy(), "uniform").pvalue > 1e-4
    columns = draws.permute(1, 2, 0, 3).reshape(24, -1)
    correlation = torch.corrcoef(columns) - torch.eye(24)
    assert float(correlation.abs().max()) < 5 / math.sqrt(columns.shape[1])
    image = draws[..., :-1].flatten(), draws[..., 1:].flatten()
    step = draws[:-1].flatten(), draws[1:].flatten()
    for pair in (image, step):
        assert abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) < 5 / math.sqrt(pair[0].numel())


def test_coefficients_stay_what_they_were():
    got = mixing_coefficients(torch.tensor([7, 2]), blocks=2, batch=3)
    expected = uniform(7, Stream.SHAKE, epoch=2, ids=torch.arange(3), slots=4).float()
    assert int(Stream.SHAKE) == 18
    assert torch.equal(got, torch.stack([expected[:, 0:2].T, expected[:, 2:4].T]))


def test_an_empty_batch_has_no_coefficients():
    assert mixing_coefficients(torch.tensor([0, 0]), blocks=3, batch=0).shape == (3, 2, 0)


@pytest.mark.parametrize("layout", ["interleaved", "runs"])
def test_processes_that_share_a_batch_mix_it_as_one_would(layout):
    whole = mixing_coefficients(torch.tensor([2, 5]), 3, 8)
    parts = []
    for rank in range(2):
        model = small(seed=2)
        model.mixing_key[1] = 5
        model.set_batch_positions(rank, 2) if layout == "interleaved" else model.set_batch_positions(rank * 4)
        seen = []
        for block in model.blocks:
            block.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[1]))
        model(pictures(4, 8))
        parts.append(torch.stack(seen))
    assert torch.equal(
        torch.stack(parts, dim=-1).flatten(-2) if layout == "interleaved" else torch.cat(parts, -1), whole
    )


@pytest.mark.parametrize("positions", [(-1, 1), (0, 0)])
def test_impossible_batch_positions_are_named(positions):
    with pytest.raises(ValueError, match="first must be at least 0 and stride at least 1"):
        small().set_batch_positions(*positions)


# Resuming.


def test_a_state_dict_resumes_the_same_sequence():
    model = small(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        train_step(model, optimizer, pictures(seed=step))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    resumed = small(seed=99)
    resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert resumed.mixing_key.tolist() == [1, 2]
    resumed_optimizer = torch.optim.SGD(resumed.parameters(), lr=0.1)
    for step in range(2, 4):
        train_step(model, optimizer, pictures(seed=step))
        train_step(resumed, resumed_optimizer, pictures(seed=step))
    assert same_state(model, resumed)
    assert resumed.mixing_key.tolist() == [1, 4]


def test_a_snapshot_restores_the_key():
    model, undisturbed = small(seed=1), small(seed=1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, undisturbed)]
    for each, optimizer in zip((model, undisturbed), optimizers):
        train_step(each, optimizer, pictures(seed=0))
    address = model.mixing_key.data_ptr()
    with Snapshot().of(model, optimizers[0]):
        for step in range(3):
            train_step(model, optimizers[0], pictures(seed=100 + step))
        assert model.mixing_key.tolist() == [1, 4]
    assert model.mixing_key.tolist() == [1, 1]
    assert model.mixing_key.data_ptr() == address
    for each, optimizer in zip((model, undisturbed), optimizers):
        train_step(each, optimizer, pictures(seed=1))
    assert same_state(model, undisturbed)


def test_the_key_survives_a_change_of_precision():
    model = small(seed=2**62 + 1).to(torch.bfloat16)
    model(pictures().bfloat16())
    assert model.mixing_key.tolist() == [2**62 + 1, 1]


# Compilers and graphs.


def test_the_operator_keeps_its_contract():
    torch.library.opcheck(_mixing_coefficients, (torch.tensor([3, 4]), 12, 5, 0, 1))


def test_one_graph_holds_a_training_pass_and_advances_the_key():
    torch._dynamo.reset()
    model, plain = ShakeShake(8, 2, 10), ShakeShake(8, 2, 10)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for step in range(3):
        got, expected = compiled(pictures(seed=step)), plain(pictures(seed=step))
        got.square().sum().backward()
        expected.square().sum().backward()
        assert torch.equal(got, expected)
        assert model.mixing_key.tolist() == [0, step + 1]
    for parameter, reference in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(parameter.grad, reference.grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_graph_replays_the_same_sequence():
    key = torch.tensor([5, 9])
    assert torch.equal(mixing_coefficients(key.cuda(), 12, 128).cpu(), mixing_coefficients(key, 12, 128))
    images, model, plain = pictures().cuda(), small().cuda(), small().cuda()
    mixed = []
    for block in plain.blocks:
        block.register_forward_pre_hook(lambda module, inputs: mixed.append(inputs[1]))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(images)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(images)
    plain(images)
    for step in range(2, 5):
        graph.replay()
        torch.testing.assert_close(logits, plain(images))
        assert model.mixing_key.tolist() == [0, step] == plain.mixing_key.tolist()
    assert torch.stack(mixed).unique().numel() == 4 * 3 * 2 * 4
