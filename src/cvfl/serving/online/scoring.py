"""Scores of rows that are asked for: what all parties found of them, put together and through the server model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.protocol.absence import stood_in
from cvfl.runs.bundle import ServerBundle, needed
from cvfl.serving.course import Course
from cvfl.serving.embed import at_rest
from cvfl.serving.scores import columns_for, numbers_of
from cvfl.wire import Bytes, Found
from cvfl.wire.serving import Bits, read_bits


class Scoring(NamedTuple):
    """The server model of a run, and what its outputs mean."""

    bundle: ServerBundle
    model: nn.Module

    def chosen(self, told: Sequence[Bits]) -> Bits:
        """The rows that can be scored, by what each party knows: one at least does, and all that the model needs."""
        chosen: Bits = (np.logical_or if self.bundle.stand_ins else np.logical_and).reduce(told)
        if not self.bundle.stand_ins:
            return chosen
        for name in needed(self.bundle, self.model):
            chosen = chosen & told[self.bundle.names.index(name)]
        return chosen

    @property
    def columns(self) -> int:
        """How many numbers a row's scores are."""
        return columns_for(self.bundle.loss, self.bundle.outputs)


class Scored(NamedTuple):
    """The answer to what was asked: bits by role, and the scores of rows that have the bit of the server, the first."""

    known: tuple[Bits, ...]
    numbers: Tensor
    away: tuple[int, ...] = ()
    """Parties that could not be asked."""

    @property
    def enough(self) -> Bits:
        """The rows for which no further party is needed: those that have a score, and those that all know."""
        found: Bits = self.known[0] | np.logical_and.reduce(self.known[1:])
        return found


@dataclass
class _Asked:
    """Rows of which not all parties have said what they found."""

    scoring: Scoring
    count: int
    known: dict[int, Bits] = field(default_factory=dict)
    packets: dict[int, Bytes] = field(default_factory=dict)
    h: dict[int, Tensor] = field(default_factory=dict)
    """Embeddings of the rows that a party knows, where they can be read alone."""


class Gathering:
    """Scores rows when all parties have said what they found of them, in the order in which they were asked for."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self._asked: dict[int, _Asked] = {}
        self._codecs = {m: course.codec(m) for m in self._parties}
        self._total = course.total()

    @property
    def _parties(self) -> tuple[int, ...]:
        return self.course.here

    @property
    def missing(self) -> set[int]:
        """The parties of whom something is due."""
        return {m for asked in self._asked.values() for m in self._parties if m not in asked.known}

    def owing(self, number: int) -> tuple[int, ...]:
        """The parties of whom what they found for this number is due."""
        asked = self._asked.get(number)
        return tuple(m for m in self._parties if asked is not None and m not in asked.known)

    def expect(self, number: int, scoring: Scoring, count: int) -> None:
        """So many rows are asked for."""
        self._asked[number] = _Asked(scoring, count)

    def take(self, found: Found) -> Iterator[tuple[int, Scored, Scoring]]:
        """Take what a party found; the scores of what is complete with it."""
        asked = self._asked.get(found.t0)
        if asked is None or found.m in asked.known or found.count != asked.count:
            raise RemoteProtocolError(f"a second or unknown Found of party {found.m} for number {found.t0}")
        asked.known[found.m], asked.packets[found.m] = read_bits(found.known, asked.count), found.packet
        try:
            if self._total is None:  # while the others are still at work
                self._open(found, asked)
            if len(asked.known) == len(self._parties):
                del self._asked[found.t0]
                yield found.t0, self._scored(found.t0, asked), asked.scoring
        except DecodeError as error:
            raise RemoteProtocolError(str(error)) from error

    def _open(self, found: Found, asked: _Asked) -> None:
        shape = int(asked.known[found.m].sum()), self.course.widths[found.m - 1]
        if shape[0]:
            dtype = asked.scoring.bundle.dtype
            asked.h[found.m] = self._codecs[found.m].decode(found.packet, found.t0, shape, dtype)

    def _scored(self, number: int, asked: _Asked) -> Scored:
        nowhere = np.zeros(asked.count, dtype=np.bool_)
        told = [asked.known.get(m, nowhere) for m in range(1, len(self.course.names) + 1)]
        chosen = asked.scoring.chosen(told)
        scored, none = chosen.copy(), torch.empty(0, asked.scoring.columns, dtype=torch.float64)
        known = (scored, *told)
        phi = self._embeddings(number, asked, chosen)
        if not chosen.any():
            return Scored(known, none, self.course.away)
        outputs = at_rest(asked.scoring.model, phi)
        fine = np.isfinite(outputs.numpy()).reshape(len(outputs), -1).all(1)
        if not fine.all():  # a row of which the model makes no number has no score
            scored[chosen] = fine
            outputs = outputs[torch.from_numpy(fine)]
        numbers = numbers_of(asked.scoring.bundle, outputs) if len(outputs) else none
        return Scored(known, numbers, self.course.away)

    def _embeddings(self, number: int, asked: _Asked, everyone: Bits) -> list[Tensor]:
        """The embeddings, or their sum, of the rows that are scored."""
        if self._total is not None:
            shape, dtype = (asked.count, self.course.widths[0]), asked.scoring.bundle.dtype
            total = self._total.add(asked.packets, number, shape, dtype)
            return [self._total.decode(total, number, shape, dtype)[torch.from_numpy(everyone)]]
        if all(bits.all() for bits in asked.known.values()) and len(asked.known) == len(self.course.names):
            return [asked.h[m] for m in self._parties]
        if not everyone.any():
            return []
        if asked.scoring.bundle.stand_ins:
            return self._stood_in(asked, everyone)
        return [asked.h[m][torch.from_numpy(everyone[asked.known[m]])] for m in self._parties]

    def _stood_in(self, asked: _Asked, chosen: Bits) -> list[Tensor]:
        """The embeddings of chosen rows, with what was learned in place of those that a party does not know."""
        bundle, rows = asked.scoring.bundle, torch.from_numpy(chosen)
        phi, absent = list[Tensor](), list[Tensor]()
        for m, width in enumerate(bundle.widths, start=1):
            h = torch.zeros(asked.count, width, dtype=bundle.dtype)
            own = torch.from_numpy(asked.known.get(m, np.zeros_like(chosen)))
            if m in asked.h:
                h[own] = asked.h[m]
            phi.append(h[rows])
            absent.append(~own[rows])
        with torch.no_grad():
            return stood_in(asked.scoring.model, phi, absent)
