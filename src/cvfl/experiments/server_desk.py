"""What the server brings to its role: the labels, from a data set by name or from their holder, and its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from cvfl.data import VerticalData
from cvfl.data.split import Part
from cvfl.errors import RemoteProtocolError
from cvfl.experiments.config import RunConfig
from cvfl.experiments.federation import recipe_of
from cvfl.experiments.terms import LOSSES, elsewhere, facts_of, labels_from_bytes, read_facts
from cvfl.protocol import Labels, Loss, Server
from cvfl.wire.control import How, Targets

_LARGEST = torch.finfo(torch.float64).max


class NamedDesk:
    """The server's side of a data set by name."""

    how: How = "as-is"

    def __init__(self, config: RunConfig, data: VerticalData) -> None:
        self.config, self.names = config, data.names
        self._labels = Labels(data.train_labels, data.test_labels, data.validation_labels)
        self._loss, self._outputs = data.loss, data.outputs

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """Any offers will do."""

    def accept(self, targets: Targets) -> None:
        """Labels come with the data."""
        raise RemoteProtocolError("targets for a data set that has its own")

    def passed_on(self, targets: Targets) -> Targets:
        """Nothing is."""
        return targets

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows."""
        return [len(y) for y in (self._labels.train, self._labels.validation, self._labels.test)]

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""

    def facts(self, offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the parties must know of each other."""
        return facts_of(self.names, offers, self.sizes() or [], self._loss, self._outputs)

    def server(self, facts: dict[str, Any]) -> Server:
        """The server with its labels."""
        recipe = recipe_of(self.config, read_facts(facts), [elsewhere] * len(self.names))
        device = recipe.plan.device
        labels = Labels(*(y.to(device) for y in (self._labels.train, self._labels.test, self._labels.validation)))
        return recipe.server(labels, recipe.codecs())


class TableDesk(NamedDesk):
    """The server's side of a federation of tables: it gets the labels from their holder."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self.config, self.names = config, tuple(names)
        self.how = "align" if config.data.alignment == "private" else "as-is"
        self._known: Targets | None = None

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """One party holds the label: without it everyone would wait for labels that never come."""
        holders = [name for name, offer in zip(self.names, offers, strict=True) if offer.get("label")]
        if len(holders) != 1:
            said = " and ".join(holders) or "none"
            raise RemoteProtocolError(f"exactly one party holds the label, not {said}; set its key label")

    def accept(self, targets: Targets) -> None:
        """Take the labels."""
        parts = np.frombuffer(targets.parts, dtype=np.int8)
        sizes = [int((parts == part).sum()) for part in Part]
        labels = labels_from_bytes(targets.labels)
        if targets.loss >= len(LOSSES) or len(labels) != sum(sizes):
            raise RemoteProtocolError(f"{self.names[targets.m - 1]}: {len(labels)} labels for {sum(sizes)} rows")
        self._loss, self._outputs = LOSSES[targets.loss], targets.outputs
        low, high = (0, targets.outputs - 1) if self._loss is Loss.MULTICLASS else (-_LARGEST, _LARGEST)
        if not bool(((labels >= low) & (labels <= high)).all()):
            raise RemoteProtocolError(f"{self.names[targets.m - 1]}: labels that the {self._loss} loss does not take")
        typed = self._loss.labels(labels, getattr(torch, self.config.precision))
        train, validation, test = torch.split(typed, sizes)
        self._labels = Labels(train, test, validation)
        self._known = replace(targets, parts=bytes(targets.parts), labels=bytes(targets.labels))

    def passed_on(self, targets: Targets) -> Targets:
        """Algorithm 1 shares the training labels with all parties; Algorithm 2 does not."""
        train = len(self._labels.train) if self.config.algorithm == 1 else 0
        return replace(targets, m=0, labels=bytes(targets.labels[: 8 * train]))

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows, once the labels are here."""
        return None if self._known is None else super().sizes()

    def state(self) -> dict[str, Any]:
        """The targets."""
        assert self._known is not None
        return asdict(self._known)

    def restore(self, state: dict[str, Any]) -> None:
        """The targets again."""
        self.accept(Targets(**state))
