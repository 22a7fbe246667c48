"""Models for tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Linear layers with ReLU between them; `bounded` ends in tanh, which suits a fixed range of [-1, 1]."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (), *, bounded: bool = False) -> None:
        sizes = [inputs, *hidden, outputs]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        layers[-1:] = [nn.Tanh()] if bounded else []
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Flatten whatever a row holds and pass it through."""
        output: Tensor = super().forward(x.flatten(1))
        return output
