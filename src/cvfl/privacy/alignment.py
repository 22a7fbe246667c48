"""Which people do all parties hold? Private set intersection for M parties, through a server that sees no id.

    party m            blinds its ids with its key and sends them, in a secret order
    server             passes them round the ring m + 1, ..., M, 1, ..., m - 1; each adds its key and keeps the order
    server             compares the fully blinded ids and tells each party which of its own all parties have

Roles are message machines like those of training: no I/O, no clock. On their way round the ring ids are sealed from
party to party, so that the server can neither read nor add any: it opens what went through all keys. A party blinds as
many ids of another as that one said it has, each once. It learns which of its ids are common to all, and how many ids
each other party has. The server learns these numbers, how the ids are written, and how many ids any group of parties
shares, but no id: it holds no key. Rows end in the same order everywhere, by a hash of the id and a secret of the
parties.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.privacy.blinding import Blinder
from cvfl.privacy.sealing import Sealing
from cvfl.types import SERVER
from cvfl.wire import Blinded, Matched, Setup, Spelling, pack, unpack
from cvfl.wire.setup import ELEMENT, SEAL, separate

PART = 4096
"""Ids in one message."""


def spelling(ids: Sequence[str]) -> Spelling:
    """How these ids are written: plain integers, digits padded with zeros, or text."""
    if not all(map(str.isdecimal, ids)):
        return Spelling.TEXT
    padded = any(len(text) > 1 and text[0] == "0" for text in ids)
    return Spelling.PADDED if padded else Spelling.INTEGER


def parts_of(ids: int) -> int:
    """Messages that so many ids take."""
    return max(1, -(-ids // PART))


def _bytes_of(ids: int, part: int) -> int:
    """Bytes of one part of so many blinded ids."""
    return ELEMENT * max(0, min(PART, ids - part * PART))


def _about(owner: int, hops: int, part: int, parts: int, written: Spelling) -> bytes:
    """What is sealed with blinded ids, though all may know it."""
    return struct.pack("<HHIIB", owner, hops, part, parts, written)


class AlignmentParty:
    """Party m of an alignment; `ids` are different texts, `sizes` how many each has, `sealing` is for the ring."""

    def __init__(self, m: int, ids: Sequence[str], sizes: Sequence[int], sealing: Sealing) -> None:
        self.m = m
        self.common: frozenset[str] | None = None
        # The order must not tell anything about the table, so it is secret too.
        self._ids = random.SystemRandom().sample(list(ids), len(ids))
        self._sizes, self._sealing, self._M = tuple(sizes), sealing, len(sealing.names)
        self._blinder = Blinder()
        self._seen: set[tuple[int, int]] = set()
        if len(self._sizes) != self._M or self._sizes[m - 1] != len(ids):
            raise RemoteProtocolError(f"{sealing.names[m - 1]}: has {len(ids)} ids, which is not what it was told")

    @property
    def parts(self) -> int:
        """Messages that the own ids take."""
        return parts_of(len(self._ids))

    def start(self) -> Iterator[Blinded]:
        """The own ids under the own key, part by part."""
        written = spelling(self._ids)
        for part in range(self.parts):
            ids = self._ids[part * PART : (part + 1) * PART]
            yield self._sent(self.m, 1, part, self.parts, written, self._blinder.blind(ids))

    def receive(self, message: Setup) -> list[Blinded]:
        """Add the own key to another's ids, or learn which of the own ones are common."""
        match message:
            case Blinded(sender, owner, hops, part, parts, written) if sender == SERVER and self._is_due(message):
                elements = self._blinder.blind_again(self._opened(message), self._sealing.names[self._before - 1])
                self._seen.add((owner, part))
                return [self._sent(owner, hops + 1, part, parts, written, elements)]
            case Matched(count, bits) if count == len(self._ids) and self.common is None:
                shared = unpack(bits, 1, count)
                self.common = frozenset(text for text, bit in zip(self._ids, shared, strict=True) if bit)
                return []
        raise RemoteProtocolError(f"party {self.m}: a {type(message).__name__} that the alignment does not expect")

    @property
    def blinded(self) -> dict[str, int]:
        """How many ids of each other party have been blinded here."""
        counts = Counter[int]()
        for owner, part in self._seen:
            counts[owner] += _bytes_of(self._sizes[owner - 1], part) // ELEMENT
        return {self._sealing.names[owner - 1]: ids for owner, ids in sorted(counts.items())}

    @property
    def _before(self) -> int:
        """The party before this one in the ring."""
        return (self.m - 2) % self._M + 1

    def _is_due(self, message: Blinded) -> bool:
        """Whether it is this party's turn with these ids, for the first time."""
        owner, part = message.owner, message.part
        return (
            owner != self.m
            and 1 <= owner <= self._M
            and message.hops == (self.m - owner) % self._M
            and message.parts == parts_of(self._sizes[owner - 1])
            and (owner, part) not in self._seen
        )

    def _opened(self, message: Blinded) -> bytes:
        owner, part = message.owner, message.part
        about, what = _about(owner, message.hops, part, message.parts, message.spelling), f"part {part} of blinded ids"
        elements = self._sealing.open_bytes(self._before, message.elements, about, what)
        if len(elements) != _bytes_of(self._sizes[owner - 1], part):
            name = self._sealing.names[self._before - 1]
            raise RemoteProtocolError(f"{name}: part {part} of the ids of role {owner} has another size than was said")
        return elements

    def _sent(self, owner: int, hops: int, part: int, parts: int, written: Spelling, elements: bytes) -> Blinded:
        """Ids for the next party in the ring; after the last one, for the server."""
        if hops < self._M:
            about = _about(owner, hops, part, parts, written)
            elements = self._sealing.seal_bytes(self.m % self._M + 1, elements, about)
        return Blinded(self.m, owner, hops, part, parts, written, elements)


