"""The server of an alignment: it passes blinded ids round the ring, and compares their short hashes at the end.

The party, and what each role learns, is in alignment.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.privacy.alignment import ids_of, parts_of
from cvfl.privacy.blinding import short_size
from cvfl.privacy.kept import Count, KeptByServer
from cvfl.types import SERVER
from cvfl.wire import Blinded, Gone, Matched, Setup, Spelling, pack, unpack
from cvfl.wire.setup import POINT, SEAL, separate

_ALIKE = (
    "check that the id columns mean the same and write them alike: case and leading zeros count, "
    'unless id_type is "caseless" or "integer" at every party'
)


@dataclass(frozen=True)
class Aligned:
    """What the server may tell of an alignment: sizes, and what is odd about them.

    With `earlier`, the date of an alignment that it went on with, `came` and `gone` say how many ids changed since. The
    rows of an outer alignment are the ids of its label holder `holder`, of which each party has as many as `held` says.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    common: int
    earlier: str = ""
    came: int = 0
    gone: int = 0
    holder: int = SERVER
    held: tuple[int, ...] = ()

    @property
    def outer(self) -> bool:
        """Whether rows are those of the label holder, not only those that all hold."""
        return self.holder != SERVER

    @property
    def rows(self) -> int:
        """How many rows were found."""
        return self.sizes[self.holder - 1] if self.outer else self.common

    @property
    def changed(self) -> bool:
        """Whether ids came or went since the earlier alignment."""
        return bool(self.came or self.gone)

    @property
    def warning(self) -> str | None:
        """A line to show when few people are shared."""
        if self.outer:
            few = 2 * self.common < self.rows
            return (
                f"only {self.common:,} of {self.rows:,} rows are held by all ({self.common / self.rows:.1%})"
                if few
                else None
            )
        smallest = min(self.sizes)
        if 2 * self.common >= smallest:
            return None
        name = self.names[self.sizes.index(smallest)]
        share = self.common / smallest
        return f"only {self.common:,} of the {smallest:,} ids of {name}, the smallest table, are shared ({share:.1%})"


@dataclass
class _Ring:
    """The ids of one owner: those known, how they are written, how far each new part came, and the fully blinded."""

    known: list[bytes]
    spelling: Spelling | None = None
    hops: dict[int, int] = field(default_factory=dict)
    blinded: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def all(self) -> list[bytes]:
        return [*self.known, *(element for _, part in sorted(self.blinded.items()) for element in part)]


