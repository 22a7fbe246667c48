"""Ids under a secret key: H(id)^k on the curve P-256, by the `openmined-psi` package.

Keys commute, (H(id)^a)^b = (H(id)^b)^a, so ids that went through the keys of all parties can be compared by someone
who knows none of them. Without the key a blinded id says nothing, not even to someone who can guess the id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import private_set_intersection.python as psi

from cvfl.errors import RemoteProtocolError
from cvfl.wire import Bytes
from cvfl.wire.setup import separate

_T = TypeVar("_T")


class Blinder:
    """One party's key; it is new for every alignment, never leaves, and never comes from the shared seed."""

    def __init__(self) -> None:
        self._key: bytes = psi.client.CreateWithNewKey(True).GetPrivateKeyBytes()

    def blind(self, ids: Sequence[str]) -> bytes:
        """The ids under this key, one after another."""
        return _side_by_side(self._blind, ids)

    def blind_again(self, elements: Bytes, who: str) -> bytes:
        """Ids that `who` sent blinded already, under this key as well."""
        try:
            return _side_by_side(self._blind_again, separate(elements))
        except RuntimeError:
            raise RemoteProtocolError(f"{who}: a blinded id is not a point of the curve") from None

    def _blind(self, ids: Sequence[str]) -> list[bytes]:
        return list(psi.client.CreateFromKey(self._key, True).CreateRequest(list(ids)).encrypted_elements)

    def _blind_again(self, elements: Sequence[bytes]) -> list[bytes]:
        request = psi.Request(reveal_intersection=True, encrypted_elements=elements)
        return list(psi.server.CreateFromKey(self._key, True).ProcessRequest(request).encrypted_elements)


def _side_by_side(work: Callable[[Sequence[_T]], list[bytes]], items: Sequence[_T]) -> bytes:
    """The items in order, worked on by all cores: the package lets go of the interpreter lock."""
    cores = os.cpu_count() or 1
    share = max(1, -(-len(items) // cores))
    slices = [items[at : at + share] for at in range(0, len(items), share)]
    with ThreadPoolExecutor(cores) as pool:
        return b"".join(chain.from_iterable(pool.map(work, slices)))
