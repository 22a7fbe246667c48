"""The last layer that a holder fits: what scikit-learn finds, in the terms of a linear layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge

from cvfl.protocol import Loss
from cvfl.protocol.learning import last_layer
from cvfl.protocol.learning.last_layer import STRENGTHS, fit_last_layer
from cvfl.protocol.learning.objective import ClassWeight, Objective
from cvfl.rng import stream

NOBODY = torch.zeros(0, 5), torch.zeros(0)


def embeddings(rows: int, seed: int = 0) -> torch.Tensor:
    u = torch.from_numpy(stream(seed, "last layer").uniform(5 * rows)).reshape(rows, 5)
    return (u - 0.5) * torch.tensor([1.0, 10.0, 0.1, 3.0, 1.0]) + torch.tensor([0.0, 4.0, 0.0, -1.0, 0.0])


def labels(loss: Loss, phi: torch.Tensor) -> torch.Tensor:
    z = phi[:, 0] + phi[:, 1] / 10 - 0.4 + 0.2 * torch.from_numpy(stream(9, "noise").uniform(len(phi)) - 0.5)
    if loss is Loss.MULTICLASS:
        return (z > -0.2).long() + (z > 0.3).long()
    return z if loss is Loss.SQUARED else (z > 0).double()


@pytest.mark.parametrize("loss", Loss)
def test_it_is_the_regression_on_scaled_columns(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    phi = embeddings(300)
    y = labels(loss, phi)
    monkeypatch.setattr(last_layer, "STRENGTHS", (0.1,))
    found = fit_last_layer(loss, 3 if loss is Loss.MULTICLASS else 1, (phi, y), (phi[:50], y[:50]))
    X = ((phi - phi.mean(0)) / phi.std(0, correction=0)).numpy()
    if loss is Loss.SQUARED:
        expected = Ridge(alpha=10.0).fit(X, y.numpy()).predict(X)
    else:
        expected = LogisticRegression(C=0.1, max_iter=200).fit(X, y.numpy()).decision_function(X)
    assert found.outputs(phi).numpy() == pytest.approx(expected.reshape(300, -1), abs=1e-9)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("apart", [True, False])
def test_the_strength_is_the_best_on_rows_that_were_not_fitted(
    loss: Loss, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, other = embeddings(60), embeddings(400, seed=1)
    y, theirs = labels(loss, train), labels(loss, other)
    outputs = 3 if loss is Loss.MULTICLASS else 1
    given_other = (other, theirs) if apart else (NOBODY[0], theirs[:0])
    found = fit_last_layer(loss, outputs, (train, y), given_other)
    lost = {}
    if not apart:
        held = torch.arange(60) % 5 == 0
        other, theirs = train[held], y[held]
    for strength in STRENGTHS:
        monkeypatch.setattr(last_layer, "STRENGTHS", (strength,))
        one = fit_last_layer(loss, outputs, (train, y) if apart else (train[~held], y[~held]), (other, theirs))
        lost[strength] = float(loss(one.outputs(other), loss.labels(theirs, torch.float64)))
    monkeypatch.setattr(last_layer, "STRENGTHS", (min(lost, key=lost.__getitem__),))
    best = fit_last_layer(loss, outputs, (train, y), given_other)
    if apart:
        assert found.outputs(train).equal(best.outputs(train))
    else:  # rows that choose are scaled by all, so that the choice may fall beside it
        assert float(loss(found.outputs(other), loss.labels(theirs, torch.float64))) <= 1.05 * min(lost.values())


@given(st.lists(st.integers(0, 3), min_size=10, max_size=30), st.booleans())
@settings(max_examples=40, deadline=None)
def test_classes_that_are_missing_are_never_chosen(classes: list[int], two: bool) -> None:
    y = torch.tensor(classes).clamp_max(1).double() if two else torch.tensor(classes)
    phi = embeddings(len(y))
    found = fit_last_layer(Loss.BINARY if two else Loss.MULTICLASS, 1 if two else 4, (phi, y), (phi[:3], y[:3]))
    z = found.outputs(phi)
    assert bool(torch.isfinite(z).all())
    chosen = (z[:, 0] > 0).double() if two else z.argmax(1)
    assert set(chosen.tolist()) <= set(y.tolist())


@pytest.mark.parametrize("loss", [Loss.BINARY, Loss.MULTICLASS])
@pytest.mark.parametrize("weights", ["balanced", (1.0, 8.0, 3.0)])
def test_rows_are_weighed_by_their_class_in_the_fit_and_in_the_choice(loss: Loss, weights: ClassWeight) -> None:
    phi, some = embeddings(300), embeddings(200, seed=1)
    y, theirs = labels(loss, phi), labels(loss, some)
    found = fit_last_layer(loss, 3 if loss is Loss.MULTICLASS else 1, (phi, y), (some, theirs), weights)
    X = ((phi - phi.mean(0)) / phi.std(0, correction=0)).numpy()
    each = Objective.of(loss, weights, y)
    known = each.weights
    assert known is not None
    by_class = {c: float(known[int(c)]) for c in np.unique(y)}
    lost = {}
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=200, class_weight=by_class).fit(X, y.numpy())
        z = model.decision_function(((some - phi.mean(0)) / phi.std(0, correction=0)).numpy()).reshape(200, -1)
        lost[strength] = float(each.by_class(torch.from_numpy(z), loss.labels(theirs, torch.float64)))
        if lost[strength] == min(lost.values()):
            expected = model.decision_function(X).reshape(300, -1)
    assert found.outputs(phi).numpy() == pytest.approx(expected, abs=1e-9)
    plain = fit_last_layer(loss, 3 if loss is Loss.MULTICLASS else 1, (phi, y), (some, theirs))
    assert not np.allclose(plain.b, found.b)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_of_few_rows_there_is_a_layer_too(loss: Loss, rows: int) -> None:
    phi = embeddings(rows)
    outputs = 3 if loss is Loss.MULTICLASS else 1
    found = fit_last_layer(loss, outputs, (phi, labels(loss, phi)), (NOBODY[0], labels(loss, phi)[:0]))
    assert bool(torch.isfinite(found.outputs(phi)).all())


def test_columns_that_all_rows_share_tell_nothing() -> None:
    phi = torch.cat([embeddings(40), torch.full((40, 2), 7.0)], 1)
    found = fit_last_layer(Loss.BINARY, 1, (phi, labels(Loss.BINARY, phi)), (phi[:9], labels(Loss.BINARY, phi)[:9]))
    assert found.W[0, 5:] == pytest.approx(np.zeros(2), abs=1e-12)
    assert found.tensors(torch.float32)["weight"].dtype is torch.float32
