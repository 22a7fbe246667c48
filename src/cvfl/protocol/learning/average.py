"""The mean of a model's weights over its rounds: smoother than any one of them, and no byte more."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_FIRST = 10
"""After t rounds the mean keeps at most (1 + t) / (10 + t) of itself, so that the first weights do not linger."""


class Average:
    """What is evaluated and kept of a model that is trained: the model itself, or a mean in which newer weights lead.

    After every round the mean keeps `decay` of itself and takes the rest from the model. Statistics of normalisation
    layers, which are means already, are taken as they are.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._trained, self._decay, self._rounds = model, decay, 0
        self.model = model if decay is None else copy.deepcopy(model).requires_grad_(False)

    def update(self) -> None:
        """A round is over."""
        if self._decay is None:
            return
        keep = min(self._decay, (1 + self._rounds) / (_FIRST + self._rounds))
        self._rounds += 1
        with torch.no_grad():
            for mean, new in zip(self.model.parameters(), self._trained.parameters(), strict=True):
                mean.lerp_(new, 1 - keep)
            for statistic, now in zip(self.model.buffers(), self._trained.buffers(), strict=True):
                statistic.copy_(now)

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs besides the model."""
        return {} if self._decay is None else {"model": self.model.state_dict(), "rounds": self._rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if self._decay is not None:
            self.model.load_state_dict(state["model"])
            self._rounds = state["rounds"]
