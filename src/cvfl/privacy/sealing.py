"""Messages between two parties that the server passes on and cannot read: ChaCha20-Poly1305.

Each pair has a key a direction and session, and each message the number that it has on its way as its nonce: no pair of
key and nonce is met again. Who sent it, to whom, of which kind and round is sealed with it. So a message that is
changed, repeated, left out, swapped with another or kept from an earlier session does not open.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.privacy.keys import PairSecrets
from cvfl.types import SERVER
from cvfl.wire import Message, Passed
from cvfl.wire.frame import Frame
from cvfl.wire.message import FROM_SERVER, message_of, parts_of


@dataclass
class _Way:
    """One direction between two parties: its key, and how many messages went there."""

    cipher: ChaCha20Poly1305
    count: int = 0

    def nonce(self) -> bytes:
        return self.count.to_bytes(12, "little")


class Sealing:
    """Seals what a party sends to others, and opens what they sent to it, in one session."""

    def __init__(self, secrets: PairSecrets, names: Sequence[str]) -> None:
        self.m, self._names, self._secrets = secrets.m, tuple(names), secrets
        if {secrets.m, *secrets.others} != set(range(1, len(names) + 1)):
            raise RemoteProtocolError(f"keys of {len(secrets.others) + 1} parties for a session of {len(names)}")
        self._ways: dict[tuple[int, int], _Way] = {}

    def seal(self, to: int, message: Message) -> Passed:
        """The message for party `to` alone."""
        kind, _, t0, parts = parts_of(message)
        way = self._way(self.m, to)
        data = way.cipher.encrypt(way.nonce(), b"".join(parts), _bound(t0, self.m, to, kind))
        way.count += 1
        return Passed(t0, self.m, to, kind, data)

    def open(self, passed: Passed) -> Message:
        """What another party sealed for this one."""
        if passed.to != self.m or passed.m not in self._secrets.others:
            raise RemoteProtocolError(f"a message from role {passed.m} for role {passed.to} came to role {self.m}")
        name, way = self._names[passed.m - 1], self._way(passed.m, self.m)
        about = _bound(passed.t0, passed.m, passed.to, passed.kind)
        try:
            body = way.cipher.decrypt(way.nonce(), passed.data, about)
        except InvalidTag:
            raise RemoteProtocolError(
                f"{name}: a message of round {passed.t0} does not open; it was changed, repeated or left out on its way"
            ) from None
        way.count += 1
        sender = SERVER if passed.kind in FROM_SERVER else passed.m  # the label holder speaks as the server
        try:
            return message_of(Frame(passed.kind, sender, passed.t0, memoryview(body)))
        except DecodeError as error:
            raise RemoteProtocolError(f"{name}: {error}") from None

    def _way(self, m: int, to: int) -> _Way:
        if (m, to) not in self._ways:
            key = self._secrets.key(to if m == self.m else m, f"passed from {m} to {to}")
            self._ways[m, to] = _Way(ChaCha20Poly1305(key))
        return self._ways[m, to]


def _bound(t0: int, m: int, to: int, kind: int) -> bytes:
    """What is not secret of a message, but sealed with it."""
    return struct.pack("<IHHB", t0, m, to, kind)
