"""What roles keep of an alignment, so that the next one sends only ids that came since, or none.

    party     its key; a tag of each of its ids, in the order in which the server has them; the bits that it was told
    server    the short hashes of the fully blinded ids of each party, in the same order

A party takes up only what its own tags confirm. A tag is a hash under the key, so without the key it confirms no guess.
Ids under an old key can be compared with those of before: that is what is wanted, and it is also how somebody could go
on guessing. So all parties count, and a key takes at most as many new ids of a party as it had at first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cvfl.privacy.blinding import short_size
from cvfl.privacy.wanted import Matches, Wanted, read_matches
from cvfl.types import SERVER
from cvfl.wire import Spelling
from cvfl.wire.setup import separate

TAG = 16
"""Bytes of a tag."""


@dataclass(frozen=True)
class Count:
    """How many ids of each party are under one key: when it was new, and by now."""

    first: tuple[int, ...]
    now: tuple[int, ...]

    def plus(self, came: Sequence[int]) -> Count | None:
        """With ids that came; None if a party would have more under this key than twice what it began with."""
        now = tuple(old + new for old, new in zip(self.now, came, strict=True))
        return Count(self.first, now) if all(n <= 2 * first for n, first in zip(now, self.first, strict=True)) else None


@dataclass(frozen=True)
class KeptByParty:
    """A party's part of an alignment; `number` names it, `size` is that of a short hash."""

    number: str
    date: str
    names: tuple[str, ...]
    size: int
    count: Count
    key: bytes
    tags: bytes
    common: bytes
    wanted: Wanted = Wanted.ALL

    def against(self, ids: Sequence[str]) -> Earlier:
        """This, and what is different now."""
        now = dict(zip(tags_of(ids, self.key), ids, strict=True))
        before = separate(self.tags, TAG)
        known = set(before)
        came = tuple(text for tag, text in now.items() if tag not in known)
        return Earlier(self, tuple(tag in now for tag in before), tuple(now[tag] for tag in before if tag in now), came)


@dataclass(frozen=True)
class Earlier:
    """What a party kept of an earlier alignment, and how its ids differ from those that the server has of it."""

    kept: KeptByParty
    still: tuple[bool, ...]
    """For each id that the server has, whether it is there."""
    stay: tuple[str, ...]
    """Those that are, in the server's order."""
    came: tuple[str, ...]
    """Ids that the server does not have."""

    @property
    def unchanged(self) -> bool:
        """Whether there is no difference."""
        return all(self.still) and not self.came

    def found(self, m: int) -> Matches:
        """What party m was told of ids that have not changed."""
        return read_matches(self.stay, self.kept.common, self.kept.wanted, m, len(self.kept.names))


@dataclass(frozen=True)
class KeptByServer:
    """The server's part of an alignment."""

    number: str
    date: str
    names: tuple[str, ...]
    size: int
    count: Count
    hashes: tuple[bytes, ...]
    spellings: tuple[Spelling, ...]
    common: int
    holder: int = SERVER
    """The label holder of an outer alignment."""
    held: tuple[int, ...] = ()
    """How many of its ids each party has."""
    owed: tuple[int, ...] = ()
    """Bytes of each party that it took, as long as no run has counted them."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many ids of each party there are."""
        return tuple(len(hashes) // self.size for hashes in self.hashes)

    def serves(self, numbers: Sequence[str], sizes: Sequence[int], came: Sequence[int], holder: int = SERVER) -> bool:
        """Whether parties that kept these alignments, with so many ids and new ids, can go on with this one."""
        fewer = any(old + new < now for old, new, now in zip(self.sizes, came, sizes, strict=True))
        return (
            set(numbers) == {self.number}
            and holder == self.holder
            and not fewer
            and short_size(sum(sizes)) <= self.size
            and self.count.plus(came) is not None
        )

    def unchanged(self, sizes: Sequence[int], came: Sequence[int]) -> bool:
        """Whether nobody has another id than before."""
        return not any(came) and tuple(sizes) == self.sizes


def tags_of(ids: Sequence[str], key: bytes) -> list[bytes]:
    """A hash of each id by which only who has the key knows it again."""
    keyed = hashlib.blake2b(key=key, digest_size=TAG, person=b"cvfl id tag")
    tags = []
    for text in ids:
        one = keyed.copy()
        one.update(text.encode())
        tags.append(one.digest())
    return tags
