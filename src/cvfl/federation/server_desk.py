"""What the server brings to its role: the labels, from a data set by name or from their holder, and its machine.

When the labels stay with a party, it brings sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.split import Part
from cvfl.errors import RemoteProtocolError
from cvfl.federation.build import recipe_of
from cvfl.federation.modes import label_holder
from cvfl.federation.terms import LOSSES, elsewhere, facts_of, labels_from_bytes, read_facts
from cvfl.privacy.relay import Relay
from cvfl.protocol import Labels, Loss, ServerMachine
from cvfl.types import SERVER
from cvfl.wire.control import How, Targets

_LARGEST = torch.finfo(torch.float64).max


class NamedDesk:
    """The server's side of a data set by name."""

    how: How = "as-is"

    def __init__(self, config: RunConfig, data: VerticalData) -> None:
        self.config, self.names = config, data.names
        self._holder = label_holder(config, data.names)
        self._sizes = [len(y) for y in (data.train_labels, data.validation_labels, data.test_labels)]
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
        return self._sizes

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""

    def facts(self, offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the parties must know of each other."""
        return facts_of(self.names, offers, self.sizes() or [], self._loss, self._outputs)

    def server(self, facts: dict[str, Any]) -> ServerMachine:
        """The server with its labels; a relay when they stay with a party."""
        recipe = recipe_of(self.config, read_facts(facts), [elsewhere] * len(self.names))
        if recipe.holder:
            return Relay(recipe.plan, recipe.holder)
        device = recipe.plan.device
        labels = Labels(*(y.to(device) for y in (self._labels.train, self._labels.test, self._labels.validation)))
        return recipe.server(labels, recipe.codecs())


class TableDesk(NamedDesk):
    """The server's side of a federation of tables: it gets the labels from their holder."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self.config, self.names = config, tuple(names)
        self.how = "align" if config.data.alignment == "private" else "as-is"
        self._holder = label_holder(config, names)
        self._known: Targets | None = None

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """One party holds the label: without it everyone would wait for labels that never come."""
        holders = [name for name, offer in zip(self.names, offers, strict=True) if offer.get("label")]
        if len(holders) != 1:
            said = " and ".join(holders) or "none"
            raise RemoteProtocolError(f"exactly one party holds the label, not {said}; set its key label")
        if self._holder and holders != [self.config.privacy.labels]:
            named = self.config.privacy.labels
            raise RemoteProtocolError(f"privacy.labels names {named}, but the table of {holders[0]} has the label")

    def accept(self, targets: Targets) -> None:
        """Take the labels, or only what rows are for when labels stay with their holder."""
        parts = np.frombuffer(targets.parts, dtype=np.int8)
        sizes = [int((parts == part).sum()) for part in Part]
        labels, name = labels_from_bytes(targets.labels), self.names[targets.m - 1]
        expected = 0 if self._holder else sum(sizes)
        if targets.loss >= len(LOSSES) or len(labels) != expected or self._holder not in (SERVER, targets.m):
            raise RemoteProtocolError(f"{name}: {len(labels)} labels for {sum(sizes)} rows, {expected} were expected")
        self._loss, self._outputs, self._sizes = LOSSES[targets.loss], targets.outputs, sizes
        if not self._holder:
            self._labels = self._typed(labels, name)
        self._known = replace(targets, parts=bytes(targets.parts), labels=bytes(targets.labels))

    def _typed(self, labels: Tensor, name: str) -> Labels:
        low, high = (0, self._outputs - 1) if self._loss is Loss.MULTICLASS else (-_LARGEST, _LARGEST)
        if not bool(((labels >= low) & (labels <= high)).all()):
            raise RemoteProtocolError(f"{name}: labels that the {self._loss} loss does not take")
        typed = self._loss.labels(labels, getattr(torch, self.config.precision))
        train, validation, test = torch.split(typed, self._sizes)
        return Labels(train, test, validation)

    def passed_on(self, targets: Targets) -> Targets:
        """Algorithm 1 shares the training labels with all parties; Algorithm 2 does not."""
        train = self._sizes[0] if self.config.algorithm == 1 else 0
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
