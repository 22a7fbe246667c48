"""Secrets that two parties share and the server does not: X25519 agreement, one key pair a party and session.

    Have(session, key)   ────▶                       the public half, signed; the private one never leaves memory
                         ◀────   Settle(keys)        all public halves, in the order of the parties

A session starts whenever a role has come back, so a restart never meets a key again that was used before. The server
passes the public halves on. Where parties have certificates each is signed for its session, name and terms, and a
server that puts its own keys in their place is found out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cvfl.errors import RemoteProtocolError
from cvfl.privacy.identity import Identity
from cvfl.wire.control import PublicKey

PUBLIC = 32
"""Bytes of a public key."""


class SessionKey:
    """One party's key pair for one session."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, m: int, publics: Sequence[bytes], here: Sequence[int] = ()) -> PairSecrets:
        """Secrets with every other party, from the public keys of those who are `here`, or of all, in their order."""
        told = dict(zip(here or range(1, len(publics) + 1), publics, strict=True))
        if told.get(m) != self.public:
            raise RemoteProtocolError(f"the key of party {m} is not the one that it sent")
        if len(set(publics)) < len(publics) or any(len(public) != PUBLIC for public in publics):
            raise RemoteProtocolError("the public keys of the session are malformed, or two are the same")
        everyone = b"".join(publics)  # bound to who takes part: another set of keys gives other secrets
        return PairSecrets(m, {j: self._shared(j, public) for j, public in told.items() if j != m}, everyone)

    def _shared(self, j: int, public: bytes) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except (ValueError, UnsupportedAlgorithm):
            raise RemoteProtocolError(f"the public key of party {j} is no point of the curve") from None


@dataclass(frozen=True)
class Keyring:
    """How a party vouches for its keys and holds the others to theirs; without an identity nobody vouches for any."""

    names: tuple[str, ...]
    terms: str
    """A digest of the terms: a key that is signed for other terms does not count."""
    identity: Identity | None = None
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    """Certificates that were agreed on, by the name of the party."""

    def signed(self, m: int, session: int, key: SessionKey) -> PublicKey:
        """The key of party m, to be sent."""
        if self.identity is None:
            return PublicKey(public=key.public.hex())
        signature = self.identity.sign(self._content(m, session, key.public.hex()))
        certificate = self.identity.certificate.decode("ascii", "replace")
        return PublicKey(public=key.public.hex(), certificate=certificate, signature=signature.hex())

    def agree(
        self, m: int, session: int, key: SessionKey, keys: Sequence[PublicKey], here: Sequence[int] = ()
    ) -> PairSecrets:
        """The secrets of party m with every other party that is `here`, or with all."""
        members = here or range(1, len(self.names) + 1)
        if len(keys) != len(members):
            raise RemoteProtocolError(f"{len(keys)} keys for a session of {len(members)} parties")
        for j, other in zip(members, keys, strict=True):
            if self.identity is not None and j != m:
                name, content = self.names[j - 1], self._content(j, session, other.public)
                certificate, signature = other.certificate.encode(), bytes.fromhex(other.signature)
                self.identity.verify(name, certificate, signature, content, self.fingerprints.get(name))
        return key.agree(m, [bytes.fromhex(other.public) for other in keys], members)

    def _content(self, m: int, session: int, public: str) -> bytes:
        """What is signed."""
        return json.dumps(["cvfl session key", self.names, self.terms, m, session, public]).encode()


class PairSecrets:
    """What party m shares with each other party, for one session."""

    def __init__(self, m: int, shared: dict[int, bytes], everyone: bytes) -> None:
        self.m, self.others, self._shared, self._everyone = m, tuple(sorted(shared)), shared, everyone

    def key(self, j: int, purpose: str, size: int = 32) -> bytes:
        """The key that parties m and j have for a purpose."""
        return HKDF(SHA256(), size, self._everyone, f"cvfl {purpose}".encode()).derive(self._shared[j])


def session_secrets(M: int) -> dict[int, PairSecrets]:
    """What each of M parties that are all in this process shares with the others, for one session."""
    keys = [SessionKey() for _ in range(M)]
    publics = [key.public for key in keys]
    return {m: key.agree(m, publics) for m, key in enumerate(keys, start=1)}
