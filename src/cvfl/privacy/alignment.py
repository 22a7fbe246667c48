"""Which people do all parties hold? Private set intersection for M parties, through a server that sees no id.

    party m            blinds its ids with its key and sends them, in a secret order
    server             passes them round the ring m + 1, ..., M, 1, ..., m - 1; each adds its key and keeps the order
    server             compares the fully blinded ids and tells each party which of its own all parties have

Roles are message machines like those of training: no I/O, no clock. A party learns which of its ids are common to all,
and how many ids each other party has. The server learns these numbers, how the ids are written, and how many ids any
group of parties shares, but no id: it holds no key. Rows end in the same order everywhere, by a hash of seed and id.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.privacy.blinding import Blinder
from cvfl.types import SERVER
from cvfl.wire import Blinded, Matched, Setup, Spelling, pack, unpack
from cvfl.wire.setup import ELEMENT, separate

PART = 4096
"""Ids in one message."""


def spelling(ids: Sequence[str]) -> Spelling:
    """How these ids are written: plain integers, digits padded with zeros, or text."""
    if not all(map(str.isdecimal, ids)):
        return Spelling.TEXT
    padded = any(len(text) > 1 and text[0] == "0" for text in ids)
    return Spelling.PADDED if padded else Spelling.INTEGER


class AlignmentParty:
    """Party m of an alignment; `ids` are different texts."""

    def __init__(self, m: int, ids: Sequence[str]) -> None:
        self.m = m
        self.common: frozenset[str] | None = None
        # The order must not tell anything about the table, so it is secret too.
        self._ids = random.SystemRandom().sample(list(ids), len(ids))
        self._blinder = Blinder()

    @property
    def parts(self) -> int:
        """Messages that the own ids take."""
        return max(1, -(-len(self._ids) // PART))

    def start(self) -> Iterator[Blinded]:
        """The own ids under the own key, part by part."""
        written = spelling(self._ids)
        for part in range(self.parts):
            ids = self._ids[part * PART : (part + 1) * PART]
            yield Blinded(self.m, self.m, 1, part, self.parts, written, self._blinder.blind(ids))

    def receive(self, message: Setup) -> list[Blinded]:
        """Add the own key to another's ids, or learn which of the own ones are common."""
        match message:
            case Blinded(sender, owner, hops, part, parts, written, elements) if sender == SERVER and owner != self.m:
                return [Blinded(self.m, owner, hops + 1, part, parts, written, self._blinder.blind_again(elements))]
            case Matched(count, bits) if count == len(self._ids) and self.common is None:
                shared = unpack(bits, 1, count)
                self.common = frozenset(text for text, bit in zip(self._ids, shared, strict=True) if bit)
                return []
        raise RemoteProtocolError(f"party {self.m}: a {type(message).__name__} that the alignment does not expect")


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
    """The parts of one owner's ids: what is known of them, how far each came, and the fully blinded ones."""

    parts: int
    spelling: Spelling
    sizes: dict[int, int] = field(default_factory=dict)
    hops: dict[int, int] = field(default_factory=dict)
    blinded: dict[int, list[bytes]] = field(default_factory=dict)


class AlignmentServer:
    """Passes blinded ids round the ring and compares them when they went through every key."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
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
        complete = len(self._rings) == len(self.names) and all(len(r.blinded) == r.parts for r in self._rings.values())
        return self._match() if complete else []

    def _next(self, message: Blinded) -> int:
        return (message.owner - 1 + message.hops) % len(self.names) + 1

    def _checked(self, message: Blinded) -> _Ring:
        M, owner, part = len(self.names), message.owner, message.part
        turn = (owner - 1 + message.hops - 1) % M + 1
        if not 1 <= owner <= M or not 1 <= message.hops <= M or message.m != turn or self.aligned:
            raise RemoteProtocolError(f"blinded ids of role {owner} from role {message.m}, out of turn")
        size = len(message.elements) // ELEMENT
        if message.hops == 1:
            self._rings.setdefault(owner, _Ring(message.parts, message.spelling)).sizes.setdefault(part, size)
        ring = self._rings.get(owner)
        known = ring and (ring.parts, ring.spelling, ring.sizes.get(part), ring.hops.get(part, 0) + 1)
        if ring is None or known != (message.parts, message.spelling, size, message.hops):
            raise RemoteProtocolError(f"{self.names[message.m - 1]}: part {part} of the ids of role {owner} is changed")
        return ring

    def _match(self) -> list[tuple[int, Setup]]:
        lists = {m: [e for part in range(ring.parts) for e in ring.blinded[part]] for m, ring in self._rings.items()}
        for m, elements in lists.items():
            if len(set(elements)) != len(elements):
                raise DataError(f"{self.names[m - 1]}: {len(elements) - len(set(elements))} ids appear twice")
        common = frozenset.intersection(*map(frozenset, lists.values()))
        sizes = tuple(len(lists[m]) for m in range(1, len(self.names) + 1))
        self.aligned = Aligned(self.names, sizes, len(common))
        self._check_spelling()
        if not common:
            counts = ", ".join(f"{name} {size:,}" for name, size in zip(self.names, sizes, strict=True))
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


def _passed_on(message: Blinded) -> Blinded:
    return Blinded(SERVER, message.owner, message.hops, message.part, message.parts, message.spelling, message.elements)
