"""Attacks of a curious observer as pure functions: what it saw of rows, and the truth, in; numbers out.

    invert         features from what was seen, by a model that is trained on rows that the attacker knows
    infer_labels   labels from what was seen, by a model that is trained on a few known labels
    by_norm, by_direction, by_weights      labels from gradients, without a single known label

Rows come in random order, the ones that the attacker knows first. Every figure is measured on the others.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

from cvfl.models import MLP
from cvfl.protocol import Loss
from cvfl.protocol.learning.layers import seeded
from cvfl.rng import stream

AUDIT = "audit"
"""The name of the random streams of an audit."""
FEW = 20
"""Labels of a class that an attacker may know; of a quantity as many in all."""
_EPOCHS, _PATIENCE, _BATCH, _HIDDEN, _STEP = 60, 8, 128, 256, 1e-3
_RIDGES = (1e-6, 1e-3, 1e-1)
_STRENGTHS = (1e-4, 1e-2, 1.0)
_VARIED = 0.1  # of a column's variance: with less on the tested rows its R^2 says nothing


@dataclass(frozen=True)
class Errors:
    """Mean squared errors of every column on rows that the attacker does not know.

    `baseline` is that of the mean of the known rows; both are in units of the column's variance over all rows. What is
    constant has none, and no error.
    """

    attack: Tensor
    baseline: Tensor
    variance: Tensor
    low: Tensor
    high: Tensor

    def of(self, columns: slice) -> Errors:
        """Those of some columns."""
        return Errors(*(getattr(self, field.name)[columns] for field in fields(self)))

    @property
    def r2(self) -> float:
        """The share of the variance that the attack explains; the mean explains 0."""
        total = float(self.baseline.sum())
        return 1 - float(self.attack.sum()) / total if total > 0 else 0.0

    def best(self) -> tuple[float, int]:
        """The R^2 of the column that is recovered best, and which one it is."""
        r2 = torch.where(self.baseline > _VARIED, 1 - self.attack / self.baseline.clamp_min(_VARIED), 0.0)
        place = int(r2.argmax())
        return float(r2[place]), place

    def psnr(self) -> tuple[float, float]:
        """Peak signal-to-noise ratio in dB of the attack and of the mean, over the range of all values."""
        spread = float(self.high.max() - self.low.min())
        mse = [max(float((errors * self.variance).mean()), 1e-12) for errors in (self.attack, self.baseline)]
        attack, baseline = (10 * math.log10(max(spread**2 / error, 1e-12)) for error in mse)
        return attack, baseline


def invert(seen: Tensor, features: Tensor, known: int, seed: int) -> Errors:
    """Train a model from what was seen to features on the known rows, and test it on the others.

    It is a linear map and a small network on top, each as far as it helps on a fifth of the known rows. Where nothing
    helps the attacker says the mean, and is as good as the baseline.
    """
    x, y = _standardised(seen, known), _standardised(features, known)
    fit = known - max(1, known // 5)
    guess = x @ _ridge(x, y, fit, known)
    guess += _network(x.float(), (y - guess).float(), fit, known, seed)
    if float((y - guess)[fit:known].square().mean()) > float(y[fit:known].square().mean()):
        guess.zero_()
    # Errors are those of the columns themselves: what varies little among the known rows is not blown up.
    truth, unit = features.double(), features[:known].double().std(0, correction=0)
    variance, mean = truth.var(0, correction=0), truth[:known].mean(0)
    varied = variance > 1e-18 * truth.abs().amax(0).square().clamp_min(1e-300)
    attack, baseline = (
        torch.where(varied, (mean + change * unit - truth)[known:].square().mean(0) / variance.clamp_min(1e-300), 0.0)
        for change in (guess, torch.zeros_like(guess))
    )
    return Errors(attack, baseline, variance, truth.amin(0), truth.amax(0))


def _standardised(x: Tensor, known: int) -> Tensor:
    """Columns by mean and deviation of the known rows; what is constant there becomes zero."""
    x = x.double()
    mean, deviation = x[:known].mean(0), x[:known].std(0, correction=0)
    varied = deviation > 1e-9 * x[:known].abs().amax(0).clamp_min(1e-300)
    return torch.where(varied, (x - mean) / torch.where(varied, deviation, 1.0), 0.0)


def _ridge(x: Tensor, y: Tensor, fit: int, known: int) -> Tensor:
    """The linear map that is best on rows `fit` to `known` of those that rows before `fit` suggest."""
    gram, product, one = x[:fit].t() @ x[:fit], x[:fit].t() @ y[:fit], torch.eye(x.shape[1], dtype=x.dtype)
    maps = [torch.linalg.solve(gram + penalty * fit * one, product) for penalty in _RIDGES]
    best: Tensor = min(maps, key=lambda W: float((y[fit:known] - x[fit:known] @ W).square().mean()))
    return best


def _network(x: Tensor, left: Tensor, fit: int, known: int, seed: int) -> Tensor:
    """What a network makes of what the linear map left, at the epoch that was best on rows `fit` to `known`."""
    with seeded(seed, AUDIT, "network"):
        model = MLP(x.shape[1], left.shape[1], (_HIDDEN, _HIDDEN))
    last = model[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)  # it starts as no change at all
    nn.init.zeros_(last.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=_STEP)
    best, kept, since = float(left[fit:known].square().mean()), copy.deepcopy(model.state_dict()), 0
    for epoch in range(_EPOCHS):
        order = torch.from_numpy(stream(seed, AUDIT, "batches", epoch).permutation(fit))
        for rows in torch.split(order, _BATCH):
            optimizer.zero_grad()
            (model(x[rows]) - left[rows]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            error = float((model(x[fit:known]) - left[fit:known]).square().mean())
        since += 1
        if error < best:
            best, kept, since = error, copy.deepcopy(model.state_dict()), 0
        if since >= _PATIENCE:
            break
    model.load_state_dict(kept)
    with torch.no_grad():
        change: Tensor = model(x)
    return change.double()


def infer_labels(seen: Tensor, labels: Tensor, loss: Loss, known: int, few: bool = False) -> float:
    """Train a linear classifier, or a linear regression, on the known rows or a few of them; score it on the others."""
    rows = _few(labels[:known], loss) if few else torch.arange(known)
    x = _standardised(torch.cat([seen[rows], seen[known:]]), len(rows))
    train, test, y = x[: len(rows)].numpy(), x[len(rows) :].numpy(), labels[rows].double().numpy()
    if loss is Loss.SQUARED:
        return score(loss, labels[known:], torch.from_numpy(_regression(train, y, test)))
    return score(loss, labels[known:], _probabilities(train, y, test, int(labels.max()) + 1))


def guess_labels(seen: Tensor, labels: Tensor, known: int, classes: int) -> Tensor:
    """Of every row that the attacker does not know the probability of each class, by a classifier of the others."""
    x = _standardised(seen, known).numpy()
    return _probabilities(x[:known], labels[:known].double().numpy(), x[known:], classes)


def _probabilities(train: NDArray[np.float64], y: NDArray[np.float64], test: NDArray[np.float64], count: int) -> Tensor:
    """Those of all classes; of one that no known row has, none."""
    found = np.unique(y)
    outputs = torch.zeros(len(test), count, dtype=torch.float64)
    if len(found) > 1:
        outputs[:, found.astype(np.int64)] = torch.from_numpy(_classifier(train, y).predict_proba(test))
    return outputs


def _few(labels: Tensor, loss: Loss) -> Tensor:
    """The first rows of every class."""
    if loss is Loss.SQUARED:
        return torch.arange(min(FEW, len(labels)))
    places = [(labels == label).nonzero()[:FEW, 0] for label in torch.unique(labels)]
    return torch.cat(places).sort().values


def _classifier(x: NDArray[np.float64], y: NDArray[np.float64]) -> LogisticRegression:
    """A logistic regression, with the strength that is best on the last quarter, if that has all classes."""
    fit, classes = len(x) - len(x) // 4, np.unique(y)
    strength = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is as good for an attack
        if len(classes) == len(np.unique(y[:fit])) == len(np.unique(y[fit:])):
            trials = {C: _fitted(x[:fit], y[:fit], C).predict_proba(x[fit:]) for C in _STRENGTHS}
            strength = min(trials, key=lambda C: log_loss(y[fit:], trials[C], labels=classes))
        return _fitted(x, y, strength)


def _fitted(x: NDArray[np.float64], y: NDArray[np.float64], strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, max_iter=300).fit(x, y)


def _regression(x: NDArray[np.float64], y: NDArray[np.float64], test: NDArray[np.float64]) -> NDArray[np.float64]:
    """A ridge regression's outputs, with the penalty that is best on the last quarter."""
    fit = len(x) - len(x) // 4
    trials = {a: mean_squared_error(y[fit:], Ridge(a).fit(x[:fit], y[:fit]).predict(x[fit:])) for a in (1.0, 100.0)}
    outputs: NDArray[np.float64] = Ridge(min(trials, key=trials.__getitem__)).fit(x, y).predict(test)
    return outputs


