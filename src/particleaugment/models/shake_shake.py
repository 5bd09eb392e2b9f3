"""Shake-Shake networks (Gastaldi, 2017, arXiv:1705.07485), whose random mixing is a pure function of a key.

A block adds two residual branches in random proportions: each image takes αF₁ + (1 - α)F₂ forwards, and the gradient
comes back as if it had been βF₁ + (1 - β)F₂, with α and β uniform and independent ("shake-shake-image").

The key is a buffer of the network, ``mixing_key`` = (seed, training passes so far), which every forward pass in
training mode advances by one. Image ``i`` of a batch takes α and β of block ``k`` from slots ``2k`` and ``2k + 1`` of
id ``i`` in stream ``SHAKE``, with the number of passes standing where other streams have the epoch. So there is no
generator to save: a checkpoint of the state dict resumes the same sequence, a snapshot restores it with the other
buffers, and a captured graph advances it on the device. The id is the place in the batch rather than the sample's id
because a network is handed images alone; batches are functions of their key themselves, so the pair is too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from particleaugment.core.random import Stream, uniform
from particleaugment.models.initialise import device_of_new_tensors, initialise_parameters

__all__ = ["ShakeShake", "mix", "mixing_coefficients"]


# An operator of its own, because a compiler should not look inside: the generator's checks read values and its cached
# tables are copied from the host once, neither of which a compiled or captured graph may do at every pass.
@torch.library.custom_op("particleaugment::mixing_coefficients", mutates_args=())
def _mixing_coefficients(key: Tensor, blocks: int, batch: int, first: int, stride: int) -> Tensor:
    ids = torch.arange(batch, dtype=torch.int64, device=key.device) * stride + first
    draws = uniform(key[0], Stream.SHAKE, key[1], ids, 2 * blocks)
    return draws.reshape(batch, blocks, 2).permute(1, 2, 0).to(torch.float32, memory_format=torch.contiguous_format)


@_mixing_coefficients.register_fake
def _(key: Tensor, blocks: int, batch: int, first: int, stride: int) -> Tensor:
    return torch.empty(blocks, 2, batch, dtype=torch.float32, device=key.device)


def mixing_coefficients(key: Tensor, blocks: int, batch: int, first: int = 0, stride: int = 1) -> Tensor:
    """Return α and β of every block and image, float32 ``[blocks, 2, batch]`` in [0, 1].

    Args:
        key: Seed and number of passes, int64 ``[2]``.
        blocks: Number of blocks.
        batch: Number of images.
        first: Place of the first image in the batch.
        stride: Distance in the batch from one image to the next.

    >>> key = torch.tensor([7, 0])
    >>> whole = mixing_coefficients(key, blocks=12, batch=6)
    >>> whole.shape
    torch.Size([12, 2, 6])
    >>> torch.equal(whole[:, :, 1::2], mixing_coefficients(key, blocks=12, batch=3, first=1, stride=2))
    True
    """
    coefficients: Tensor = _mixing_coefficients(key, blocks, batch, first, stride)
    return coefficients


def mix(first: Tensor, second: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return ``alpha * first + (1 - alpha) * second`` with the gradient of ``beta * first + (1 - beta) * second``.

    Args:
        first: The first branch, ``[B, ...]``.
        second: The second branch, like ``first``.
        alpha: Share of the first branch for each image, ``[B]``.
        beta: Its share of the gradient, ``[B]``.

    >>> first, second = torch.tensor([8.0], requires_grad=True), torch.tensor([0.0], requires_grad=True)
    >>> mixed = mix(first, second, alpha=torch.tensor([0.75]), beta=torch.tensor([0.125]))
    >>> mixed.backward()
    >>> mixed.item(), first.grad.item(), second.grad.item()
    (6.0, 0.125, 0.875)
    """
    shape = (-1,) + (1,) * (first.dim() - 1)
    with torch.no_grad():
        value = torch.lerp(second, first, alpha.to(first.dtype).view(shape))
    carrier = torch.lerp(second, first, beta.to(first.dtype).view(shape))
    # Exactly the value: a finite number less itself is 0.
    return value + (carrier - carrier.detach())