@dataclass(frozen=True)
class Aligned:
    """What the server may tell of an alignment: sizes, and what is odd about them."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    common: int

    @property
    def warning(self) -> str | None:
        """A line to show when few people are shared."""
        smallest = min(self.sizes)
        if 2 * self.common >= smallest:
            return None
        name = self.names[self.sizes.index(smallest)]
        share = self.common / smallest
        return f"only {self.common:,} of the {smallest:,} ids of {name}, the smallest table, are shared ({share:.1%})"


@dataclass
class _Ring:
    """The parts of one owner's ids: how they are written, how far each came, and the fully blinded ones."""

    spelling: Spelling
    hops: dict[int, int] = field(default_factory=dict)
    blinded: dict[int, list[bytes]] = field(default_factory=dict)


class AlignmentServer:
    """Passes blinded ids round the ring and compares them when they went through every key."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.names, self.sizes = tuple(names), tuple(sizes)
        self.aligned: Aligned | None = None
        self._rings: dict[int, _Ring] = {}

    def receive(self, message: Setup) -> list[tuple[int, Setup]]:
        """Pass a part on to the next party; the last part brings everyone's result. Replies are (party, message)."""
        if not isinstance(message, Blinded):
            raise RemoteProtocolError(f"a {type(message).__name__} is not for the server")
        ring = self._checked(message)
        ring.hops[message.part] = message.hops
        if message.hops < len(self.names):
            return [(self._next(message), replace(message, m=SERVER))]
        ring.blinded[message.part] = separate(message.elements)
        complete = all(len(self._blinded(m)) == parts_of(size) for m, size in enumerate(self.sizes, start=1))
        return self._match() if complete else []

    def _blinded(self, m: int) -> dict[int, list[bytes]]:
        return self._rings[m].blinded if m in self._rings else {}

    def _next(self, message: Blinded) -> int:
        return (message.owner - 1 + message.hops) % len(self.names) + 1

    def _checked(self, message: Blinded) -> _Ring:
        M, owner, part = len(self.names), message.owner, message.part
        turn = (owner - 1 + message.hops - 1) % M + 1
        if not 1 <= owner <= M or not 1 <= message.hops <= M or message.m != turn or self.aligned:
            raise RemoteProtocolError(f"blinded ids of role {owner} from role {message.m}, out of turn")
        ring = self._rings.get(owner) or (_Ring(message.spelling) if message.hops == 1 else None)
        size = self.sizes[owner - 1]
        expected = _bytes_of(size, part) + (SEAL if message.hops < M else 0)
        known = ring and (parts_of(size), ring.spelling, expected, ring.hops.get(part, 0) + 1)
        if ring is None or known != (message.parts, message.spelling, len(message.elements), message.hops):
            raise RemoteProtocolError(f"{self.names[message.m - 1]}: part {part} of the ids of role {owner} is changed")
        self._rings[owner] = ring
        return ring

    def _match(self) -> list[tuple[int, Setup]]:
        lists = {m: [e for _, part in sorted(ring.blinded.items()) for e in part] for m, ring in self._rings.items()}
        for m, elements in lists.items():
            if len(set(elements)) != len(elements):
                raise DataError(f"{self.names[m - 1]}: {len(elements) - len(set(elements))} ids appear twice")
        common = frozenset.intersection(*map(frozenset, lists.values()))
        self.aligned = Aligned(self.names, self.sizes, len(common))
        self._check_spelling()
        if not common:
            counts = ", ".join(f"{name} {size:,}" for name, size in zip(self.names, self.sizes, strict=True))
            raise DataError(f"the parties share no id ({counts} ids); check that the id columns mean the same")
        return [
            (m, Matched(len(lists[m]), pack(np.array([e in common for e in lists[m]], dtype=np.uint32), 1)))
            for m in sorted(lists)
        ]

    def _check_spelling(self) -> None:
        written = {name: self._rings[m].spelling for m, name in enumerate(self.names, start=1)}
        plain = [name for name, kind in written.items() if kind is Spelling.INTEGER]
        padded = [name for name, kind in written.items() if kind is Spelling.PADDED]
        if plain and padded:
            raise DataError(
                f"ids of {padded[0]} are padded with zeros ('007'), those of {plain[0]} are plain integers (7); "
                f'set id_type = "integer" at {padded[0]}'
            )