def with_directions(gradients: Tensor) -> Tensor:
    """Gradients with their directions beside them: where a model is sure they are small, but point all the same."""
    return torch.cat([gradients.double(), _directions(gradients)], 1)


def _directions(gradients: Tensor) -> Tensor:
    return F.normalize(gradients.double(), dim=1, eps=1e-300)


def by_norm(gradients: Tensor, labels: Tensor, loss: Loss) -> float | None:
    """Labels by how large a row's gradient is; nothing to say of more than two classes."""
    return _either_way(loss, labels, gradients.double().norm(dim=1))


def by_direction(gradients: Tensor, labels: Tensor, loss: Loss) -> float | None:
    """Labels by the side of the leading direction of all gradients on which a row's is."""
    # Of a class the side counts, of a quantity how far.
    g = gradients.double() if loss is Loss.SQUARED else _directions(gradients)
    leading = torch.linalg.eigh(g.t() @ g).eigenvectors[:, -1]
    return _either_way(loss, labels, g @ leading)


def by_weights(gradients: Tensor, weights: Tensor, labels: Tensor, loss: Loss) -> float:
    """Labels by the gradient in the model's outputs, which the weights give away: it is lowest at the true class.

    A linear server model has g = r W, where r is p - y for cross-entropy, so r = g W^+.
    """
    residual = gradients.double() @ torch.linalg.pinv(weights.double())
    return score(loss, labels, -residual)


def _either_way(loss: Loss, labels: Tensor, scores: Tensor) -> float | None:
    """The score of a guess of which nobody says which side is which: the better one."""
    if loss is Loss.MULTICLASS and len(torch.unique(labels)) > 2:
        return None
    found = score(loss, labels, scores)
    return found if loss is Loss.SQUARED else max(found, 1 - found)


def score(loss: Loss, labels: Tensor, scores: Tensor) -> float:
    """ROC AUC, of several classes the mean of one against the rest; of a quantity the squared correlation."""
    y, s = labels.double(), scores.double().reshape(len(labels), -1)
    if loss is Loss.SQUARED:
        deviations = [values - values.mean() for values in (y, s[:, 0])]
        size = float(deviations[0].norm() * deviations[1].norm())
        return (float(deviations[0] @ deviations[1]) / size) ** 2 if size > 0 else 0.0
    if loss is Loss.BINARY or s.shape[1] <= 2:
        found = [(y == y.max(), s[:, -1])]
    else:
        found = [(y == label, s[:, label]) for label in range(s.shape[1])]
    values = [float(roc_auc_score(is_it, column)) for is_it, column in found if 0 < int(is_it.sum()) < len(y)]
    return sum(values) / len(values) if values else 0.5
