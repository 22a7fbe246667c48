"""A party's rows by pseudonym, with their embeddings: computed ahead for as many as memory allows, others on demand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, DataError
from cvfl.protocol.coding.codec import LIMIT
from cvfl.runs.bundle import PartyBundle, party_module, read_preparation
from cvfl.serving.embed import at_rest, embedded
from cvfl.serving.online.pseudonyms import Pseudonyms
from cvfl.serving.rows import check_columns, own_ids
from cvfl.types import OnStep
from cvfl.wire import Bytes
from cvfl.wire.serving import PSEUDONYM, Bits

_NEAR = 1 << 11
"""Rows that are nearer to each other in a table are read together."""


class Rows:
    """The rows of a table: its ids with their places, once for all runs that are served."""

    def __init__(self, table: Table, bundle: PartyBundle, on_step: OnStep) -> None:
        if bundle.table is None or not bundle.table.id:
            raise ConfigError(f"{bundle.role}: rows without ids cannot be asked for; serving needs data.id")
        self.table, self.notes = table, list(check_columns(table, bundle))
        self._places, more = own_ids(table, bundle, on_step)
        self.notes += more
        self._known: tuple[bytes, dict[bytes, int]] = b"", {}

    def __len__(self) -> int:
        return len(self._places)

    def key(self, secret: bytes) -> None:
        """Know rows by the pseudonyms of this secret."""
        if self._known[0] != secret:
            name = Pseudonyms(secret)
            self._known = secret, {name.of(text): place for text, place in self._places.items()}

    def places(self, pseudonyms: Bytes) -> NDArray[np.int64]:
        """Where the rows are, -1 of those that are not here."""
        data, known = bytes(pseudonyms), self._known[1]
        found = [known.get(data[at : at + PSEUDONYM], -1) for at in range(0, len(data), PSEUDONYM)]
        return np.array(found, dtype=np.int64)


class PartyModel(NamedTuple):
    """A party's model of one run, and how its columns become numbers."""

    bundle: PartyBundle
    module: nn.Module
    preparation: Preparation

    @classmethod
    def load(cls, bundle: PartyBundle, folder: Path) -> PartyModel:
        """As the run left it."""
        return cls(bundle, party_module(bundle, folder), read_preparation(bundle, folder))


class Store:
    """What a party serves with the model of one run: embeddings of its rows."""

    def __init__(self, model: PartyModel, rows: Rows, memory: int, on_step: OnStep) -> None:
        self.model, self.rows, bundle = model, rows, model.bundle
        ahead = min(rows.table.rows, memory // (bundle.width * bundle.dtype.itemsize))
        self._h = embedded(bundle, model.module, model.preparation, rows.table, np.arange(ahead), on_step)
        self._array = self._h.numpy()
        self._all_fine = bool(_fine(self._h).all())
        self.on_demand = 0
        """Rows that were computed when they were asked for."""

    @property
    def ahead(self) -> int:
        """Rows whose embeddings were computed ahead."""
        return len(self._h)

    def look(self, pseudonyms: Bytes) -> tuple[Bits, Tensor]:
        """Which rows are known, and the embeddings of those."""
        places = self.rows.places(pseudonyms)
        known = places >= 0
        here = places if known.all() else places[known]
        h = self._of(here)
        if self._all_fine and (not len(here) or int(here.max()) < self.ahead):
            return known, h
        fine = _fine(h)
        if not bool(fine.all()):  # rows that no model can compute with are as good as unknown
            known[known] = fine.numpy()
            h = h[fine]
        return known, h

    def _of(self, places: NDArray[np.int64]) -> Tensor:
        if not len(places) or int(places.max()) < self.ahead:
            return torch.from_numpy(self._array[places])
        h = self._blank(len(places))
        here = places < self.ahead
        h[torch.from_numpy(here)] = self._h[torch.from_numpy(places[here])]
        h[torch.from_numpy(~here)] = self._on_demand(places[~here])
        return h

    def _on_demand(self, places: NDArray[np.int64]) -> Tensor:
        """Rows that were not computed ahead, read from the table in pieces; one that cannot be read is no number."""
        self.on_demand += len(places)
        distinct, back = np.unique(places, return_inverse=True)
        h = self._blank(len(distinct))
        ends = [0, *(1 + np.flatnonzero(np.diff(distinct) > _NEAR)), len(distinct)]
        for start, end in pairwise(ends):
            h[start:end] = self._read(distinct[start:end], h[start:end])
        return h[torch.from_numpy(back)]

    def _blank(self, rows: int) -> Tensor:
        return torch.full((rows, self.model.bundle.width), torch.nan, dtype=self.model.bundle.dtype)

    def _read(self, places: NDArray[np.int64], otherwise: Tensor) -> Tensor:
        first = int(places[0])
        view = self.rows.table.window(first, int(places[-1]) - first + 1)
        try:
            x = self.model.preparation.transform(view, places - first, self.model.bundle.dtype)
            return at_rest(self.model.module, x)
        except DataError:  # the file was changed under our hands, or the row has what training never saw
            return otherwise


def _fine(h: Tensor) -> Tensor:
    """Which rows are numbers that can be sent."""
    return (h.isfinite() & (h.abs() <= LIMIT[h.dtype])).all(1)