class _Branch(nn.Module):
    """3x3 convolution, norm, relu, 3x3 convolution, norm; the relu before the first convolution is the block's."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)

    def forward(self, activated: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(activated)), inplace=True)
        result: Tensor = self.norm2(self.conv2(hidden))
        return result


class _ShiftedShortcut(nn.Module):
    """Two 1x1 convolutions, half of the channels each, the second on the image moved one pixel right and down.

    With stride 2 the two see different pixels.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Conv2d(in_channels, out_channels // 2, 1, stride=stride, bias=False)
        self.shifted = nn.Conv2d(in_channels, out_channels // 2, 1, stride=stride, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, activated: Tensor) -> Tensor:
        moved = F.pad(activated[:, :, :-1, :-1], (1, 0, 1, 0))
        result: Tensor = self.norm(torch.cat([self.straight(activated), self.shifted(moved)], dim=1))
        return result


class _ShakeBlock(nn.Module):
    """A shortcut and two branches; where the number of channels changes, the shortcut is two 1x1 convolutions."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = _Branch(in_channels, out_channels, stride)
        self.second = _Branch(in_channels, out_channels, stride)
        changes = in_channels != out_channels
        self.shortcut = _ShiftedShortcut(in_channels, out_channels, stride) if changes else None

    def forward(self, x: Tensor, coefficients: Tensor | None) -> Tensor:
        activated = F.relu(x)
        first, second = self.first(activated), self.second(activated)
        # A projecting shortcut starts from the activated input, an identity shortcut from the raw one.
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        if coefficients is None:
            return shortcut + torch.lerp(second, first, 0.5)
        return shortcut + mix(first, second, coefficients[0], coefficients[1])


class ShakeShake(nn.Module):
    """Shake-Shake ``depth`` 2x``width``d: three stages of two-branch blocks with 1, 2 and 4 times ``width`` channels.

    As in the paper's code: a 3x3 convolution to 16 channels and a norm, the stages, relu, the mean over the last
    feature map (8x8 for 32x32 images, but any size is accepted) and a linear layer. In evaluation mode both branches
    count one half. The starting weights are a pure function of ``seed``: He normal by fan-out for convolutions, norms
    at weight 1 and bias 0, uniform within ±1/√(inputs) for the linear weight, bias 0. Torch's global generator is
    never used, neither when building nor when training.

    The state dict holds ``mixing_key``, so loading one continues the mixing of the network it was taken from.

    Args:
        depth: 6n + 2 for n blocks a stage.
        width: Channels of a branch in the first stage; even.
        num_classes: Number of logits.
        in_channels: Channels of the images.
        seed: Key of the starting weights and of the mixing.

    >>> model = ShakeShake(depth=8, width=16, num_classes=10, seed=0)
    >>> images = torch.ones(2, 3, 32, 32)
    >>> model(images).shape, model.mixing_key.tolist()
    (torch.Size([2, 10]), [0, 1])
    >>> model.eval()(images).shape, model.mixing_key.tolist()
    (torch.Size([2, 10]), [0, 1])
    """

    mixing_key: Tensor

    def __init__(self, depth: int, width: int, num_classes: int, in_channels: int = 3, seed: int = 0) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 with n at least 1 (8, 14, 20, 26, ...), got {depth}")
        if width < 2 or width % 2:
            raise ValueError(f"width must be even and at least 2, got {width}")
        for name, value in {"num_classes": num_classes, "in_channels": in_channels}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

        channels = [16, width, 2 * width, 4 * width]
        device = device_of_new_tensors()
        # Layers built on the meta device draw no weights, so the global generator is not advanced.
        with torch.device("meta"):
            self.stem = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(channels[0])
            self.blocks = nn.ModuleList()
            for stage, stride in enumerate((1, 2, 2)):
                self.blocks.append(_ShakeBlock(channels[stage], channels[stage + 1], stride))
                for _ in range((depth - 2) // 6 - 1):
                    self.blocks.append(_ShakeBlock(channels[stage + 1], channels[stage + 1], 1))
            self.head = nn.Linear(channels[3], num_classes)
        self.to_empty(device=device)
        initialise_parameters(self, seed)
        self.register_buffer("mixing_key", torch.tensor([seed, 0], dtype=torch.int64, device=device))
        self.set_batch_positions()

    def set_batch_positions(self, first: int = 0, stride: int = 1) -> None:
        """Say which places of the whole batch the images of a forward pass take: first, first + stride, ...

        Needed only where several processes share a batch, whose images would otherwise be mixed alike: a process that
        gets every ``ranks``-th image sets ``(rank, ranks)``; one that gets a run of ``size`` images sets
        ``(rank * size)``. Then the mixing does not depend on the number of processes. Not part of the state dict.

        >>> ShakeShake(depth=8, width=2, num_classes=2).set_batch_positions(first=1, stride=4)
        """
        if first < 0 or stride < 1:
            raise ValueError(f"first must be at least 0 and stride at least 1, got {first} and {stride}")
        self._first_position, self._position_stride = first, stride

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, num_classes] for float images [B, in_channels, H, W]; in training mode, advance the key."""
        coefficients = None
        if self.training:
            coefficients = mixing_coefficients(
                self.mixing_key, len(self.blocks), len(images), self._first_position, self._position_stride
            )
            self.mixing_key[1].add_(1)
        features = self.norm(self.stem(images))
        for index, block in enumerate(self.blocks):
            features = block(features, None if coefficients is None else coefficients[index])
        # Not adaptive_avg_pool2d, whose gradient on CUDA is not deterministic.
        logits: Tensor = self.head(F.relu(features).mean(dim=(2, 3)))
        return logits
