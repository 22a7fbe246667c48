"""Two classes: curves, calibration, tenths and decisions, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cvfl.analysis.buckets import binned, coarse, cuts, evenly, hidden
from cvfl.analysis.resample import Floats, estimates, interval, widened
from cvfl.lazy import lazy
from cvfl.runs.analysis import FEW, Estimate, Points, Tenth, TwoClasses

metrics = lazy("sklearn.metrics")

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
    ranking, positive = Ranking(y, p), y > 0
    tp, fp = ranking.found(np.ones(len(y)))
    curves = _curves(ranking, len(y), threshold, seed)
    return TwoClasses(
        positives=int(positive.sum()),
        ks=float((tp / tp[-1] - fp / fp[-1]).max(initial=0.0)),
        log_loss=float(metrics.log_loss(positive, p)),
        brier=float(metrics.brier_score_loss(positive, p)),
        calibration=binned(p, y),
        tenths=tenths(y, ranking),
        **_decisions(positive, p >= threshold, curves.pop("f1")),
        **curves,
    )


def _decisions(positive: NDArray[np.bool_], chosen: NDArray[np.bool_], f1: Estimate) -> dict[str, Any]:
    """Figures at the threshold; F1 with the interval that it has."""
    matrix = metrics.confusion_matrix(positive, chosen, labels=[False, True])
    (tn, fp), (fn, tp) = coarse(matrix)
    return {
        "accuracy": float((tn + tp) / max(1, tn + fp + fn + tp)),
        "precision": float(tp / max(1, fp + tp)),
        "recall": float(tp / max(1, fn + tp)),
        "f1": widened(f1, float(2 * tp / max(1, 2 * tp + fp + fn))),
        "confusion": hidden(matrix),
    }


def _curves(ranking: Ranking, people: int, threshold: float, seed: int) -> dict[str, Any]:
    """Curves, and figures that need intervals, with those."""
    tp, fp = ranking.found(np.ones(people))
    ends, chosen = cuts(tp + fp, max(FEW, people / MOST_POINTS)), ranking.at(threshold)
    fpr, tpr = (np.concatenate([[0.0], rate[ends] / rate[-1]]) for rate in (fp, tp))
    recall, precision = tpr[1:], tp[ends] / (tp + fp)[ends]

    def figures(counts: Floats) -> Floats:
        return _figures(*ranking.found(counts), chosen, fpr, recall)

    low, high = interval(figures, people, seed)
    roc_auc, average_precision, f1 = estimates(figures(np.ones(people))[:3], low[:3], high[:3])
    first, second = slice(3, 3 + len(fpr)), slice(3 + len(fpr), None)
    return {
        "roc_auc": roc_auc,
        "average_precision": average_precision,
        "f1": f1,
        "roc": _points(fpr, tpr, low[first], high[first]),
        "precision_recall": _points(recall, precision, low[second], high[second]),
    }


def tenths(y: NDArray[Any], ranking: Ranking) -> tuple[Tenth, ...]:
    """Gain and lift of each tenth."""
    groups, positives = evenly(ranking.order), float((y > 0).sum())
    hits = np.array([float((y[rows] > 0).sum()) for rows in groups])
    return tuple(
        Tenth(people=len(rows), gain=gain / positives, lift=hit / len(rows) * len(y) / positives)
        for rows, gain, hit in zip(groups, np.cumsum(hits).tolist(), hits.tolist(), strict=True)
    )


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
