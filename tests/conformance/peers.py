"""Peers that a test plays itself: what they say, by which certificate, and what the federation makes of it."""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from conformance.cases import settings
from conformance.outcome import Outcome, same
from conformance.threads import Threads
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, grpc
from cvfl.wire.control import Hello, encode_control

CONFIG = settings(rounds=4)


class Puppet:
    """A peer that says what it is told to, by a connection of its own."""

    def __init__(self, address: str, identity: Identity | None) -> None:
        credentials = identity.for_party() if identity else None
        self._channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._outbox.get, None))
        self.received: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for frame in self._call:
                self.received.put(frame)
        except grpc.RpcError as error:
            self.code, self.details = error.code(), error.details()
        self.received.put(None)

    def say(self, frame: bytes) -> None:
        """Send bytes as a message."""
        self._outbox.put(frame)

    def hear(self, seconds: float = 10.0) -> bytes | None:
        """The next message; None when the stream has ended."""
        return self.received.get(timeout=seconds)

    def rest(self, seconds: float = 10.0) -> list[bytes]:
        """All messages until the stream ends."""
        return list(iter(lambda: self.hear(seconds), None))

    def vanish(self) -> None:
        """Break the connection without a word."""
        self._channel.close()
        self._outbox.put(None)
        self._reader.join(10)


def signed(
    certs: Path, name: str | None, begins: float = -1.0, ends: float = 1.0, authority: Path | None = None
) -> Identity:
    """A certificate that is not as `cvfl certs` makes it; it is valid between two days from now."""
    ca = (certs / "ca.crt").read_bytes()
    issuer = x509.load_pem_x509_certificate(ca)
    issuer_key = serialization.load_pem_private_key(((authority or certs) / "ca.key").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(issuer.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=ends))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    own_key = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(ca, certificate.public_bytes(pem), own_key)


def hello(name: str) -> bytes:
    """The first frame of a party."""
    return encode_control(Hello(name=name, terms=terms_of(CONFIG), offer=offer_of(CONFIG, name)), 0)


def finishes(federation: Threads, expected: Outcome) -> None:
    """Assert that the real parties, started now, end in the right bits."""
    for name in federation.names:
        federation.start(name)
    same(federation.outcome(), expected)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
