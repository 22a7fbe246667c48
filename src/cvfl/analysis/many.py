"""Several classes: each against all others, and how they are confused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cvfl.analysis.buckets import coarse, hidden
from cvfl.analysis.resample import Floats, estimates, interval
from cvfl.lazy import lazy
from cvfl.runs.analysis import FEW, ManyClasses, OneClass

metrics = lazy("sklearn.metrics")


def many_classes(y: NDArray[Any], p: Floats, seed: int) -> ManyClasses:
    """All figures of class numbers and the probabilities of every class."""
    classes = np.arange(p.shape[1])
    right = p.argmax(1) == y

    def accuracy(counts: Floats) -> Floats:
        return np.array([(counts * right).sum() / counts.sum()])

    (estimate,) = estimates(accuracy(np.ones(len(y))), *interval(accuracy, len(y), seed))
    matrix = metrics.confusion_matrix(y, p.argmax(1), labels=classes)
    scores = _scores(coarse(matrix))
    return ManyClasses(
        accuracy=estimate,
        f1=float(_scores(matrix.astype(np.float64))[2].mean()),  # a mean over classes tells of none
        log_loss=float(metrics.log_loss(y, p, labels=classes)),
        brier=float(((p - (y[:, None] == classes)) ** 2).sum(1).mean()),
        confusion=hidden(matrix),
        classes=tuple(_one(y == c, p[:, c], *(score[c] for score in scores)) for c in classes),
    )


def _scores(counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 of every class; 0 where nobody is, or is decided to be."""
    right, decided, people = counts.diagonal(), counts.sum(0), counts.sum(1)
    shares = ((right, decided), (right, people), (2 * right, decided + people))
    precision, recall, f1 = (np.divide(a, b, out=np.zeros(len(a)), where=b > 0) for a, b in shares)
    return precision, recall, f1


def _one(mine: NDArray[np.bool_], p: Floats, precision: float, recall: float, f1: float) -> OneClass:
    people = int(mine.sum())
    if min(people, len(mine) - people) < FEW:
        return OneClass(people=people if people >= FEW else None)
    return OneClass(
        people=people,
        roc_auc=float(metrics.roc_auc_score(mine, p)),
        average_precision=float(metrics.average_precision_score(mine, p)),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
    )
