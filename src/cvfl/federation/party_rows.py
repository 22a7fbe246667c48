"""What a party brings to its role: the rows of a data set by name, or of its own table, and its model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.organisation import PartyTable
from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.split import Part
from cvfl.errors import DataError, LocalProtocolError, RemoteProtocolError
from cvfl.federation.build import held, party_maker, recipe_of
from cvfl.federation.modes import label_holder, masked, session_key
from cvfl.federation.rows import in_order, parts_of, row_fractions
from cvfl.federation.terms import LOSSES, elsewhere, labels_from_bytes, labels_to_bytes, read_facts
from cvfl.privacy.relay import sealed
from cvfl.protocol import Holding, Labels, Loss, PartyMachine
from cvfl.protocol.recipe import MakeModel
from cvfl.wire.control import Targets

if TYPE_CHECKING:  # the keys of a session need an extra
    from cvfl.privacy.keys import PairSecrets, SessionKey

LEFT_OUT = 3
"""The part of a row that has no label."""


class NamedRows:
    """A party of a data set by name: rows are aligned, and labels come with the data."""

    def __init__(self, config: RunConfig, name: str, data: VerticalData) -> None:
        if name not in data.names:
            raise LocalProtocolError(f"{name!r} is no party of this data set ({', '.join(data.names)})")
        label_holder(config, data.names)  # refuses a name that is none
        self.config, self.name, self.data = config, name, data

    def ids(self) -> Sequence[str]:
        """There are none."""
        raise LocalProtocolError(f"{self.name}: the rows of a data set by name have no ids")

    def settle(self, common: Collection[str] | None) -> Targets | None:
        """Nothing is to be settled."""
        return None

    def accept(self, targets: Targets) -> None:
        """Labels come with the data, so nobody should send them."""
        raise RemoteProtocolError(f"{self.name}: targets for a data set that has its own")

    def sizes(self) -> list[int]:
        """Training, validation and test rows."""
        return [len(y) for y in (self.data.train_labels, self.data.validation_labels, self.data.test_labels)]

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""

    def session_key(self) -> SessionKey | None:
        """A new key pair if the privacy mode needs one."""
        return session_key(self.config)

    def party(
        self, m: int, facts: dict[str, Any], secrets: PairSecrets | None = None, noise_secret: bytes | None = None
    ) -> PartyMachine:
        """Party m with its part of the data."""
        at = self.data.names.index(self.name)
        categories = self.data.categories[at] if self.data.categories else ()
        maker = party_maker(self.config, self.name, self.data.train[at], categories)
        rows = held(self.data, at)
        labels = Labels(self.data.train_labels, self.data.test_labels, self.data.validation_labels)
        return _party(self.config, m, facts, maker, rows, labels, secrets, noise_secret, self.data)


class TableRows:
    """A party with its own table: rows are settled with the others, and columns prepared here."""

    def __init__(self, config: RunConfig, table: PartyTable) -> None:
        self.config, self.table, self.name = config, table, table.party.name
        self.preparation: Preparation | None = None
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

    def session_key(self) -> SessionKey | None:
        """A new key pair if the privacy mode needs one."""
        return session_key(self.config)

    def party(
        self, m: int, facts: dict[str, Any], secrets: PairSecrets | None = None, noise_secret: bytes | None = None
    ) -> PartyMachine:
        """Party m with its columns prepared."""
        order, train = self._order()
        dtype = getattr(torch, self.config.precision)
        self.preparation, x = self.table.prepared(order, train, dtype)
        maker = party_maker(self.config, self.name, x, self.preparation.categories)
        rows = torch.split(x, self.sizes() or [])
        held_out = tuple(part for part in rows[1:] if len(part)) or (rows[2],)
        # Of labels that are not here the slices are empty.
        known, validation, test = torch.tensor_split(self._labels, (train, train + len(rows[1])))
        labels = Labels(known, test, validation)
        return _party(self.config, m, facts, maker, (rows[0], held_out), labels, secrets, noise_secret)


def _party(
    config: RunConfig,
    m: int,
    facts: dict[str, Any],
    maker: MakeModel,
    rows: tuple[Any, tuple[Any, ...]],
    labels: Labels,
    secrets: PairSecrets | None,
    noise_secret: bytes | None,
    data: VerticalData | None = None,
) -> PartyMachine:
    known = read_facts(facts)
    recipe = recipe_of(config, known, [maker if j == m else elsewhere for j in range(1, len(known.names) + 1)])
    plan = recipe.plan
    parts = vars(labels).items()
    typed = Labels(**{part: plan.loss.labels(y, plan.dtype).to(plan.device) for part, y in parts})
    shared = typed.train if config.algorithm == 1 else None
    holding = Holding(known.names[m - 1], *rows, shared, data.augment if data else None)
    party = recipe.party(m, holding, masked(recipe.codecs(), m, secrets), noise_secret)
    if not recipe.holder:
        return party
    server = recipe.server(typed, recipe.codecs()) if m == recipe.holder else None
    return sealed(recipe, party, server, secrets)
