"""Wide residual networks (Zagoruyko and Komodakis, 2016, arXiv:1605.07146)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from particleaugment.models.initialise import device_of_new_tensors, initialise_parameters

__all__ = ["WideResNet"]


class _PreActivationBlock(nn.Module):
    """Norm, relu, 3x3 convolution, twice; where the number of channels changes, the shortcut is a 1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        changes = in_channels != out_channels
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x), inplace=True)
        # A projecting shortcut starts from the activated input, an identity shortcut from the raw one.
        residual = x if self.shortcut is None else self.shortcut(activated)
        hidden = F.relu(self.norm2(self.conv1(activated)), inplace=True)
        result: Tensor = self.conv2(self.dropout(hidden)) + residual
        return result


class WideResNet(nn.Module):
    """WRN-``depth``-``width``: three stages of pre-activation blocks with 16, 32 and 64 times ``width`` channels.

    The starting weights are a pure function of ``seed``: He normal by fan-out for convolutions and uniform within
    ±1/√(inputs) for the linear weight, biases 0, as in the paper's code; batch norms start at weight 1 and bias 0
    (Torch 7, in which that code was written, drew their weights from [0, 1)). Building a model leaves torch's global
    generator untouched. Images of any size are accepted: stages two and three halve it, and the last feature map is
    averaged.

    ``dropout`` acts between the two convolutions of a block. Its masks come from torch's global generator, so a run
    with dropout is no longer a pure function of its key; the built-in recipes use 0.

    >>> model = WideResNet(depth=10, width=1, num_classes=10, seed=0)
    >>> sum(parameter.numel() for parameter in model.parameters())
    77850
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        width: int,
        num_classes: int,
        dropout: float = 0.0,
        in_channels: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth must be 6k + 4 with k at least 1 (10, 16, 22, 28, 34, 40, ...), got {depth}")
        for name, value in {"width": width, "num_classes": num_classes, "in_channels": in_channels}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")

        blocks_per_stage = (depth - 4) // 6
        channels = [16, 16 * width, 32 * width, 64 * width]
        device = device_of_new_tensors()
        # Layers built on the meta device draw no weights, so the global generator is not advanced.
        with torch.device("meta"):
            self.stem = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
            self.stage1 = _stage(channels[0], channels[1], blocks_per_stage, 1, dropout)
            self.stage2 = _stage(channels[1], channels[2], blocks_per_stage, 2, dropout)
            self.stage3 = _stage(channels[2], channels[3], blocks_per_stage, 2, dropout)
            self.norm = nn.BatchNorm2d(channels[3])
            self.head = nn.Linear(channels[3], num_classes)
        self.to_empty(device=device)
        initialise_parameters(self, seed)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, num_classes] for float images [B, in_channels, H, W]."""
        features = self.stage3(self.stage2(self.stage1(self.stem(images))))
        # Not adaptive_avg_pool2d, whose gradient on CUDA is not deterministic.
        pooled = F.relu(self.norm(features), inplace=True).mean(dim=(2, 3))
        logits: Tensor = self.head(pooled)
        return logits


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    first = _PreActivationBlock(in_channels, out_channels, stride, dropout)
    rest = [_PreActivationBlock(out_channels, out_channels, 1, dropout) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)
