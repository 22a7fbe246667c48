"""Scores of new rows with the models of all roles in this process: an evaluation without labels.

    table of party m ──a window of rows at a time──▶ numbers ──model──▶ h_m of all shared rows
    all h_m ──a batch at a time──▶ outputs ──▶ scores, in the order of the first party's table

In memory are the ids and the embeddings of the shared rows, and of the columns one window. Nothing is compressed, since
nothing travels: without compression a row has the bits that an evaluation computes.

A model that was prepared for absence scores what there is: rows of any party whose table is given. What stands for the
others was learned, and a column says who was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.table import Table
from cvfl.errors import DataError, suggest
from cvfl.protocol.absence import stood_in
from cvfl.runs.bundle import PartyBundle, needed, party_module, read_preparation, server_module
from cvfl.serving.bundles import Bundles
from cvfl.serving.embed import at_rest, embedded, finite
from cvfl.serving.rows import DOES, LEARN, NOT_HELD, PARTIES, check_columns, rows_of_any, shared_rows, source_of
from cvfl.serving.scores import by_whom, scores_of
from cvfl.types import OnStep

BATCH = 1 << 16
"""Rows that are scored, and written, together."""


@dataclass(frozen=True)
class _Party:
    bundle: PartyBundle
    model: nn.Module
    preparation: Preparation | None


class Predictor:
    """The models of a run, all roles in this process; `models` are a user's own modules by role, if it has such."""

    def __init__(self, bundles: Bundles, models: Mapping[str, nn.Module] | None = None) -> None:
        self.server, parties = bundles.everyone(partly=True)
        folders, own = bundles.folders, models or {}
        self.parties = {
            bundle.role: _Party(
                bundle,
                party_module(bundle, folders[bundle.role], own.get(bundle.role)),
                read_preparation(bundle, folders[bundle.role]) if bundle.table else None,
            )
            for bundle in parties
        }
        self._model = server_module(self.server, folders["server"], own.get("server"))
        self.needed = needed(self.server, self._model)
        """The parties without which no row has a score."""
        self.notes: list[str] = []
        """What there is to say of the last prediction."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parties in their order."""
        return self.server.names

    def of_tables(
        self, tables: Mapping[str, Path | tuple[str, str]], on_step: OnStep = lambda *_: None
    ) -> Iterator[pa.RecordBatch]:
        """Scores of the rows that all parties hold, a batch at a time; a table is a file, or a url and a query.

        Of a model that was prepared for absence: of the rows that any of these parties holds, and those that it needs.
        """
        self._check_names(tables)
        self.notes = []
        with ExitStack() as stack:
            opened = {name: self._opened(name, tables[name], stack, on_step) for name in self.names if name in tables}
            bundles = {name: one.bundle for name, one in self.parties.items()}
            if self.server.stand_ins:
                shared = rows_of_any(opened, bundles, on_step, self.needed)
            else:
                shared = shared_rows(opened, bundles, on_step)
            self.notes += shared.notes
            held = {name: torch.from_numpy(shared.places[name] != NOT_HELD) for name in opened}
            phi = {name: self._embedded(name, opened[name], shared.places[name], on_step) for name in opened}
            for start in range(0, len(shared), BATCH):
                on_step("scoring", start, len(shared))
                some = slice(start, start + BATCH)
                scores = self._scores({name: (h[some], held[name][some]) for name, h in phi.items()})
                yield pa.RecordBatch.from_pydict(shared.ids(start, start + BATCH) | scores)

    def _embedded(self, name: str, table: Table, places: NDArray[np.int64], on_step: OnStep) -> Tensor:
        """h_m of these rows; of those that the party does not hold it is nothing."""
        one, there = self.parties[name], places != NOT_HELD
        h = torch.zeros(len(places), one.bundle.width, dtype=one.bundle.dtype)
        h[torch.from_numpy(there)] = embedded(one.bundle, one.model, one.preparation, table, places[there], on_step)
        return h

    def of_tensors(self, rows: Mapping[str, Tensor]) -> pa.Table:
        """Scores of rows that are numbers already, row i the same person at every party."""
        self._check_names(rows)
        phi = {}
        for name in (name for name in self.names if name in rows):
            bundle = self.parties[name].bundle
            if tuple(rows[name].shape[1:]) != bundle.shape:
                raise DataError(f"{name}: rows of shape {tuple(rows[name].shape[1:])}, the model takes {bundle.shape}")
            phi[name] = self.embeddings(name, rows[name].to(bundle.dtype))
        if len(sizes := {len(h) for h in phi.values()}) > 1:
            counts = ", ".join(f"{name} {len(h):,}" for name, h in phi.items())
            raise DataError(f"row i is the same person at every party, but their numbers of rows differ ({counts})")
        everywhere = torch.ones(*sizes, dtype=torch.bool)
        scores = self._scores({name: (h, everywhere) for name, h in phi.items()})
        return pa.table({"row": pa.array(range(1, len(everywhere) + 1))} | scores)

    def embeddings(self, name: str, x: Tensor) -> Tensor:
        """h_m of rows as the party's model takes them."""
        return at_rest(self.parties[name].model, x)

    def outputs(self, phi: Sequence[Tensor], absent: Sequence[Tensor] | None = None) -> Tensor:
        """What the server model makes of the embeddings of all parties, some of which may be absent."""
        with torch.no_grad():
            return finite(at_rest(self._model, stood_in(self._model, list(phi), absent)))

    def _scores(self, found: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, pa.Array]:
        """Columns of scores: by each party that is there its embeddings, and which of them it has."""
        if not self.server.stand_ins:
            return scores_of(self.server, self.outputs([found[name][0] for name in self.names]))
        rows = len(next(iter(found.values()))[0])
        blank = [torch.zeros(rows, width, dtype=self.server.dtype) for width in self.server.widths]
        nowhere = torch.zeros(rows, dtype=torch.bool)
        both = [found.get(name, (h, nowhere)) for name, h in zip(self.names, blank, strict=True)]
        outputs = self.outputs([h for h, _ in both], [~held for _, held in both])
        return scores_of(self.server, outputs) | {PARTIES: by_whom(self.names, [held for _, held in both])}

    def _check_names(self, given: Mapping[str, object]) -> None:
        if strange := [name for name in given if name not in self.names]:
            raise DataError(f"there is no party {strange[0]!r} in this run{suggest(strange[0], self.names)}")
        if not given:
            raise DataError("no table is given; name one of a party, or of several")
        if lost := [name for name in given if name not in self.parties]:
            raise DataError(f"the bundle of {lost[0]} is missing, but its rows are given; bring its model, too")
        if missing := [name for name in self.needed if name not in given]:
            whose, (tables, are) = " and ".join(missing), ("table", "is") if len(missing) == 1 else ("tables", "are")
            why = f"{whose}, whom every row of its training had; {LEARN}"
            needs = why if self.server.stand_ins else f"every party: {DOES}"
            raise DataError(f"the {tables} of {whose} {are} missing; this model needs {needs}")

    def _opened(self, name: str, place: Path | tuple[str, str], stack: ExitStack, on_step: OnStep) -> Table:
        bundle = self.parties[name].bundle
        if bundle.table is None:
            raise DataError(f"{name}: this run was not trained on tables; give its rows as tensors, with run.predict")
        source: Source = source_of(bundle, place)
        table = stack.enter_context(open_table(source, lambda what, rows: on_step(f"{what}: reading", rows, 0)))
        self.notes += check_columns(table, bundle)
        return table