class AlignmentServer:
    """Passes blinded ids round the ring and compares them when they went through every key.

    `sizes` are how many each party has; with `earlier`, `came` says how many of them are new. `holder` is the party
    with the label if the alignment is an outer one.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        earlier: KeptByServer | None = None,
        came: Sequence[int] | None = None,
        holder: int = SERVER,
    ) -> None:
        self.names, self.sizes, self._holder = tuple(names), tuple(sizes), holder
        self.aligned: Aligned | None = None
        self._earlier, self._came = earlier, self.sizes if came is None else tuple(came)
        self._size = earlier.size if earlier else short_size(sum(sizes))
        before = [separate(hashes, self._size) for hashes in earlier.hashes] if earlier else [[] for _ in names]
        self._rings = {m: _Ring(known) for m, known in enumerate(before, start=1)}
        self._expected = [len(known) - (size - new) for known, size, new in zip(before, sizes, self._came, strict=True)]
        """How many earlier ids of each party have gone, which it will name."""
        self._gone = sum(self._expected)
        if not all(self.sizes):
            raise self._nothing_shared()

    def receive(self, message: Setup) -> list[tuple[int, Setup]]:
        """Pass a part on to the next party; the last part brings everyone's result. Replies are (party, message)."""
        match message:
            case Gone():
                self._forget(message)
            case Blinded(hops=hops):
                ring = self._checked(message)
                ring.hops[message.part] = hops
                if hops < len(self.names):
                    return [(self._next(message), replace(message, m=SERVER))]
                ring.blinded[message.part] = separate(message.elements, message.size)
            case _:
                raise RemoteProtocolError(f"a {type(message).__name__} is not for the server")
        complete = all(len(self._rings[m].blinded) == parts_of(new) for m, new in enumerate(self._came, start=1))
        return self._match() if complete and not any(self._expected) else []

    def _forget(self, message: Gone) -> None:
        """Leave out the ids that a party no longer has."""
        ring, m = self._rings[message.m], message.m
        if not self._expected[m - 1] or message.count != len(ring.known) or self.aligned:
            raise RemoteProtocolError(f"{self.names[m - 1]}: ids that have gone, which was not said before")
        gone = unpack(message.bits, 1, message.count)
        if int(gone.sum()) != self._expected[m - 1]:
            raise RemoteProtocolError(f"{self.names[m - 1]}: more or fewer ids have gone than was said before")
        ring.known = [element for element, left in zip(ring.known, gone, strict=True) if not left]
        self._expected[m - 1] = 0

    def kept(self, number: str, date: str) -> KeptByServer:
        """What to keep, now that it is over."""
        assert self.aligned is not None
        hashes, spellings = tuple(b"".join(ring.all) for ring in self._rings.values()), tuple(self._spellings())
        count = self._earlier.count.plus(self._came) if self._earlier else Count(self._came, self._came)
        assert count is not None  # since the parties went on with it
        result = (self.aligned.common, self._holder, self.aligned.held)
        return KeptByServer(number, date, self.names, self._size, count, hashes, spellings, *result)

    def _next(self, message: Blinded) -> int:
        return (message.owner - 1 + message.hops) % len(self.names) + 1

    def _checked(self, message: Blinded) -> _Ring:
        M, owner, part = len(self.names), message.owner, message.part
        turn = (owner - 1 + message.hops - 1) % M + 1
        if not 1 <= owner <= M or not 1 <= message.hops <= M or message.m != turn or self.aligned:
            raise RemoteProtocolError(f"blinded ids of role {owner} from role {message.m}, out of turn")
        ring, ids, last = self._rings[owner], self._came[owner - 1], message.hops == M
        written = message.spelling if ring.spelling is None and message.hops == 1 else ring.spelling
        size = self._size if last else POINT
        told = size * ids_of(ids, part) + (0 if last else SEAL)
        known = (parts_of(ids), written, size, told, ring.hops.get(part, 0) + 1)
        said = (message.parts, message.spelling, message.size, len(message.elements), message.hops)
        if known != said:
            raise RemoteProtocolError(f"{self.names[message.m - 1]}: part {part} of the ids of role {owner} is changed")
        ring.spelling = written
        return ring

    def _match(self) -> list[tuple[int, Setup]]:
        lists = {m: ring.all for m, ring in self._rings.items()}
        for m, elements in lists.items():
            if len(set(elements)) != len(elements):
                raise DataError(f"{self.names[m - 1]}: {len(elements) - len(set(elements))} ids appear twice")
        sets = {m: frozenset(elements) for m, elements in lists.items()}
        common = frozenset.intersection(*sets.values())
        self._check_spelling()
        if not common and not self._holder:
            raise self._nothing_shared()
        earlier = (self._earlier.date, sum(self._came), self._gone) if self._earlier else ("", 0, 0)
        held = self._held(sets) if self._holder else ()
        self.aligned = Aligned(self.names, self.sizes, len(common), *earlier, self._holder, held)
        return [(m, _matched(lists[m], self._compared(m, sets, common))) for m in sorted(lists)]

    def _held(self, sets: dict[int, frozenset[bytes]]) -> tuple[int, ...]:
        """How many rows of the label holder each party has; one that has none brings nothing."""
        rows = sets[self._holder]
        for m, name in enumerate(self.names, start=1):
            if rows.isdisjoint(sets[m]):
                raise DataError(f"{name} holds none of the rows of {self.names[self._holder - 1]}; {_ALIKE}")
        return tuple(len(rows & own) for _, own in sorted(sets.items()))

    def _compared(self, m: int, sets: dict[int, frozenset[bytes]], common: frozenset[bytes]) -> list[frozenset[bytes]]:
        """What the ids of party m are compared with."""
        if not self._holder:
            return [common]
        return [sets[self._holder]] if m != self._holder else [own for j, own in sorted(sets.items()) if j != m]

    def _nothing_shared(self) -> DataError:
        counts = ", ".join(f"{name} {size:,}" for name, size in zip(self.names, self.sizes, strict=True))
        return DataError(f"the parties share no id ({counts} ids); {_ALIKE}")

    def _spellings(self) -> list[Spelling]:
        """How each party's ids are written; of one that has no new ids, how they were before."""
        before = self._earlier.spellings if self._earlier else [Spelling.TEXT for _ in self.names]
        found = [ring.spelling for ring in self._rings.values()]
        return [old if new is None else new for new, old in zip(found, before, strict=True)]

    def _check_spelling(self) -> None:
        written = dict(zip(self.names, self._spellings(), strict=True))
        plain = [name for name, kind in written.items() if kind is Spelling.INTEGER]
        padded = [name for name, kind in written.items() if kind is Spelling.PADDED]
        if plain and padded:
            raise DataError(
                f"ids of {padded[0]} are padded with zeros ('007'), those of {plain[0]} are plain integers (7); "
                f'set id_type = "integer" at {padded[0]}'
            )


def _matched(ids: Sequence[bytes], compared: Sequence[frozenset[bytes]]) -> Matched:
    """For each of these sets, one after another, which of the ids are in it."""
    bits = np.array([element in one for one in compared for element in ids], dtype=np.uint32)
    return Matched(len(bits), pack(bits, 1))
