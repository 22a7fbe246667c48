"""What a party with its own table brings to the handshake: rows to settle, columns to prepare, perhaps the label."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.config.schema import RunConfig
from cvfl.data.tables.organisation import NOT_HELD, PartyTable
from cvfl.data.tables.split import LEFT_OUT, Part, Shares
from cvfl.errors import DataError, RemoteProtocolError
from cvfl.federation.agreement.facts import Facts
from cvfl.federation.agreement.targets import Told, in_parts, read_present, read_targets, write_targets
from cvfl.federation.builder.machines import party_machine
from cvfl.federation.rows.load import in_order, numbered_in_order, parts_of
from cvfl.federation.rows.party import PartyRows
from cvfl.federation.told_labels.randomise import Held, held_of
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.wanted import Matches, Wanted
from cvfl.protocol import Holding, Labels, Loss, PartyMachine, Units
from cvfl.protocol.release import Secret
from cvfl.wire.targets import Targets


class TableRows(PartyRows):
    """A party with its own table: rows are settled with the others, and columns prepared here."""

    tables = True

    def __init__(self, config: RunConfig, table: PartyTable) -> None:
        super().__init__(config, table.party.name, list(config.party))
        self.how = "as-is" if config.data.alignment == "aligned" else "align"
        self._outer = config.data.alignment == "outer"
        if self._outer:
            self.wanted = Wanted.EACH if table.label else Wanted.LABELLED
        self.table = table
        self.key = b""
        self._places: NDArray[np.int64] = np.arange(0)
        """Of each row its place in the table, or NOT_HELD; before that is known, of those that are held."""
        self._held: list[NDArray[np.bool_]] = []
        """Which rows each party holds, at the label holder of an outer alignment."""
        self._fractions: NDArray[np.float64] = np.zeros(0)
        self._told: Told | None = None
        self._ids: dict[str, int] = {}
        self._prepared: Tensor | None = None

    def ids(self) -> Sequence[str]:
        """The ids of rows that can be used."""
        self._ids = self._ids or self.table.ids()
        return list(self._ids)

    @property
    def held(self) -> Held | None:
        """Those of the table, of the rows that are used."""
        if self._told is None or self.table.held is None:
            return None
        order, _ = self._order(self._told.parts)
        return held_of(self.table, order, self._told.sizes, self._told.units, getattr(torch, self.config.precision))

    @property
    def classes(self) -> tuple[str, ...]:
        """Those of the label, if it is in this table."""
        return self.table.label.classes if self.table.label else ()

    @property
    def units(self) -> Units | None:
        """Those of the label, once rows are settled."""
        return self._told.units if self._told and self.table.label else None

    @property
    def categories(self) -> tuple[int, ...]:
        """Those of the preparation."""
        return self.preparation.categories if self.preparation else ()

    def settle(self, found: Matches | None, key: bytes) -> Targets | None:
        """Put the shared rows in order; the label holder says what they are for."""
        self.key, self._told, self._prepared = key, None, None
        if found is None:
            self._places, self._fractions = numbered_in_order(self.table.table.rows, key)
        else:
            ids, self._fractions = in_order(found.common, key)
            self._places = np.array([self._ids[text] for text in ids], dtype=np.int64)
            self._held = [np.array([text in own for text in ids], dtype=np.bool_) for own in found.held]
        return self._targets() if self.table.label else None

    def _targets(self) -> Targets:
        label = self.table.label
        assert label is not None
        known = label.known[self._places]
        parts = np.full(len(self._places), LEFT_OUT, dtype=np.int8)
        parts[known] = parts_of(self.table, self._places[known], self._fractions[known], self.config.data)
        order, train = self._order(parts)
        outputs = len(label.classes) if label.loss is Loss.MULTICLASS else 1
        # Rounded to what the run computes with: every role does that with them, and they travel as they are here.
        labels, units = label.tensor(order, train, getattr(torch, self.config.precision))
        self._told = Told(parts, label.loss, outputs, labels.double(), units, tuple(self._held))
        self._fractions, self._held = np.zeros(0), []  # which have served
        return write_targets(self._told, self.m, with_labels=not self.config.privacy.relayed)

    def accept(self, targets: Targets) -> None:
        """What the label holder said: what each row is for, and the training labels if parties get them."""
        who, data = f"{self.name}: from the server", self.config.data
        labels = (Part.TRAIN,) if self.config.algorithm == 1 else ()
        told = read_targets(targets, who, data, labels, None if self._outer else len(self._places))
        held = self._held_here(targets, who)
        own = told.parts[held]
        used = own != LEFT_OUT
        drawn = Shares(data.test_share, data.validation_share).of(self._fractions[used])
        hashed = (
            data.split_by is None and data.split_groups is None and (told.loss is Loss.SQUARED or not data.stratify)
        )
        if hashed and not np.array_equal(drawn, own[used]):
            raise RemoteProtocolError(f"{who}: rows for other parts than their key says")
        places = np.full(len(held), NOT_HELD, dtype=np.int64)
        places[held] = self._places
        self._told, self._places, self._fractions = told, places, np.zeros(0)  # which have served

    def _held_here(self, targets: Targets, who: str) -> NDArray[np.bool_]:
        """Which of the rows this party holds: as many as it found, in their order."""
        told = read_present(targets, who, 1 if self._outer else 0)
        held = told[0] if told else np.ones(len(targets.parts), dtype=np.bool_)
        if int(held.sum()) != len(self._places):
            raise RemoteProtocolError(
                f"{who}: {held.sum():,} rows are held here, of which there are {len(self._places):,}"
            )
        return held

    def _order(self, parts: NDArray[np.int8]) -> tuple[NDArray[np.int64], int]:
        """Places of the used rows: training, then validation, then test; and how many are for training."""
        used = parts != LEFT_OUT
        order = np.argsort(parts[used], kind="stable")
        return self._places[used][order], int((parts == Part.TRAIN).sum())

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows."""
        return self._told.sizes if self._told else None

    def check(self, facts: Facts, width: int, compressor: str) -> None:
        """The loss and its outputs are those that the label holder told, too."""
        super().check(facts, width, compressor)
        if self._told is None or (facts.loss, facts.outputs) != (self._told.loss, self._told.outputs):
            raise RemoteProtocolError(f"{self.name}: from the server: facts that are not those of the labels")

    def state(self) -> dict[str, Any]:
        """The key of the rows, their places and what they are for, and a keyed hash of the columns."""
        assert self._told is not None
        told = asdict(self._told) | {"parts": torch.from_numpy(self._told.parts), "loss": str(self._told.loss)}
        told["present"] = [torch.from_numpy(held) for held in self._told.present]
        places = torch.from_numpy(self._places)
        return {"key": self.key, "places": places, "told": told, "columns": self._fingerprint()}

    def restore(self, state: dict[str, Any]) -> None:
        """The same again, if the table has the same columns for these rows."""
        told = state["told"]
        self.key, self._places = state["key"], state["places"].numpy()
        typed = {"parts": told["parts"].numpy(), "loss": Loss(told["loss"]), "units": Units(**told.get("units", {}))}
        present = tuple(held.numpy() for held in told.get("present", ()))
        self._told = Told(**told | typed | {"present": present})
        shorter = len(self._places) > 0 and self._places.max() >= self.table.table.rows
        if shorter or state["columns"] != self._fingerprint():
            raise DataError(
                f"{self.table.table.name}: this is not the table that the run began with; "
                "bring that one back, or begin anew with --restart"
            )

    def _fingerprint(self) -> str:
        """A hash of the prepared columns and of the labels, keyed: without the key it confirms no guess."""
        assert self._told is not None
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for values in (self._x(), self._told.labels):
            digest.update(values.contiguous().numpy().data)
        return digest.hexdigest()

    def _x(self) -> Tensor:
        """The columns of the rows in their order, prepared once."""
        if self._prepared is None:
            assert self._told is not None
            order, train = self._order(self._told.parts)
            self.preparation, self._prepared = self.table.prepared(order, train, getattr(torch, self.config.precision))
            if len(self._told.labels) >= train:
                held = torch.from_numpy(order[:train] != NOT_HELD)
                known, x = self._told.labels[:train][held], self._prepared[:train][held]
                self.table.compare(self.preparation, x, known, self._told.loss)
        return self._prepared

    def machine(
        self,
        facts: Facts,
        secrets: PairSecrets | None = None,
        noise_secret: Secret | None = None,
        folder: Path | None = None,
    ) -> PartyMachine:
        """The party with its columns prepared."""
        x, told = self._x(), self._told
        assert told is not None
        recipe = self._recipe_for(facts, x)
        rows = torch.split(x.to(recipe.plan.device), told.sizes)
        held_out = tuple(part for part in rows[1:] if len(part)) or (rows[2],)
        # Of labels that are not here the slices are empty.
        typed = recipe.plan.loss.labels(told.labels, recipe.plan.dtype).to(recipe.plan.device)
        known, validation, test = torch.tensor_split(typed, (len(rows[0]), len(rows[0]) + len(rows[1])))
        own = in_parts([self._places != NOT_HELD], told.parts) if self._outer else None
        present = (own.train[0], own.held_out[0]) if own else (None, None)
        holding = Holding(self.name, rows[0], held_out, known if recipe.plan.algorithm == 1 else None, None, *present)
        labels, codecs = Labels(known, test, validation, told.units), recipe.codecs(folder)
        own_labels = self._own_labels(recipe, facts.outputs)
        return party_machine(recipe, self.m, holding, labels, codecs, secrets, noise_secret, told.presence, own_labels)
