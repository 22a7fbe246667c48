"""Two classes: curves, calibration, tenths and decisions, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss

from cvfl.analysis.buckets import binned, cuts, evenly, hidden
from cvfl.analysis.resample import Floats, estimates, interval
from cvfl.runs.analysis import FEW, Points, Tenth, TwoClasses

MOST_POINTS = 100


class Ranking:
    """People by score from above; those with the same score are one step of every curve."""

    def __init__(self, y: NDArray[Any], p: Floats) -> None:
        self.order = np.argsort(-p, kind="stable")
        self._y, self._p = (y > 0)[self.order], p[self.order]
        self._ends = np.append(np.flatnonzero(np.diff(self._p)), len(p) - 1)

    def found(self, counts: Floats) -> tuple[Floats, Floats]:
        """True and false positives at each step, when people count so often."""
        counts = counts[self.order]
        tp, everyone = np.cumsum(counts * self._y)[self._ends], np.cumsum(counts)[self._ends]
        return tp, everyone - tp

    def at(self, threshold: float) -> int:
        """The last step that is at the threshold or above; -1 if there is none."""
        return int((self._p[self._ends] >= threshold).sum()) - 1


def two_classes(y: NDArray[Any], p: Floats, threshold: float, seed: int) -> TwoClasses:
    """All figures of labels 0 and 1 and the probabilities of the latter."""
    n, ranking = len(y), Ranking(y, p)
    chosen = ranking.at(threshold)
    tp, fp = ranking.found(np.ones(n))
    ends = cuts(tp + fp, max(FEW, n / MOST_POINTS))
    fpr, recall = _steps(fp / fp[-1], ends), tp[ends] / tp[-1]

    def figures(counts: Floats) -> Floats:
        return _figures(*ranking.found(counts), chosen, fpr, recall)

    low, high = interval(figures, n, seed)
    values = figures(np.ones(n))
    roc_auc, average_precision, f1 = estimates(values[:3], low[:3], high[:3])
    tpr, precision = _steps(tp / tp[-1], ends), tp[ends] / (tp + fp)[ends]
    middle = 3 + len(fpr)
    decided = p >= threshold
    matrix = confusion_matrix(y > 0, decided, labels=[False, True])
    hits = matrix[1, 1]
    return TwoClasses(
        positives=int(tp[-1]),
        roc_auc=roc_auc,
        average_precision=average_precision,
        f1=f1,
        accuracy=float((decided == (y > 0)).mean()),
        precision=float(hits / max(1, decided.sum())),
        recall=float(hits / tp[-1]),
        ks=float((tp / tp[-1] - fp / fp[-1]).max(initial=0.0)),
        log_loss=float(log_loss(y > 0, p)),
        brier=float(brier_score_loss(y > 0, p)),
        confusion=hidden(matrix),
        roc=_points(fpr, tpr, low[3:middle], high[3:middle]),
        precision_recall=_points(recall, precision, low[middle:], high[middle:]),
        calibration=binned(p, y),
        tenths=tenths(y, ranking),
    )


def tenths(y: NDArray[Any], ranking: Ranking) -> tuple[Tenth, ...]:
    """Gain and lift of each tenth."""
    groups, positives = evenly(ranking.order), float((y > 0).sum())
    hits = np.array([float((y[rows] > 0).sum()) for rows in groups])
    return tuple(
        Tenth(people=len(rows), gain=gain / positives, lift=hit / len(rows) * len(y) / positives)
        for rows, gain, hit in zip(groups, np.cumsum(hits).tolist(), hits.tolist(), strict=True)
    )


def _steps(rate: Floats, ends: NDArray[np.int64]) -> Floats:
    """A rate from 0 on."""
    return np.concatenate([[0.0], rate[ends]])


def _figures(tp: Floats, fp: Floats, chosen: int, at_fpr: Floats, at_recall: Floats) -> Floats:
    """ROC AUC, average precision, F1, then the ROC curve at these rates and precision at these recalls."""
    positives, negatives = tp[-1], fp[-1]
    if positives == 0 or negatives == 0:
        return np.full(3 + len(at_fpr) + len(at_recall), np.nan)
    tpr, fpr = (np.concatenate([[0.0], rate]) for rate in (tp / positives, fp / negatives))
    precision = np.divide(tp, tp + fp, out=np.ones_like(tp), where=tp + fp > 0)
    f1 = 2 * tp[chosen] / (tp[chosen] + fp[chosen] + positives) if chosen >= 0 else 0.0
    single = [np.trapezoid(tpr, fpr), float((np.diff(tpr) * precision).sum()), f1]
    return np.concatenate([single, np.interp(at_fpr, fpr, tpr), np.interp(at_recall, tpr[1:], precision)])


def _points(x: Floats, y: Floats, low: Floats, high: Floats) -> Points:
    return Points(x=tuple(x.tolist()), y=tuple(y.tolist()), low=tuple(low.tolist()), high=tuple(high.tolist()))
