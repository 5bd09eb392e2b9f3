"""Residual networks for ImageNet-sized images (He et al., 2016, arXiv:1512.03385), in the "v1.5" form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from particleaugment.models.initialise import device_of_new_tensors, initialise_parameters

__all__ = ["ResNet"]


class _Shortcut(nn.Sequential):
    """1x1 convolution and norm."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        convolution = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(out_channels))


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(channels)
        changes = stride != 1 or in_channels != channels
        self.shortcut = _Shortcut(in_channels, channels, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        residual = self.last_norm(self.conv2(hidden))
        return F.relu(residual + (x if self.shortcut is None else self.shortcut(x)), inplace=True)


class _Bottleneck(nn.Module):
    """1x1 convolution to a quarter of the channels, 3x3, and 1x1 back; the 3x3 takes the stride ("v1.5")."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(out_channels)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = _Shortcut(in_channels, out_channels, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        hidden = F.relu(self.norm2(self.conv2(hidden)), inplace=True)
        residual = self.last_norm(self.conv3(hidden))
        return F.relu(residual + (x if self.shortcut is None else self.shortcut(x)), inplace=True)


_BLOCKS: dict[int, tuple[type[_BasicBlock | _Bottleneck], tuple[int, int, int, int]]] = {
    18: (_BasicBlock, (2, 2, 2, 2)),
    50: (_Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """ResNet-``depth``, 18 or 50, for images of about 224x224; any size is accepted.

    The starting weights are a pure function of ``seed``: He normal by fan-out for convolutions, norms at weight 1 and
    bias 0, uniform within ±1/√(inputs) for the linear weight, bias 0. Building a model leaves torch's global generator
    untouched.

    Args:
        depth: 18 (basic blocks) or 50 (bottlenecks).
        num_classes: Number of logits.
        in_channels: Channels of the images.
        zero_init_residual: Start the last norm of every block at weight 0, so that each block begins as its shortcut
            and the network is easier to train at first (Goyal et al., 2017, arXiv:1706.02677), as ImageNet recipes
            have done since. ``False`` gives the 2016 network.
        seed: Key of the starting weights.

    >>> with torch.device("meta"):
    ...     model = ResNet(depth=50, num_classes=1000)
    >>> sum(parameter.numel() for parameter in model.parameters())
    25557032
    """

    def __init__(
        self, depth: int, num_classes: int, in_channels: int = 3, zero_init_residual: bool = True, seed: int = 0
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(f"depth must be {' or '.join(map(str, _BLOCKS))}, got {depth}")
        for name, value in {"num_classes": num_classes, "in_channels": in_channels}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

        block, counts = _BLOCKS[depth]
        device = device_of_new_tensors()
        # Layers built on the meta device draw no weights, so the global generator is not advanced.
        with torch.device("meta"):
            self.stem = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            self.norm = nn.BatchNorm2d(64)
            self.stage1 = _stage(block, 64, 64, counts[0], 1)
            self.stage2 = _stage(block, 64 * block.expansion, 128, counts[1], 2)
            self.stage3 = _stage(block, 128 * block.expansion, 256, counts[2], 2)
            self.stage4 = _stage(block, 256 * block.expansion, 512, counts[3], 2)
            self.head = nn.Linear(512 * block.expansion, num_classes)
        self.to_empty(device=device)
        initialise_parameters(self, seed)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, _BasicBlock | _Bottleneck):
                    nn.init.zeros_(module.last_norm.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, num_classes] for float images [B, in_channels, H, W]."""
        features = F.relu(self.norm(self.stem(images)), inplace=True)
        features = F.max_pool2d(features, 3, stride=2, padding=1)
        features = self.stage4(self.stage3(self.stage2(self.stage1(features))))
        # Not adaptive_avg_pool2d, whose gradient on CUDA is not deterministic.
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def _stage(
    block: type[_BasicBlock | _Bottleneck], in_channels: int, channels: int, count: int, stride: int
) -> nn.Sequential:
    first = block(in_channels, channels, stride)
    return nn.Sequential(first, *(block(channels * block.expansion, channels, 1) for _ in range(count - 1)))
