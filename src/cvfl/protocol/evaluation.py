"""What an evaluation finds, and the labels that it compares outputs with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.estimates import estimate
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.metrics import evaluate
from cvfl.protocol.learning.units import Units
from cvfl.protocol.plan import Plan
from cvfl.protocol.watch import Look


@dataclass(frozen=True)
class Labels:
    """Labels of the training, the test and the validation rows, and the units that they had."""

    train: Tensor
    test: Tensor
    validation: Tensor
    units: Units = field(default_factory=Units)

    def to(self, device: torch.device) -> Labels:
        """The same on this device."""
        return Labels(self.train.to(device), self.test.to(device), self.validation.to(device), self.units)


@dataclass(frozen=True)
class Evaluated:
    """Metrics after a round: on the held-out rows, and on the training rows as they were last seen in training.

    Without validation or test rows there are no metrics of them. Of two classes those of validation rows have the
    `threshold` that was chosen on them. Of labels that were randomised all of them are estimates. Where the server
    reads the embedding of each party, `embeddings` has what it saw of them since the last evaluation; `largest` are the
    norms that `limits` would have had to allow so far.
    """

    t0: int
    train: dict[str, float]
    validation: dict[str, float]
    test: dict[str, float]
    embeddings: dict[int, Look] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)


def evaluated(plan: Plan, labels: Labels, t0: int, outputs: Tensor, seen: Tensor) -> Evaluated:
    """Of the outputs for held-out rows, and those of training rows that were seen so far; of others they are NaN."""
    validation, test = torch.split(outputs, [plan.validation_rows, plan.test_rows])
    decided = plan.decision.fit(plan.loss, validation, labels.validation, plan.randomised)

    def metrics(outputs: Tensor, labelled: Tensor) -> dict[str, float]:
        if not len(labelled):
            return {}
        if plan.randomised is not None:
            return estimate(plan.randomised, plan.loss, outputs, labelled, decided, labels.units)
        return evaluate(plan.loss, outputs, labelled, decided, labels.units)

    known = ~torch.isnan(seen.reshape(plan.rows, -1)[:, 0])
    chosen = {"threshold": decided.threshold} if _chosen(plan, decided) else {}
    return Evaluated(
        t0,
        metrics(seen[known], labels.train[known]),
        metrics(validation, labels.validation) | chosen,
        metrics(test, labels.test),
    )


def _chosen(plan: Plan, decided: Decided) -> bool:
    return plan.loss is Loss.BINARY and decided.fitted
