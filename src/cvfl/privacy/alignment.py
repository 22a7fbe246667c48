"""Which people do all parties hold? Private set intersection for M parties, through a server that sees no id.

    party m            blinds its ids with its key and sends them, in a secret order
    server             passes them round the ring m + 1, ..., M, 1, ..., m - 1; each adds its key and keeps the order
    party m - 1        adds the last key, and sends a short hash of each fully blinded id
    server             compares the hashes and tells each party which of its own ids all parties have

In an outer alignment it tells the label holder which of its ids each other party has, and each other party which of its
own the label holder has.

Roles are message machines like those of training: no I/O, no clock. On their way round the ring ids are sealed from
party to party, so that the server can neither read nor add any: it gets what went through all keys. A party blinds as
many ids of another as that one said it has, each once. It learns which of its ids are common to all, and how many ids
each other party has. The server learns these numbers, how the ids are written, and how many ids any group of parties
shares, but no id: it holds no key. Rows end in the same order everywhere, by a hash of the id and a secret of the
parties.

Roles that kept an earlier alignment go on with it: only ids that came go round, and a party says which of its earlier
ones have gone. What is kept is in kept.py, the server in matching.py.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cvfl.errors import RemoteProtocolError
from cvfl.privacy.blinding import Blinder, short_size, shortened
from cvfl.privacy.kept import Count, Earlier, KeptByParty, tags_of
from cvfl.privacy.sealing import Sealing
from cvfl.privacy.wanted import Matches, Wanted, read_matches
from cvfl.types import SERVER
from cvfl.wire import Blinded, Gone, Matched, Setup, Spelling, pack
from cvfl.wire.setup import POINT

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
    return -(-ids // PART)


def ids_of(ids: int, part: int) -> int:
    """How many of so many ids are in one part."""
    return max(0, min(PART, ids - part * PART))


def _about(owner: int, hops: int, part: int, parts: int, written: Spelling) -> bytes:
    """What is sealed with blinded ids, though all may know it."""
    return struct.pack("<HHIIB", owner, hops, part, parts, written)


class AlignmentParty:
    """Party m of an alignment; `ids` are different texts, `sizes` how many each has, `sealing` is for the ring.

    With `earlier` only ids that came since are compared, of each party as many as `came` says. `key` is a new one
    unless it is given. `wanted` is what it is to hear of its ids in the end.
    """

    def __init__(
        self,
        m: int,
        ids: Sequence[str],
        sizes: Sequence[int],
        sealing: Sealing,
        earlier: Earlier | None = None,
        came: Sequence[int] | None = None,
        key: bytes | None = None,
        wanted: Wanted = Wanted.ALL,
    ) -> None:
        self.m = m
        self.found: Matches | None = None
        # The order must not tell anything about the table, so it is secret too.
        new = earlier.came if earlier else tuple(ids)
        self._own = random.SystemRandom().sample(new, len(new))
        self._still = earlier.still if earlier else ()
        self._ids = [*(earlier.stay if earlier else ()), *self._own]
        self._came = tuple(sizes if came is None else came)
        self._sealing, self._M, self._name = sealing, len(sealing.names), sealing.names[m - 1]
        if len(sizes) != self._M or len(self._came) != self._M:
            raise RemoteProtocolError(f"{self._name}: there are {self._M} parties, not {len(sizes)}")
        if (sizes[m - 1], self._came[m - 1]) != (len(ids), len(self._own)):
            raise RemoteProtocolError(f"{self._name}: has {len(ids)} ids, which is not what it was told")
        count = earlier.kept.count.plus(self._came) if earlier else Count(self._came, self._came)
        if count is None:
            raise RemoteProtocolError(f"{self._name}: more new ids than a key of an earlier alignment is good for")
        self._count, self._size = count, earlier.kept.size if earlier else short_size(sum(sizes))
        self._blinder = Blinder(earlier.kept.key if earlier else key)
        self._seen: set[tuple[int, int]] = set()
        self._wanted, self._matched = wanted, b""

    @property
    def common(self) -> frozenset[str] | None:
        """The own ids that are rows, once that is known."""
        return self.found.common if self.found else None

    @property
    def parts(self) -> int:
        """Messages that the own ids take."""
        return parts_of(len(self._own))

    def start(self) -> Iterator[Blinded | Gone]:
        """Which earlier ids have gone, if any, and the own new ones under the own key, part by part."""
        if not all(self._still):
            gone = ~np.array(self._still)
            yield Gone(self.m, len(gone), pack(gone.astype(np.uint32), 1))
        written = spelling(self._ids)
        for part in range(self.parts):
            ids = self._own[part * PART : (part + 1) * PART]
            yield self._sent(self.m, 1, part, self.parts, written, self._blinder.blind(ids))

    def receive(self, message: Setup) -> list[Blinded]:
        """Add the own key to another's ids, or learn which of the own ones are common."""
        match message:
            case Blinded(sender, owner, hops, part, parts, written, _, _) if sender == SERVER and self._is_due(message):
                elements = self._blinder.blind_again(self._opened(message), self._sealing.names[self._before - 1])
                self._seen.add((owner, part))
                return [self._sent(owner, hops + 1, part, parts, written, elements)]
            case Matched(count, bits) if count == self._wanted.bits(len(self._ids), self._M) and self.found is None:
                self.found = read_matches(self._ids, bits, self._wanted, self.m, self._M)
                self._matched = bytes(bits)
                return []
        raise RemoteProtocolError(f"party {self.m}: a {type(message).__name__} that the alignment does not expect")

    @property
    def blinded(self) -> dict[str, int]:
        """How many ids of each other party have been blinded here."""
        counts = Counter[int]()
        for owner, part in self._seen:
            counts[owner] += ids_of(self._came[owner - 1], part)
        return {self._sealing.names[owner - 1]: ids for owner, ids in sorted(counts.items())}

    def kept(self, number: str, date: str) -> KeptByParty:
        """What to keep, now that it is over."""
        tags = b"".join(tags_of(self._ids, self._blinder.key))
        names, key = self._sealing.names, self._blinder.key
        return KeptByParty(number, date, names, self._size, self._count, key, tags, self._matched, self._wanted)

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
            and message.size == POINT
            and message.parts == parts_of(self._came[owner - 1])
            and (owner, part) not in self._seen
        )

    def _opened(self, message: Blinded) -> bytes:
        owner, part = message.owner, message.part
        about, what = _about(owner, message.hops, part, message.parts, message.spelling), f"part {part} of blinded ids"
        elements = self._sealing.open_bytes(self._before, message.elements, about, what)
        if len(elements) != POINT * ids_of(self._came[owner - 1], part):
            name = self._sealing.names[self._before - 1]
            raise RemoteProtocolError(f"{name}: part {part} of the ids of role {owner} has another size than was said")
        return elements

    def _sent(self, owner: int, hops: int, part: int, parts: int, written: Spelling, elements: bytes) -> Blinded:
        """Ids for the next party in the ring; after the last one, for the server."""
        size = POINT if hops < self._M else self._size
        if hops < self._M:
            about = _about(owner, hops, part, parts, written)
            elements = self._sealing.seal_bytes(self.m % self._M + 1, elements, about)
        else:
            elements = shortened(elements, size)
        return Blinded(self.m, owner, hops, part, parts, written, size, elements)
