"""Peers that may not take part: they get nothing of the protocol, and the federation ends in the right bits."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cases import SERVER
from conformance.outcome import Outcome
from conformance.peers import CONFIG, Puppet, finishes, hello, signed, until
from conformance.threads import Threads, threads
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.runtime.grpc.channel import Identity, grpc
from cvfl.wire.control import Refusal, decode_control


def foreign(federation: Threads) -> Identity:
    """The right name by another authority, which the peer holds to be the right one."""
    other = federation.folder / "other"
    make_certificates(other, ["127.0.0.1"], ["bank"])
    return Identity(
        (federation.certs / "ca.crt").read_bytes(), (other / "bank.crt").read_bytes(), (other / "bank.key").read_bytes()
    )


def without(federation: Threads) -> Identity:
    """No certificate of its own."""

    class Bare(Identity):
        def for_party(self) -> grpc.ChannelCredentials:
            return grpc.ssl_channel_credentials(self.ca)

    return Bare((federation.certs / "ca.crt").read_bytes(), b"", b"")


def forged(federation: Threads) -> Identity:
    """The name of the authority, but not its key."""
    other = federation.folder / "other"
    make_certificates(other, ["127.0.0.1"], ["bank"])
    return signed(federation.certs, "bank", authority=other)


REFUSED: dict[str, Callable[[Threads], Identity | None]] = {
    "no certificate": without,
    "a foreign authority": foreign,
    "a forged signature": forged,
    "expired": lambda fed: signed(fed.certs, "bank", -10, -1),
    "not valid yet": lambda fed: signed(fed.certs, "bank", 1, 10),
    "no name": lambda fed: signed(fed.certs, None),
    "no party": lambda fed: signed(fed.certs, "stranger"),
    "the server's certificate": lambda fed: Identity.load(fed.certs, SERVER),
    "plain text": lambda fed: None,
}


@pytest.mark.parametrize("peer", REFUSED)
def test_a_peer_that_may_not_take_part(peer: str, federation: Threads, expected: Outcome) -> None:
    puppet = Puppet(federation.address, REFUSED[peer](federation))
    puppet.say(hello("bank"))
    assert puppet.rest() == []
    assert puppet.code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED}
    assert federation.server.role.missing == ["hospital", "bank"]
    puppet.vanish()
    finishes(federation, expected)


def test_a_party_that_says_it_is_another(federation: Threads, expected: Outcome) -> None:
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(hello("hospital"))
    (frame,) = puppet.rest()
    _, refusal = decode_control(frame)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "the certificate is for 'bank', but the party says that it is 'hospital'"
    assert federation.server.role.missing == ["hospital", "bank"]
    finishes(federation, expected)


def test_a_second_one_of_a_party_that_is_here(federation: Threads, expected: Outcome) -> None:
    first = Puppet(federation.address, federation.identity("bank"))
    first.say(hello("bank"))
    until(lambda: federation.server.role.missing == ["hospital"])
    second = Puppet(federation.address, federation.identity("bank"))
    second.say(hello("bank"))
    assert second.rest() == []
    assert second.code is grpc.StatusCode.ALREADY_EXISTS
    assert federation.server.role.missing == ["hospital"]
    first.vanish()
    until(lambda: federation.server.role.missing == ["hospital", "bank"])
    finishes(federation, expected)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RAW: dict[str, bytes] = {
    "garbage": bytes(range(256)) * 20,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "HTTP/2 without TLS": PREFACE + struct.pack(">IBI", 0, 4, 0)[1:],
    "a huge TLS record": b"\x16\x03\x01\xff\xff" + b"\0" * 4000,
    "nothing": b"",
    "a frame of the protocol": hello("bank"),
}


@pytest.mark.parametrize("words", RAW)
def test_bytes_that_are_no_tls(words: str, federation: Threads, expected: Outcome) -> None:
    host, _, port = federation.address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as peer:
        peer.settimeout(1.0)
        peer.sendall(RAW[words])
        answer = b""
        with contextlib.suppress(OSError):
            while data := peer.recv(4096):
                answer += data
        assert b"cvfl" not in answer
        assert len(answer) < 100
    finishes(federation, expected)


def test_a_huge_declared_message(federation: Threads, expected: Outcome) -> None:
    """A gRPC message that claims 4 GB: refused by its length, before anything is allocated."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(federation.certs / "ca.crt")
    context.load_cert_chain(federation.certs / "bank.crt", federation.certs / "bank.key")
    context.set_alpn_protocols(["h2"])
    host, _, port = federation.address.rpartition(":")
    headers = b"".join(
        b"\x00" + bytes([len(key)]) + key + bytes([len(value)]) + value
        for key, value in (
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", b"/cvfl.Federation/Join"),
            (b":authority", b"here"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    message = b"\0" + struct.pack(">I", 0xFFFFFFFF) + b"cvfl"
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        context.wrap_socket(plain, server_hostname=host) as peer,
    ):
        assert peer.version() == "TLSv1.3"
        peer.settimeout(3.0)
        peer.sendall(PREFACE + http2(4, 0, 0, b"") + http2(1, 4, 1, headers) + http2(0, 0, 1, message))
        answer = b""
        with contextlib.suppress(OSError):
            while b"larger than max" not in answer and (data := peer.recv(4096)):
                answer += data
    assert b"grpc-status" in answer or b"larger than max" in answer
    finishes(federation, expected)


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def test_a_false_server_gets_nothing_from_a_party(tmp_path: Path) -> None:
    """A party's certificate does not make a server: the others do not even say hello to it."""
    with threads(CONFIG, tmp_path, wait_limit=2.0) as federation:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(federation.certs / "bank.crt", federation.certs / "bank.key")
        context.set_alpn_protocols(["h2"])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            federation.address = f"127.0.0.1:{listener.getsockname()[1]}"
            federation.start("hospital", wait_limit=1.0)
            peer, _ = listener.accept()
            peer.settimeout(2.0)
            heard = b""
            with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as stream:
                heard = stream.recv(4096)
            assert heard == b""
            listener.close()
            federation._threads["hospital"].join(20)
        assert "no server at" in str(federation.errors["hospital"])


TLS = """
import socket, ssl, sys
from pathlib import Path
from conformance.cases import settings
from conformance.threads import threads
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
with threads(settings(), Path(sys.argv[1])) as federation:
    context.load_verify_locations(federation.certs / "ca.crt")
    context.load_cert_chain(federation.certs / "bank.crt", federation.certs / "bank.key")
    context.set_alpn_protocols(["h2"])
    federation.start("server")
    host, _, port = federation.address.rpartition(":")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, version
        try:
            with socket.create_connection((host, int(port)), 5) as plain:
                with context.wrap_socket(plain, server_hostname=host) as peer:
                    print(peer.version())
        except OSError as error:
            print("refused")
"""


def test_only_tls_1_3_is_spoken(tmp_path: Path) -> None:
    """In a process of its own: gRPC reads the setting when it is loaded."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("GRPC_SSL_CIPHER_SUITES", None)
    done = subprocess.run(
        [sys.executable, "-c", TLS, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["refused", "TLSv1.3"]
