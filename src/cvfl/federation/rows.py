"""What a role brings to the handshake: a party its rows, the server their labels.

              a data set by name                      tables of the parties
a party       NamedRows: rows are aligned already     TableRows: settled with the others, prepared here
the server    NamedLabels: they come with the data    TableLabels: their holder tells them, or sizes alone
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.config.modes import label_holder
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.organisation import PartyTable
from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.split import Part
from cvfl.errors import DataError, LocalProtocolError, RemoteProtocolError
from cvfl.federation.build import holding_of, labels_of, make_recipe, party_machine, party_maker, server_machine
from cvfl.federation.load import in_order, parts_of, row_fractions
from cvfl.federation.terms import LOSSES, elsewhere, facts_of, labels_from_bytes, labels_to_bytes, read_facts
from cvfl.protocol import Holding, Labels, Loss, PartyMachine, Recipe, ServerMachine
from cvfl.protocol.recipe import MakeModel
from cvfl.types import SERVER
from cvfl.wire.control import How, Targets

if TYPE_CHECKING:  # the keys of a session need an extra
    from cvfl.privacy.keys import PairSecrets, SessionKey

LEFT_OUT = 3
"""The part of a row that has no label."""
_LARGEST = torch.finfo(torch.float64).max


class PartyRows(ABC):
    """What a party brings: rows that may need alignment, perhaps the labels, and its model."""

    preparation: Preparation | None = None

    def __init__(self, config: RunConfig, name: str) -> None:
        self.config, self.name = config, name

    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The ids to align."""

    @abstractmethod
    def settle(self, common: Collection[str] | None) -> Targets | None:
        """Take the rows that all parties share, or all; the label holder answers with the targets."""

    @abstractmethod
    def accept(self, targets: Targets) -> None:
        """Hear from the label holder what each row is for."""

    @abstractmethod
    def sizes(self) -> list[int] | None:
        """Training, validation and test rows once they are settled."""

    def state(self) -> dict[str, Any]:
        """What a restart needs to have the same rows again."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Have the rows that `state` told."""
        return

    def session_key(self) -> SessionKey | None:
        """A new key pair if parties share secrets in this privacy mode."""
        if not self.config.privacy.keyed:
            return None
        from cvfl.privacy.keys import SessionKey  # noqa: PLC0415  an extra

        return SessionKey()

    @abstractmethod
    def machine(
        self, m: int, facts: dict[str, Any], secrets: PairSecrets | None = None, noise_secret: bytes | None = None
    ) -> PartyMachine:
        """The party for these facts, with the secrets of this session and the party's own of this run."""

    def _recipe(self, m: int, facts: dict[str, Any], maker: MakeModel) -> Recipe:
        known = read_facts(facts)
        return make_recipe(self.config, known, [maker if j == m else elsewhere for j in range(1, len(known.names) + 1)])


class NamedRows(PartyRows):
    """A party of a data set by name: rows are aligned, and labels come with the data."""

    def __init__(self, config: RunConfig, name: str, data: VerticalData) -> None:
        super().__init__(config, name)
        if name not in data.names:
            raise LocalProtocolError(f"{name!r} is no party of this data set ({', '.join(data.names)})")
        label_holder(config, data.names)  # refuses a name that is none
        self.data = data

    def ids(self) -> Sequence[str]:
        """There are none."""
        raise LocalProtocolError(f"{self.name}: the rows of a data set by name have no ids")

    def settle(self, common: Collection[str] | None) -> Targets | None:
        """The rows are in their order already."""
        return None

    def accept(self, targets: Targets) -> None:
        """Labels come with the data, so nobody should send them."""
        raise RemoteProtocolError(f"{self.name}: targets for a data set that has its own")

    def sizes(self) -> list[int]:
        """Training, validation and test rows."""
        return [len(y) for y in (self.data.train_labels, self.data.validation_labels, self.data.test_labels)]

    def machine(
        self, m: int, facts: dict[str, Any], secrets: PairSecrets | None = None, noise_secret: bytes | None = None
    ) -> PartyMachine:
        """Party m with its part of the data."""
        at = self.data.names.index(self.name)
        categories = self.data.categories[at] if self.data.categories else ()
        maker = party_maker(self.config, self.name, self.data.train[at], categories)
        recipe = self._recipe(m, facts, maker)
        labels, holding = labels_of(self.data, recipe.plan.device), holding_of(self.data, at, recipe.plan)
        return party_machine(recipe, m, holding, labels, recipe.codecs(), secrets, noise_secret)


