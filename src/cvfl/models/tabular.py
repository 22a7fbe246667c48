"""Models for tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cvfl.protocol.learning.layers import Dropout

_QUICK = 4.0
"""How many times as fast as a weight a gate changes, by an optimizer whose steps do not depend on the scale."""


class MLP(nn.Sequential):
    """Linear layers over flattened rows with ReLU between them; `bounded` ends in tanh, within [-1, 1]."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (), *, bounded: bool = False) -> None:
        sizes = [inputs, *hidden, outputs]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        layers[-1:] = [nn.Tanh()] if bounded else []
        super().__init__(*layers)


class TabularMLP(nn.Module):
    """An MLP over numbers and categories: the last columns hold codes, each of which stands for a learned vector.

    A column of n categories (codes 0 to n - 1) becomes round(1.6 n^0.56) numbers, 50 at most: 2 for two categories,
    6 for ten, 21 for a hundred. It grows more slowly than n, as the need to tell categories apart does.
    """

    def __init__(
        self,
        numbers: int,
        cardinalities: Sequence[int],
        outputs: int,
        hidden: Sequence[int] = (),
        *,
        bounded: bool = False,
    ) -> None:
        super().__init__()
        self.numbers = numbers
        self.vectors = nn.ModuleList(nn.Embedding(n, _dimension(n)) for n in cardinalities)
        inputs = numbers + sum(_dimension(n) for n in cardinalities)
        self.head = MLP(inputs, outputs, hidden, bounded=bounded)

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs."""
        codes = x[:, self.numbers :].long().unbind(1)
        vectors = [vector(code) for vector, code in zip(self.vectors, codes, strict=True)]
        output: Tensor = self.head(torch.cat([x[:, : self.numbers], *vectors], 1))
        return output


class Gates(nn.Module):
    """A factor for every column, one at first; those of columns that do not help can be drawn to zero.

    `shrink` is called after every step of training when `optimizer.sparsity` is given.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((columns,), 1 / _QUICK))

    def forward(self, x: Tensor) -> Tensor:
        """Every column of B x columns x numbers times its factor."""
        return x * (_QUICK * self.scale)[:, None]

    def shrink(self, by: float) -> None:
        """Every factor nearer to zero, and not beyond."""
        with torch.no_grad():
            self.scale.copy_(self.scale.sign() * (self.scale.abs() - by).clamp_min(0))


class Tabular(nn.Module):
    """For tables: every number is cut into pieces of its scale, so that a linear layer bends where the data do.

    A number z is expected as a normal score (`numbers = "quantile"` in the preparation). Its place u on the scale from
    0 to 1 fills `pieces` boxes one after the other, clamp(pieces u - t, 0, 1) for box t (piecewise-linear encoding,
    Gorishniy et al. 2022). A linear layer over all boxes is an additive model with a bend at each edge; an MLP over
    them beside it sees interactions of columns. The linear layer starts at zero. Categories are learned vectors, and
    every number has a gate.
    """

    def __init__(
        self,
        numbers: int,
        cardinalities: Sequence[int],
        outputs: int,
        hidden: Sequence[int] = (64,),
        *,
        pieces: int = 8,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.numbers, self.pieces = numbers, pieces
        self.gates = Gates(numbers)
        self.vectors = nn.ModuleList(nn.Embedding(n, _dimension(n)) for n in cardinalities)
        inputs = numbers * (pieces + 1) + sum(_dimension(n) for n in cardinalities)
        self.additive = nn.Linear(inputs, outputs)
        nn.init.zeros_(self.additive.weight)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([inputs, *hidden]):
            layers += [nn.Linear(before, after), nn.ReLU(), Dropout(dropout)]
        self.deep = nn.Sequential(*layers, nn.Linear([inputs, *hidden][-1], outputs, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs, within [-1, 1]."""
        z = x[:, : self.numbers, None]
        edges = torch.arange(self.pieces, dtype=x.dtype, device=x.device)
        boxes = (self.pieces * torch.special.ndtr(z) - edges).clamp(0, 1) - 0.5
        codes = x[:, self.numbers :].long().unbind(1)
        vectors = [vector(code) for vector, code in zip(self.vectors, codes, strict=True)]
        spread = self.gates(torch.cat([z, boxes], 2)).flatten(1)
        inputs = torch.cat([spread, *vectors], 1)
        return torch.tanh(self.additive(inputs) + self.deep(inputs))


def _dimension(cardinality: int) -> int:
    return min(50, round(1.6 * math.pow(cardinality, 0.56)))
