"""What each party brings, by hand: a party that says nothing brings nothing, and shares add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from cvfl.analysis.parties import headline_of, shapley, what_parties_bring
from cvfl.models.server import Sum
from cvfl.protocol import Loss, Units

DRAW = torch.Generator().manual_seed(0)
PHI = [torch.randn(200, 1, generator=DRAW, dtype=torch.float64) for _ in range(3)]
MODEL = Sum(torch.nn.Identity())


def bring(loss: Loss, y: torch.Tensor) -> dict[str, Any]:
    phi = [PHI[0], 0.5 * PHI[1], 0 * PHI[2]]
    found = what_parties_bring("abc", loss, MODEL, phi, y, Units(7.0, 10.0), 1)
    assert found == what_parties_bring("abc", loss, MODEL, phi, y, Units(7.0, 10.0), 1)
    return {"together": found.together} | {one.party: one for one in found.each}


def test_of_a_quantity_that_is_the_sum_of_what_two_of_them_have() -> None:
    y = (PHI[0] + 0.5 * PHI[1])[:, 0]
    found = bring(Loss.SQUARED, y)
    assert found["together"] == 0
    a, b, c = (found[name] for name in "abc")
    assert a.without.low <= a.without.value <= a.without.high
    assert a.without.value == pytest.approx(10 * 2**0.5 * float(PHI[0].std()), rel=0.1)
    assert a.without.value > b.without.value > c.without.value == 0
    assert a.shapley > b.shapley > c.shapley == 0
    assert a.shapley + b.shapley == pytest.approx(10 * float(y.std(correction=0)))


def test_of_two_classes() -> None:
    y = (PHI[0] + 0.5 * PHI[1] > 0)[:, 0].double()
    found = bring(Loss.BINARY, y)
    assert found["together"] == 1
    assert sum(found[name].shapley for name in "abc") == pytest.approx(0.5)  # above guessing
    assert found["a"].without.value < found["b"].without.value < found["c"].without.value == 1


def test_the_headline_alone_is_what_an_evaluation_has() -> None:
    z, y = torch.round(PHI[0], decimals=1), (PHI[1] + PHI[0] > 0)[:, 0].double()
    assert headline_of(Loss.BINARY, z, y, Units()) == pytest.approx(roc_auc_score(y, z[:, 0]), abs=1e-12)


def test_shapley_values_of_a_game_by_hand() -> None:
    """Two that are worth something only together share it; one that adds by itself keeps that."""

    def worth(phi: list[torch.Tensor]) -> float:
        here = [bool(h.std() > 1e-6) for h in phi]
        return 6.0 * (here[0] and here[1]) + 2.0 * here[2]

    assert shapley(worth, PHI) == pytest.approx([3.0, 3.0, 2.0])
    assert np.sum(shapley(worth, PHI, -1)) == pytest.approx(-8.0)