class TableRows(PartyRows):
    """A party with its own table: rows are settled with the others, and columns prepared here."""

    def __init__(self, config: RunConfig, table: PartyTable) -> None:
        super().__init__(config, table.party.name)
        self.table = table
        self._places: NDArray[np.int64] = np.arange(0)
        self._parts: NDArray[np.int8] | None = None
        self._labels: Tensor = torch.empty(0, dtype=torch.float64)
        self._ids: dict[str, int] = {}

    def ids(self) -> Sequence[str]:
        """The ids of rows that can be used."""
        self._ids = self.table.ids()
        return list(self._ids)

    def settle(self, common: Collection[str] | None) -> Targets | None:
        """Put the shared rows in order; the label holder says what they are for."""
        self._parts = None
        if common is None:
            self._places = np.arange(self.table.table.rows)
            fractions = row_fractions(len(self._places), self.config.seed)
        else:
            ids, fractions = in_order(common, self.config.seed)
            self._places = np.array([self._ids[text] for text in ids], dtype=np.int64)
        return self._targets(fractions) if self.table.label else None

    def _targets(self, fractions: NDArray[np.float64]) -> Targets:
        label = self.table.label
        assert label is not None
        known = label.known[self._places]
        parts = np.full(len(self._places), LEFT_OUT, dtype=np.int8)
        parts[known] = parts_of(label, self._places[known], fractions[known], self.config.data)
        self._parts = parts
        order, train = self._order()
        self._labels = label.tensor(order, train, torch.float64).double()
        outputs = len(label.classes) if label.loss is Loss.MULTICLASS else 1
        loss, told = LOSSES.index(label.loss), self._labels[:0] if self.config.privacy.relayed else self._labels
        return Targets(0, loss, outputs, parts.tobytes(), labels_to_bytes(told))

    def accept(self, targets: Targets) -> None:
        """What the label holder said: what each row is for, and the training labels if parties get them."""
        parts = np.frombuffer(targets.parts, dtype=np.int8)
        if len(parts) != len(self._places) or not set(np.unique(parts)) <= {*Part, LEFT_OUT}:
            raise RemoteProtocolError(f"{self.name}: targets for {len(parts)} rows, there are {len(self._places)}")
        self._parts = parts.copy()
        self._labels = labels_from_bytes(targets.labels)

    def _order(self) -> tuple[NDArray[np.int64], int]:
        """Places of the used rows: training, then validation, then test; and how many are for training."""
        assert self._parts is not None
        used = self._parts != LEFT_OUT
        order = np.argsort(self._parts[used], kind="stable")
        return self._places[used][order], int((self._parts == Part.TRAIN).sum())

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows."""
        return None if self._parts is None else [int((self._parts == part).sum()) for part in Part]

    def state(self) -> dict[str, Any]:
        """Places, parts and labels."""
        assert self._parts is not None
        parts = torch.from_numpy(self._parts.copy())
        places = torch.from_numpy(self._places)
        return {"places": places, "parts": parts, "labels": self._labels, "table": self._fingerprint}

    def restore(self, state: dict[str, Any]) -> None:
        """The same again, if it is the same table."""
        if state["table"] != self._fingerprint:
            raise DataError(
                f"{self.table.table.name}: this is not the table that the run began with; "
                "bring that one back, or remove the state to begin again"
            )
        self._places, self._parts = state["places"].numpy(), state["parts"].numpy()
        self._labels = state["labels"]

    @cached_property
    def _fingerprint(self) -> str:
        """Whose rows the table has, in which order."""
        ids = self.table.ids() if self.config.data.alignment == "private" else ()
        return hashlib.sha256("\n".join((str(self.table.table.rows), *ids)).encode()).hexdigest()

    def machine(
        self, m: int, facts: dict[str, Any], secrets: PairSecrets | None = None, noise_secret: bytes | None = None
    ) -> PartyMachine:
        """Party m with its columns prepared."""
        order, train = self._order()
        self.preparation, x = self.table.prepared(order, train, getattr(torch, self.config.precision))
        recipe = self._recipe(m, facts, party_maker(self.config, self.name, x, self.preparation.categories))
        rows = torch.split(x.to(recipe.plan.device), self.sizes() or [])
        held_out = tuple(part for part in rows[1:] if len(part)) or (rows[2],)
        # Of labels that are not here the slices are empty.
        typed = recipe.plan.loss.labels(self._labels, recipe.plan.dtype).to(recipe.plan.device)
        known, validation, test = torch.tensor_split(typed, (train, train + len(rows[1])))
        holding = Holding(self.name, rows[0], held_out, known if recipe.plan.algorithm == 1 else None)
        labels = Labels(known, test, validation)
        return party_machine(recipe, m, holding, labels, recipe.codecs(), secrets, noise_secret)


class ServerRows(ABC):
    """What the server brings: how rows are settled, their labels once it has them, and its model."""

    how: How = "as-is"

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self.config, self.names, self._holder = config, tuple(names), label_holder(config, names)
        self._loss, self._outputs = Loss.BINARY, 1
        self._sizes: list[int] | None = None
        self._labels: Labels | None = None

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows, once they are known."""
        return self._sizes

    def models_at(self, m: int) -> set[str]:
        """Whose models party m has: its own, and that of the server if the labels stay with it."""
        return {self.names[m - 1], "server"} if m == self._holder else {self.names[m - 1]}

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """Refuse parties that cannot settle their rows together."""
        return

    @abstractmethod
    def accept(self, targets: Targets) -> None:
        """Take the labels from their holder."""

    @abstractmethod
    def passed_on(self, targets: Targets) -> Targets:
        """What the other parties get to hear of the targets."""

    def state(self) -> dict[str, Any]:
        """What a restart needs to have the same labels again."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Have the labels that `state` told."""
        return

    def facts(self, offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the parties must know of each other."""
        return facts_of(self.names, offers, self.sizes() or [], self._loss, self._outputs)

    def machine(self, facts: dict[str, Any]) -> ServerMachine:
        """The server with its labels; a relay when they stay with a party."""
        recipe = make_recipe(self.config, read_facts(facts), [elsewhere] * len(self.names))
        if self._labels is None:
            return server_machine(recipe, None)
        parts = {part: y.to(recipe.plan.device) for part, y in vars(self._labels).items()}
        return server_machine(recipe, Labels(**parts))


class NamedLabels(ServerRows):
    """The server of a data set by name, which has the labels."""

    def __init__(self, config: RunConfig, data: VerticalData) -> None:
        super().__init__(config, data.names)
        self._sizes = [len(y) for y in (data.train_labels, data.validation_labels, data.test_labels)]
        self._labels, self._loss, self._outputs = labels_of(data), data.loss, data.outputs

    def accept(self, targets: Targets) -> None:
        """Labels come with the data."""
        raise RemoteProtocolError("targets for a data set that has its own")

    def passed_on(self, targets: Targets) -> Targets:
        """Nobody sends any."""
        raise LocalProtocolError("targets for a data set that has its own")


class TableLabels(ServerRows):
    """The server of a federation of tables: their holder tells the labels, or sizes alone when they stay with it."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        super().__init__(config, names)
        self.how = "align" if config.data.alignment == "private" else "as-is"
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
            self._labels = self._typed(labels, sizes, name)
        self._known = replace(targets, parts=bytes(targets.parts), labels=bytes(targets.labels))

    def _typed(self, labels: Tensor, sizes: list[int], name: str) -> Labels:
        low, high = (0, self._outputs - 1) if self._loss is Loss.MULTICLASS else (-_LARGEST, _LARGEST)
        if not bool(((labels >= low) & (labels <= high)).all()):
            raise RemoteProtocolError(f"{name}: labels that the {self._loss} loss does not take")
        typed = self._loss.labels(labels, getattr(torch, self.config.precision))
        train, validation, test = torch.split(typed, sizes)
        return Labels(train, test, validation)

    def passed_on(self, targets: Targets) -> Targets:
        """Algorithm 1 shares the training labels with all parties; Algorithm 2 does not."""
        train = self._sizes[0] if self._sizes and self.config.algorithm == 1 else 0
        return replace(targets, m=0, labels=bytes(targets.labels[: 8 * train]))

    def state(self) -> dict[str, Any]:
        """The targets."""
        assert self._known is not None
        return asdict(self._known)

    def restore(self, state: dict[str, Any]) -> None:
        """The targets again."""
        self.accept(Targets(**state))
