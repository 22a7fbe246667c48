"""Ids under a secret key: k H(id) on Curve25519, by libsodium's X25519.

    H(id)                   SHA-256, taken as the u-coordinate of a point
    k H(id)                 32 bytes; without k it names no id, not even to someone who can guess it
    a (b H(id)) = b (a H(id))

Keys commute, so ids that went through the keys of all parties can be compared by someone who knows none of them. For
that a short hash of the point is enough. Every 32 bytes are the u-coordinate of a point of the curve or of its twist;
multiplication stays where it began, and both have large prime order times 8 or 4, which every key is a multiple of. A
point of small order, which nobody gets by hashing, becomes zero under any key and is refused. docs/alignment.md says
what it tells that a point is on one or on the other.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError

from cvfl.errors import RemoteProtocolError
from cvfl.wire import Bytes
from cvfl.wire.setup import POINT, separate

_T = TypeVar("_T")
_ID, _SHORT = b"cvfl id\0", b"cvfl blinded id\0"
FALSE_MATCH_BITS = 40
"""That any two different ids have the same short hash is less likely than 2 to the minus this."""
_FEWEST = 256
"""Ids that are worth a thread."""
OPEN = bytes(POINT)
"""The key where all parties are in one process: with nobody to hide ids from, they stay as they are hashed."""


class Blinder:
    """One party's key, which never leaves nor comes from the shared seed: new, of an earlier alignment, or OPEN."""

    def __init__(self, key: bytes | None = None) -> None:
        self.key = key or secrets.token_bytes(POINT)

    def blind(self, ids: Sequence[str]) -> bytes:
        """The ids under this key, one after another."""
        if self.key == OPEN:
            return b"".join(map(_point, ids))
        return _side_by_side(lambda text: crypto_scalarmult(self.key, _point(text)), ids)

    def blind_again(self, elements: Bytes, who: str) -> bytes:
        """Ids that `who` sent blinded already, under this key as well."""
        if self.key == OPEN:
            return bytes(elements)
        try:
            return _side_by_side(lambda point: crypto_scalarmult(self.key, point), separate(elements, POINT))
        except CryptoError:
            raise RemoteProtocolError(f"{who}: a blinded id is a point of small order") from None


def short_size(ids: int) -> int:
    """Bytes of a short hash that tells so many ids apart: 2^-40 for all pairs, of which there are fewer than ids^2."""
    return math.ceil((FALSE_MATCH_BITS + 2 * math.log2(max(ids, 1))) / 8)


def shortened(elements: Bytes, size: int) -> bytes:
    """A short hash of every point, for comparing."""
    return b"".join(hashlib.sha256(_SHORT + point).digest()[:size] for point in separate(elements, POINT))


def _point(text: str) -> bytes:
    return hashlib.sha256(_ID + text.encode()).digest()


def _side_by_side(work: Callable[[_T], bytes], items: Sequence[_T]) -> bytes:
    """The items in order, worked on by all cores: libsodium lets go of the interpreter lock."""
    cores = os.cpu_count() or 1
    share = max(_FEWEST, -(-len(items) // cores))
    slices = [items[at : at + share] for at in range(0, len(items), share)]
    with ThreadPoolExecutor(cores) as pool:
        return b"".join(chain.from_iterable(pool.map(lambda some: [work(one) for one in some], slices)))
