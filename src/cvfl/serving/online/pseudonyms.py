"""Pseudonyms: how an id is called on the way through the server, which has no key and so cannot tell who it is.

text of an id ──keyed BLAKE2b──▶ 16 bytes        the key comes from a secret that the parties share
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

from cvfl.data.tables.ids import BETWEEN, IdType
from cvfl.wire.serving import PSEUDONYM

_PURPOSE = b"cvfl pseudonyms"


class Pseudonyms:
    """Those of one secret."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hashlib.blake2b(key=hashlib.blake2b(secret, person=_PURPOSE).digest(), digest_size=PSEUDONYM)

    def of(self, text: str) -> bytes:
        """Of one id, as a table has it."""
        one = self._keyed.copy()
        one.update(text.encode())
        return one.digest()

    def joined(self, texts: Iterable[str]) -> bytes:
        """Of several, one behind the other."""
        return b"".join(map(self.of, texts))


def spelled(parts: Sequence[str], id_type: IdType) -> str:
    """An id that somebody asks for as tables are read: without blanks around it, letters in one form."""
    text = BETWEEN.join(unicodedata.normalize("NFC", part.strip()) for part in parts)
    if id_type == "caseless":
        return text.casefold()
    if id_type == "integer":
        try:
            return str(int(text))
        except ValueError:  # no row has it
            return text
    return text
