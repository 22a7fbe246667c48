"""Scores of new rows with the models of all roles in this process: an evaluation without labels.

    table of party m ──a window of rows at a time──▶ numbers ──model──▶ h_m of all shared rows
    all h_m ──a batch at a time──▶ outputs ──▶ scores, in the order of the first party's table

In memory are the ids and the embeddings of the shared rows, and of the columns one window. Nothing is compressed, since
nothing travels: without compression a row has the bits that an evaluation computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from torch import Tensor, nn

from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.table import Table
from cvfl.errors import DataError, suggest
from cvfl.runs.bundle import PartyBundle, party_module, read_preparation, server_module
from cvfl.serving.bundles import Bundles
from cvfl.serving.embed import at_rest, embedded, finite
from cvfl.serving.rows import check_columns, shared_rows, source_of
from cvfl.serving.scores import scores_of
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
        self.server, parties = bundles.everyone()
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
        self.notes: list[str] = []
        """What there is to say of the last prediction."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parties in their order."""
        return self.server.names

    def of_tables(
        self, tables: Mapping[str, Path | tuple[str, str]], on_step: OnStep = lambda *_: None
    ) -> Iterator[pa.RecordBatch]:
        """Scores of the rows that all parties hold, a batch at a time; a table is a file, or a url and a query."""
        self._check_names(tables)
        self.notes = []
        with ExitStack() as stack:
            opened = {name: self._opened(name, tables[name], stack, on_step) for name in self.names}
            shared = shared_rows(opened, {name: one.bundle for name, one in self.parties.items()}, on_step)
            self.notes += shared.notes
            phi = [
                embedded(one.bundle, one.model, one.preparation, opened[name], shared.places[name], on_step)
                for name, one in self.parties.items()
            ]
            for start in range(0, len(shared), BATCH):
                on_step("scoring", start, len(shared))
                outputs = self.outputs([h[start : start + BATCH] for h in phi])
                columns = shared.ids(start, start + BATCH) | scores_of(self.server, outputs)
                yield pa.RecordBatch.from_pydict(columns)

    def of_tensors(self, rows: Mapping[str, Tensor]) -> pa.Table:
        """Scores of rows that are numbers already, row i the same person at every party."""
        self._check_names(rows)
        phi = []
        for name in self.names:
            bundle = self.parties[name].bundle
            if tuple(rows[name].shape[1:]) != bundle.shape:
                raise DataError(f"{name}: rows of shape {tuple(rows[name].shape[1:])}, the model takes {bundle.shape}")
            phi.append(self.embeddings(name, rows[name].to(bundle.dtype)))
        if len({len(h) for h in phi}) > 1:
            counts = ", ".join(f"{name} {len(h):,}" for name, h in zip(self.names, phi, strict=True))
            raise DataError(f"row i is the same person at every party, but their numbers of rows differ ({counts})")
        return pa.table({"row": pa.array(range(1, len(phi[0]) + 1))} | scores_of(self.server, self.outputs(phi)))

    def embeddings(self, name: str, x: Tensor) -> Tensor:
        """h_m of rows as the party's model takes them."""
        return at_rest(self.parties[name].model, x)

    def outputs(self, phi: Sequence[Tensor]) -> Tensor:
        """What the server model makes of the embeddings of all parties."""
        return finite(at_rest(self._model, list(phi)))

    def _check_names(self, given: Mapping[str, object]) -> None:
        if strange := [name for name in given if name not in self.names]:
            raise DataError(f"there is no party {strange[0]!r} in this run{suggest(strange[0], self.names)}")
        if missing := [name for name in self.names if name not in given]:
            raise DataError(f"the table of {missing[0]} is missing; a prediction needs one of every party")

    def _opened(self, name: str, place: Path | tuple[str, str], stack: ExitStack, on_step: OnStep) -> Table:
        bundle = self.parties[name].bundle
        if bundle.table is None:
            raise DataError(f"{name}: this run was not trained on tables; give its rows as tensors, with run.predict")
        source: Source = source_of(bundle, place)
        table = stack.enter_context(open_table(source, lambda what, rows: on_step(f"{what}: reading", rows, 0)))
        self.notes += check_columns(table, bundle)
        return table
