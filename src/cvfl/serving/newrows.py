"""What roles bring to a prediction when they are apart: new rows at each party, and no labels at the server.

Rows are those that all parties hold. With models that do without some parties they are those of the party with the
label, each with the parties that hold it, and the parties that are `without` take no part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.config.modes import does_without, scoring_party
from cvfl.config.schema import RunConfig
from cvfl.data.tables.ids import BETWEEN
from cvfl.data.tables.table import Table
from cvfl.errors import DataError, RemoteProtocolError
from cvfl.federation.agreement.facts import Facts, facts_of, read_facts
from cvfl.federation.agreement.labels import TableLabels, labelled
from cvfl.federation.agreement.targets import Held, read_present
from cvfl.federation.rows.load import in_order, numbered_in_order
from cvfl.federation.rows.party import PartyRows
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.wanted import Matches, Wanted
from cvfl.protocol import PartyMachine, ServerMachine
from cvfl.protocol.release import Secret
from cvfl.runs.bundle import ServerBundle, party_module, read_preparation, server_module
from cvfl.serving.bundles import Bundles
from cvfl.serving.course import Course
from cvfl.serving.embed import embedded
from cvfl.serving.machines import (
    HoldingParty,
    LabelParty,
    PassingServer,
    PredictingParty,
    Scorer,
    ScoringServer,
    SealingParty,
)
from cvfl.serving.rows import NOT_HELD, PARTIES, check_columns, id_names, left_out, own_ids, without_score
from cvfl.serving.scores import by_whom, columns_for, named_scores
from cvfl.types import OnStep
from cvfl.wire import pack
from cvfl.wire.control import Offer
from cvfl.wire.targets import Targets


class NewRows(PartyRows):
    """A party's new rows: settled with the others, prepared as in training, and never told a label."""

    tables = True
    predicts = True

    def __init__(
        self,
        config: RunConfig,
        bundles: Bundles,
        name: str,
        table: Table,
        on_step: OnStep,
        without: Sequence[str] = (),
    ) -> None:
        self.bundle, self.server = bundles.parties[name], bundles.server
        super().__init__(config, name, [one for one in self.bundle.names if one not in without])
        assert self.bundle.table is not None
        self._by_ids = self.bundle.table.alignment == "private"
        self.how = "align" if self._by_ids and len(self.names) > 1 else "as-is"
        self.partly = self.how == "align" and does_without(config)
        if self.partly:
            self.wanted = Wanted.EACH if self.label else Wanted.LABELLED
        self.table, self.notes, self._on_step = table, check_columns(table, self.bundle), on_step
        self.scores: dict[int, Tensor] = {}
        """By batch, at the party that had the label."""
        self._folder, self._ids = bundles.folders[name], dict[str, int]()
        self._of_server = bundles.folders.get("server", self._folder)
        self._places: NDArray[np.int64] | None = None
        """Of each row its place in the table, or NOT_HELD; before that is known, of those that are held."""
        self._held: dict[int, Tensor] = {}
        """By party which rows it holds, as far as it is known here."""
        self._rows: int | None = None
        self._texts: list[str] = []
        self._h: Tensor | None = None
        self._facts: Facts | None = None

    @property
    def label(self) -> bool:
        """Whether this party had the label."""
        return self.bundle.table is not None and self.bundle.table.label is not None

    @property
    def categories(self) -> tuple[int, ...]:
        """Those of the training."""
        return self.bundle.categories

    def ids(self) -> Sequence[str]:
        """The ids of all rows."""
        if not self._ids:
            self._ids, more = own_ids(self.table, self.bundle, self._on_step)
            self.notes += more
        return list(self._ids)

    def settle(self, found: Matches | None, key: bytes) -> Targets | None:
        """Put the shared rows in the order of the key."""
        self.scores, self._h, self._held, self._rows = {}, None, {}, None
        if found is None and self._by_ids:  # the only party
            found = Matches(frozenset(self.ids()))
        if found is None:
            self._places, _ = numbered_in_order(self.table.rows, key)
            self._rows = len(self._places)
            return None
        common = found.common
        if not common and not self.partly:
            raise DataError("the tables share no id: nobody is held by every party, so there is nothing to predict")
        self._texts, _ = in_order(common, key)
        self._places = np.array([self._ids[text] for text in self._texts], dtype=np.int64)
        if self.partly:
            return self._told(found) if self.label else None
        self._rows = len(self._places)
        self.notes += left_out({self.name: len(self._ids)}, len(common))
        return None

    def _told(self, found: Matches) -> Targets:
        """Which of the rows, which are all of this party, each other one holds."""
        assert self._places is not None
        self._rows = len(self._places)
        held = {m: np.array([text in own for text in self._texts]) for m, own in enumerate(found.held, start=1)}
        self._held = {m: torch.from_numpy(bits) for m, bits in held.items()}
        present = tuple(pack(bits.astype(np.uint8), 1) for m, bits in held.items() if m != self.m)
        return Targets(0, 0, 1, bytes(self._rows), b"", (), present)

    def accept(self, targets: Targets) -> None:
        """Hear which of the rows are held here."""
        who = f"{self.name}: from the server"
        (held,) = read_rows(targets, who, 1)
        assert self._places is not None
        if int(held.sum()) != len(self._places):
            said = f"{held.sum():,} rows are held here, of which there are {len(self._places):,}"
            raise RemoteProtocolError(f"{who}: {said}")
        places = np.full(len(held), NOT_HELD, dtype=np.int64)
        places[held] = self._places
        self._places, self._rows, self._held = places, len(held), {self.m: torch.from_numpy(held)}
        if lost := len(self._ids) - int(held.sum()):
            said = f"{lost:,} of {len(self._ids):,} at {self.name}"
            self.notes += [f"left out, since the party with the label does not hold them: {said}"]

    def sizes(self) -> list[int] | None:
        """They are all held out."""
        return None if self._rows is None else [0, 0, self._rows]

    def machine(
        self,
        facts: Facts,
        secrets: PairSecrets | None = None,
        noise_secret: Secret | None = None,
        folder: Path | None = None,
    ) -> PartyMachine:
        """The party for these facts: it sends its rows, and the one that had the label hears or computes scores."""
        h, holder = self._embedded(), scoring_party(self.config, self.names)
        course, self._facts = _course(self.config, facts, self._held), facts
        if holder and self.m == holder:
            if self.server is None:
                raise DataError(f"{self._folder}: the server model is missing, which the label holder scores with")
            _check_widths(facts, self.server)
            scorer = Scorer(course, self.server, server_module(self.server, self._of_server))
            return HoldingParty(scorer, self.m, h, secrets, self.scores)
        if holder:
            return SealingParty(course, self.m, h, secrets, holder)
        if self.label:
            columns = columns_for(facts.loss, facts.outputs) + self.bundle.absence
            return LabelParty(course, self.m, h, secrets, columns, self.scores)
        return PredictingParty(course, self.m, h, secrets)

    def _embedded(self) -> Tensor:
        """Of all shared rows in their order, once."""
        if self._h is None:
            assert self._places is not None
            model, preparation = party_module(self.bundle, self._folder), read_preparation(self.bundle, self._folder)
            there, bundle = self._places != NOT_HELD, self.bundle
            h = torch.zeros(len(there), bundle.width, dtype=bundle.dtype)
            own = embedded(bundle, model, preparation, self.table, self._places[there], self._on_step)
            h[torch.from_numpy(there)] = own
            self._h = h
        return self._h

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The scores of the rows in the order of the table, with their ids."""
        assert self._places is not None
        assert self._facts is not None
        assert self.bundle.table is not None
        order = self._places.argsort(kind="stable")
        numbers = torch.cat([self.scores[t0] for t0 in sorted(self.scores)])[torch.from_numpy(order)]
        if self.bundle.absence:
            scored = numbers[:, -1] > 0
            self.notes += without_score(len(order), int(scored.sum()), ())
            numbers, order = numbers[scored, :-1], order[scored.numpy()]
        loss, classes = self._facts.loss, self.bundle.table.classes
        if self.server is not None:
            loss, classes = self.server.loss, self.server.classes or classes
        names, ids = (
            id_names(self.bundle.table),
            [self._texts[at].split(BETWEEN) for at in order] if self._texts else [],
        )
        columns = {name: pa.array([text[at] for text in ids]) for at, name in enumerate(names)} if ids else {}
        rows = columns or {"row": pa.array(self._places[order] + 1)}
        whose = {PARTIES: self._by_whom(torch.from_numpy(order))} if self.bundle.absence else {}
        yield pa.RecordBatch.from_pydict(rows | named_scores(loss, classes, numbers) | whose)

    def _by_whom(self, order: Tensor) -> pa.Array:
        """For each row the parties that hold it."""
        here, nowhere = torch.ones(len(order), dtype=torch.bool), torch.zeros(len(order), dtype=torch.bool)
        held = {name: self._held.get(m, here) for m, name in enumerate(self.names, start=1)}
        return by_whom(self.bundle.names, [held.get(name, nowhere)[order] for name in self.bundle.names])


class NewLabels(TableLabels):
    """The server of a prediction: it has no labels, and a model unless it only passes on."""

    predicts = True

    def __init__(self, config: RunConfig, names: Sequence[str], bundles: Bundles | None) -> None:
        super().__init__(config, names)
        if len(names) == 1:
            self.how = "as-is"
        self.partly = self.how == "align" and does_without(config)
        self._held: dict[int, Tensor] = {}
        self._holder = scoring_party(config, names)
        self.bundle = bundles.server if bundles else None
        self._folder = bundles.folders["server"] if bundles and bundles.server else None

    def accept(self, targets: Targets) -> None:
        """Hear which rows each party holds, if it can be read here."""
        who = self.names[targets.m - 1]
        others = [m for m in range(1, len(self.names) + 1) if m != targets.m]
        held = read_rows(targets, who, len(others), sealed=bool(self._holder))
        self._sizes = [0, 0, len(targets.parts)]
        self._held = {m: torch.from_numpy(bits) for m, bits in zip(others, held, strict=False)}

    def settled(self, sizes: list[int]) -> list[int]:
        """What the first party says: the others must say the same."""
        if sizes[:2] != [0, 0]:
            raise RemoteProtocolError(f"{self.names[0]}: training rows in a prediction")
        if not self.partly:
            self._sizes = sizes
        return self._sizes or []

    def facts(self, offers: Mapping[int, Offer]) -> dict[str, Any]:
        """What the parties must know of each other."""
        self._label = labelled(offers)
        if self.bundle is None:
            return super().facts(offers)
        facts = facts_of(self.names, offers, self.sizes() or [], self.bundle.loss, self.bundle.outputs)
        _check_widths(read_facts(facts), self.bundle)
        return facts

    def machine(self, facts: dict[str, Any], ids: Sequence[int] = (), folder: Path | None = None) -> ServerMachine:
        """The server with its model, or one that passes on."""
        course = _course(self.config, read_facts(facts), self._held)
        if self.bundle is None or self._folder is None:
            return PassingServer(course, self._holder)
        return ScoringServer(Scorer(course, self.bundle, server_module(self.bundle, self._folder)), self._label)

    def state(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}


def read_rows(targets: Targets, who: str, parties: int, sealed: bool = False) -> tuple[Held, ...]:
    """Which of the new rows each of so many parties holds; nothing else is told of them."""
    if any(targets.parts) or targets.labels or targets.units:
        raise RemoteProtocolError(f"{who}: targets for rows that are to be predicted")
    return read_present(targets, who, parties, sealed)


def _course(config: RunConfig, facts: Facts, held: Mapping[int, Tensor]) -> Course:
    secure = config.privacy.secure
    return Course(facts.names, facts.widths, facts.compressors, facts.rows[2], config.seed, secure, held)


def _check_widths(facts: Facts, bundle: ServerBundle) -> None:
    known = dict(zip(bundle.names, bundle.widths, strict=True))
    for name, said in zip(facts.names, facts.widths, strict=True):
        if said != known[name]:
            raise RemoteProtocolError(f"{name}: embeddings of {said} numbers, the server model takes {known[name]}")
