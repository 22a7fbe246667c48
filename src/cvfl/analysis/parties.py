"""What each party brings to the headline metric, from the embeddings of test rows as they were decoded.

Without a party: its embeddings are dealt out anew among the rows, so that they say nothing of a row any more, a few
times. Shapley values: a party that is absent has its mean embedding in every row, and each party gets the mean of what
it adds to a coalition, over all orders in which parties may come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial

import numpy as np
import torch
from torch import Tensor, nn

from cvfl.analysis.resample import between, estimates
from cvfl.lazy import lazy
from cvfl.protocol import Loss, Units
from cvfl.protocol.learning.metrics import BETTER_LOW, headline
from cvfl.rng import stream
from cvfl.runs.analysis import Brought, Parties

stats = lazy("scipy.stats")

DEALT = "dealt"
TIMES = 20
MOST_PARTIES = 6
"""Most parties that Shapley values are computed for: there are 2^M coalitions."""
Score = Callable[[Sequence[Tensor]], float]


def what_parties_bring(
    names: Sequence[str], loss: Loss, model: nn.Module, phi: Sequence[Tensor], y: Tensor, units: Units, seed: int
) -> Parties:
    """Both figures for every party, by the embeddings phi of all parties."""

    def score(embeddings: Sequence[Tensor]) -> float:
        with torch.no_grad():
            return headline_of(loss, model(list(embeddings)), y, units)

    metric = headline(loss)
    values = shapley(score, phi, -1 if metric in BETTER_LOW else 1) if len(names) <= MOST_PARTIES else None
    each = []
    for m, name in enumerate(names):
        found = np.array([[score(_dealt(phi, m, seed, k))] for k in range(TIMES)])
        (without,) = estimates(found.mean(0), *between(found))
        each.append(Brought(party=name, without=without, shapley=None if values is None else values[m]))
    return Parties(metric=metric, together=score(phi), each=tuple(each))


def headline_of(loss: Loss, outputs: Tensor, y: Tensor, units: Units) -> float:
    """The headline metric alone, which is computed often: ROC AUC is the Mann-Whitney statistic of the ranks."""
    match loss:
        case Loss.BINARY:
            positive = y.cpu().numpy() > 0
            n = int(positive.sum())
            above = stats.rankdata(outputs.reshape(-1).cpu().numpy())[positive].sum() - n * (n + 1) / 2
            return float(above / (n * (len(positive) - n)))
        case Loss.MULTICLASS:
            return float((outputs.argmax(1) == y).double().mean())
        case Loss.SQUARED:
            return units.scale * float((outputs.reshape(-1).double() - y.double()).square().mean().sqrt())


def shapley(score: Score, phi: Sequence[Tensor], sign: int = 1) -> list[float]:
    """For each party what it adds to the score; the sum is what all have together above nobody."""
    M, means = len(phi), [h.mean(0, keepdim=True).expand_as(h) for h in phi]
    everyone = range(M)
    worth = {
        present: sign * score([phi[m] if m in present else means[m] for m in everyone])
        for size in range(M + 1)
        for present in map(frozenset, combinations(everyone, size))
    }
    return [
        sum(
            factorial(len(others)) * factorial(M - len(others) - 1) / factorial(M) * (worth[others | {m}] - value)
            for others, value in worth.items()
            if m not in others
        )
        for m in everyone
    ]


def _dealt(phi: Sequence[Tensor], m: int, seed: int, k: int) -> list[Tensor]:
    """The embeddings with those of one party in another order."""
    order = torch.from_numpy(stream(seed, DEALT, m, k).permutation(len(phi[m])))
    return [h[order.to(h.device)] if j == m else h for j, h in enumerate(phi)]
