"""Several classes: each against all others, and how they are confused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from cvfl.analysis.buckets import hidden
from cvfl.analysis.resample import Floats, estimates, interval
from cvfl.runs.analysis import FEW, ManyClasses, OneClass


def many_classes(y: NDArray[Any], p: Floats, seed: int) -> ManyClasses:
    """All figures of class numbers and the probabilities of every class."""
    classes = np.arange(p.shape[1])
    right = p.argmax(1) == y

    def accuracy(counts: Floats) -> Floats:
        return np.array([(counts * right).sum() / counts.sum()])

    (estimate,) = estimates(accuracy(np.ones(len(y))), *interval(accuracy, len(y), seed))
    scores = precision_recall_fscore_support(y, p.argmax(1), labels=classes, zero_division=0.0)
    return ManyClasses(
        accuracy=estimate,
        f1=float(scores[2].mean()),
        log_loss=float(log_loss(y, p, labels=classes)),
        brier=float(((p - (y[:, None] == classes)) ** 2).sum(1).mean()),
        confusion=hidden(confusion_matrix(y, p.argmax(1), labels=classes)),
        classes=tuple(_one(y == c, p[:, c], *(score[c] for score in scores[:3])) for c in classes),
    )


def _one(mine: NDArray[np.bool_], p: Floats, precision: float, recall: float, f1: float) -> OneClass:
    people = int(mine.sum())
    if min(people, len(mine) - people) < FEW:
        return OneClass(people=people if people >= FEW else None)
    return OneClass(
        people=people,
        roc_auc=float(roc_auc_score(mine, p)),
        average_precision=float(average_precision_score(mine, p)),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
    )
