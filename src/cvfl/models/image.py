"""Models for images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


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
        features: Tensor = self.stages(self.stem(x))
        output: Tensor = self.head(features.mean((2, 3)))
        return output
