"""Models for tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn


class MLP(nn.Sequential):
    """Linear layers over flattened rows with ReLU between them; `bounded` ends in tanh, within [-1, 1]."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (), *, bounded: bool = False) -> None:
        sizes = [inputs, *hidden, outputs]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        layers[-1:] = [nn.Tanh()] if bounded else []
        super().__init__(*layers)
