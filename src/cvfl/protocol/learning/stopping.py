"""When a run has learned what it can: its validation metric does not improve any more, and the best round is kept.

The rule is a function of the metrics alone, so every role that sees them comes to the same end. A party does not see
them: it keeps its model as it was at the last evaluations, of which one is the best, until the server says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from cvfl.protocol.learning.metrics import BETTER_LOW

State = dict[str, Tensor]


@dataclass
class Stopping:
    """The best evaluation so far, and how many came since; at `patience` of them the run is over."""

    patience: int
    metric: str
    best: int = -1
    value: float = -math.inf
    since: int = 0

    def see(self, t0: int, validation: Mapping[str, float]) -> None:
        """An evaluation after round t0; a metric that is not defined is no improvement."""
        value = validation.get(self.metric, math.nan) * (-1 if self.metric in BETTER_LOW else 1)
        if self.best < 0 or value > self.value:
            self.best, self.since = t0, 0
            self.value = -math.inf if math.isnan(value) else value
        else:
            self.since += 1

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.since >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.best, self.value, self.since = state["best"], state["value"], state["since"]


class Snapshots:
    """A model as it was at the last evaluations: as many as a best one can be back."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        self._model, self._most = model, patience + 1
        self.kept: dict[int, State] = {}

    def take(self, t0: int) -> None:
        """Keep the model as it is after round t0."""
        self.kept[t0] = {key: value.detach().clone() for key, value in self._model.state_dict().items()}
        self.kept = dict(sorted(self.kept.items())[-self._most :])

    def back_to(self, t0: int) -> None:
        """Bring the model back to what it was after round t0; the others are not needed any more."""
        self._model.load_state_dict(self.kept[t0])
        self.kept = {}
