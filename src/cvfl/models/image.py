"""Models for images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CNN(nn.Module):
    """A small network for images: 3x3 convolutions that double their width, each halving the image.

    The image needs at least 2^layers pixels on each side: 8 x 8 for three layers.
    """

    def __init__(self, channels: int, outputs: int, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        size = channels
        for layer in range(layers):
            blocks += [nn.Conv2d(size, width << layer, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            size = width << layer
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs."""
        output: Tensor = self.head(self.features(x).mean((2, 3)))
        return output


class MVCNN(nn.Module):
    """Views of an object, B x V x C x H x W: one trunk for all views, their features' maximum, one linear layer.

    For images of 224 x 224 and `width` = 64 it is the paper's: convolution 11x11 by steps of 4, maximum over 5x5 by
    steps of 3, convolution 3x3 to 256 channels, and the maximum again, which leaves 5 x 5 places. The first step
    follows the size of the image if it is not given (side / 56; kernel = 2 step + 3), so that images of 48 x 48 (step
    1, kernel 5) leave 4 x 4. ReLU comes after the maximum, which is the same and is less to compute.
    """

    @staticmethod
    def smallest(step: int = 1) -> int:
        """Pixels that each side needs so that one place is left at the end."""
        return 18 * step - 1

    def __init__(
        self, channels: int, outputs: int, size: tuple[int, int], width: int = 64, step: int | None = None
    ) -> None:
        super().__init__()
        step = step or max(1, round(min(size) / 56))
        kernel = 2 * step + 3
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, kernel, step, padding=2),
            nn.MaxPool2d(5, 3),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.MaxPool2d(5, 3),
            nn.ReLU(),
        )
        height, across = (_pooled(_pooled((side + 4 - kernel) // step + 1)) for side in size)
        self.head = nn.Linear(4 * width * height * across, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs."""
        features: Tensor = self.features(_channels_last(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        output: Tensor = self.head(features.amax(1).flatten(1))
        return output


def _channels_last(images: Tensor) -> Tensor:
    """The layout in which a processor convolves fastest: half the time of a step of a small MVCNN.

    Images of one channel count as laid out either way; strides say which is meant.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    height, across = images.shape[2:]
    return images if images.shape[1] > 1 else images.as_strided(images.shape, (height * across, 1, across, 1))


def _pooled(side: int) -> int:
    """How many places a maximum over 5 by steps of 3 leaves."""
    return (side - 5) // 3 + 1


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of both ways."""
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network with a 3x3 stem, for small images; `width` = 64 and two blocks a stage is ResNet18."""

    def __init__(self, channels: int, outputs: int, width: int = 64, blocks: int = 2, stages: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        layers: list[nn.Module] = []
        size = width
        for stage in range(stages):
            for block in range(blocks):
                layers.append(_Block(size, width << stage, 2 if stage and not block else 1))
                size = width << stage
        self.stages = nn.Sequential(*layers)
        self.head = nn.Linear(size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs."""
        features: Tensor = self.stages(self.stem(_channels_last(x)))
        output: Tensor = self.head(features.mean((2, 3)))
        return output
