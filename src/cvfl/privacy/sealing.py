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
from cvfl.wire import Bytes, Message, Passed
from cvfl.wire.frame import FROM_SERVER, Frame
from cvfl.wire.message import message_of, parts_of


@dataclass
class _Way:
    """One direction between two parties: its key, and how many messages went there."""

    cipher: ChaCha20Poly1305
    count: int = 0

    def nonce(self) -> bytes:
        return self.count.to_bytes(12, "little")


class Sealing:
    """Seals what a party sends to others for one purpose, and opens what they sent to it, in one session.

    It is one of those who are `here`, or of all.
    """

    def __init__(
        self, secrets: PairSecrets, names: Sequence[str], purpose: str = "passed", here: Sequence[int] = ()
    ) -> None:
        self.m, self.names, self._secrets, self._purpose = secrets.m, tuple(names), secrets, purpose
        members = {*here} or {*range(1, len(names) + 1)}
        if {secrets.m, *secrets.others} != members:
            raise RemoteProtocolError(f"keys of {len(secrets.others) + 1} parties for a session of {len(members)}")
        self._ways: dict[tuple[int, int], _Way] = {}

    def seal(self, to: int, message: Message) -> Passed:
        """The message for party `to` alone."""
        kind, _, t0, parts = parts_of(message)
        return Passed(t0, self.m, to, kind, self.seal_bytes(to, b"".join(parts), _bound(t0, self.m, to, kind)))

    def open(self, passed: Passed) -> Message:
        """What another party sealed for this one."""
        if passed.to != self.m or passed.m not in self._secrets.others:
            raise RemoteProtocolError(f"a message from role {passed.m} for role {passed.to} came to role {self.m}")
        about = _bound(passed.t0, passed.m, passed.to, passed.kind)
        body = self.open_bytes(passed.m, passed.data, about, f"a message of round {passed.t0}")
        sender = SERVER if passed.kind in FROM_SERVER else passed.m  # the label holder speaks as the server
        try:
            return message_of(Frame(passed.kind, sender, passed.t0, memoryview(body)))
        except DecodeError as error:
            raise RemoteProtocolError(f"{self.names[passed.m - 1]}: {error}") from None

    def seal_bytes(self, to: int, data: Bytes, about: bytes) -> bytes:
        """Bytes for party `to` alone; `about` is not secret, but sealed with them."""
        way = self._way(self.m, to)
        sealed = way.cipher.encrypt(way.nonce(), data, about)
        way.count += 1
        return sealed

    def open_bytes(self, m: int, data: Bytes, about: bytes, what: str) -> bytes:
        """What party m sealed for this one."""
        way = self._way(m, self.m)
        try:
            opened = way.cipher.decrypt(way.nonce(), data, about)
        except InvalidTag:
            raise RemoteProtocolError(
                f"{self.names[m - 1]}: {what} does not open; it was changed, repeated or left out on its way"
            ) from None
        way.count += 1
        return opened

    def _way(self, m: int, to: int) -> _Way:
        if (m, to) not in self._ways:
            key = self._secrets.key(to if m == self.m else m, f"{self._purpose} from {m} to {to}")
            self._ways[m, to] = _Way(ChaCha20Poly1305(key))
        return self._ways[m, to]


def _bound(t0: int, m: int, to: int, kind: int) -> bytes:
    """What is not secret of a message, but sealed with it."""
    return struct.pack("<IHHB", t0, m, to, kind)
