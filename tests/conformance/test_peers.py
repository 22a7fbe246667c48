"""Wrong peers: they get nothing of the protocol, the server survives, and the federation ends in the right bits."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.carriers import (
    SERVER,
    Loop,
    Outcome,
    Puppet,
    Threads,
    free_port,
    in_process,
    same,
    settings,
    signed,
    table_settings,
    threads,
    write_tables,
)
from cvfl.errors import CvflError, RemoteProtocolError
from cvfl.experiments import report
from cvfl.experiments.config import RunConfig
from cvfl.experiments.roles import offer_of, terms_of
from cvfl.runtime.certificates import make_certificates
from cvfl.runtime.grpc_channel import Identity, grpc
from cvfl.wire import Embedding, encode
from cvfl.wire.control import (
    CONTROL,
    TARGETS,
    Begin,
    End,
    Have,
    Hello,
    Recall,
    Refusal,
    Settled,
    Targets,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import seal

CONFIG = settings(rounds=4)


@pytest.fixture(scope="module")
def expected() -> Outcome:
    return in_process(CONFIG)


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """A server that waits for its parties."""
    monkeypatch.setattr(report, "write_report", lambda *_: None)
    with threads(CONFIG, tmp_path) as running:
        running.start(SERVER)
        yield running


def hello(name: str, config: RunConfig = CONFIG, **changes: object) -> bytes:
    values = {"name": name, "terms": terms_of(config), "offer": offer_of(config, name)} | changes
    return encode_control(Hello(**values), 0)  # type: ignore[arg-type]


def finishes(federation: Threads, expected: Outcome) -> None:
    for name in federation.names:
        federation.start(name)
    same(federation.outcome(), expected)


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


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


GARBAGE: dict[str, bytes] = {
    "no bytes": b"",
    "a few bytes": b"cvfl",
    "random bytes": bytes(range(200, 0, -1)),
    "half a frame": hello("bank")[:-9],
    "a flipped bit": hello("bank")[:-1] + b"!",
    "an unknown kind": seal(99, 2, 0, [b"x"]),
    "a control message that is none": seal(7, 2, 0, [b'{"type":"hallo"}']),
    "targets that are none": seal(8, 2, 0, [b"\1\0"]),
}


@pytest.mark.parametrize("frame", GARBAGE)
def test_garbage_after_a_good_hello(frame: str, federation: Threads, expected: Outcome) -> None:
    """The stream is cut; the place is free for the party itself."""
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(hello("bank"))
    until(lambda: federation.server.role.missing == ["hospital"])
    puppet.say(GARBAGE[frame])
    assert puppet.rest() == []
    until(lambda: federation.server.role.missing == ["hospital", "bank"])
    finishes(federation, expected)


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5])
def test_a_message_before_its_time_is_left_unread(kind: int, federation: Threads, expected: Outcome) -> None:
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(hello("bank"))
    until(lambda: federation.server.role.missing == ["hospital"])
    puppet.say(seal(kind, 2, 7, [b"\1"]))
    time.sleep(0.1)
    assert puppet.received.empty()
    puppet.vanish()
    until(lambda: federation.server.role.missing == ["hospital", "bank"])
    finishes(federation, expected)


@pytest.mark.parametrize("frame", [b"", b"garbage", seal(1, 2, 0, [b""]), seal(7, 1, 0, [b'{"type":"end"}'])])
def test_garbage_instead_of_a_hello(frame: bytes, federation: Threads, expected: Outcome) -> None:
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(frame)
    heard = puppet.rest()
    assert len(heard) == 1
    assert isinstance(decode_control(heard[0])[1], Refusal)
    finishes(federation, expected)


def test_a_message_in_the_name_of_another_party_ends_the_run_with_the_guilty_name(federation: Threads) -> None:
    """A party with a certificate that breaks the protocol is not worked around: everyone hears who it was."""
    federation.start("hospital")
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(hello("bank"))
    federation_role = federation.server.role
    from cvfl.experiments.serve import PartyRun  # noqa: PLC0415

    bank = PartyRun(CONFIG, "bank", federation.folder / "puppet", federation.stack).role
    while federation_role.server is None:
        frame = puppet.hear()
        assert frame is not None
        for reply in bank.receive(frame):
            puppet.say(reply)
    puppet.say(encode(Embedding(0, 1, b"in the name of the hospital")))
    federation.join()
    reason = "bank: a message in the name of role 1"
    assert str(federation.errors[SERVER]) == reason
    assert str(federation.errors["hospital"]) == f"hospital: the server stopped: {reason}"


def test_a_frame_that_is_too_large(tmp_path: Path, expected: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_report", lambda *_: None)
    with threads(CONFIG, tmp_path, max_frame=16_384) as federation:
        federation.start(SERVER)
        puppet = Puppet(federation.address, federation.identity("bank"))
        puppet.say(hello("bank"))
        until(lambda: federation.server.role.missing == ["hospital"])
        puppet.say(bytes(16_385))
        assert puppet.rest() == []
        assert puppet.code is not None
        until(lambda: federation.server.role.missing == ["hospital", "bank"])
        finishes(federation, expected)


def test_a_party_whose_frame_is_too_large_hears_it(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path, max_frame=500) as federation:
        federation.start(SERVER)
        federation.start("bank")
        federation._threads["bank"].join(20)
        assert isinstance(federation.errors["bank"], RemoteProtocolError)
        assert "bank: refused by" in str(federation.errors["bank"])
        assert "larger than max" in str(federation.errors["bank"])


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
from conformance.carriers import settings, threads
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


def test_a_late_party_and_a_slow_one(federation: Threads, expected: Outcome) -> None:
    federation.start("hospital", on_round=lambda: time.sleep(0.05))
    until(lambda: federation.server.role.missing == ["bank"])
    time.sleep(0.6)
    assert federation.waits[SERVER][-1] == "bank"
    federation.start("bank")
    same(federation.outcome(), expected)


def test_a_party_that_leaves_when_nobody_may(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path, on_missing="fail") as federation:
        federation.start(SERVER)
        time.sleep(0.6)  # who is not there yet has not left
        federation.start("hospital")
        puppet = Puppet(federation.address, federation.identity("bank"))
        puppet.say(hello("bank"))
        puppet.hear()
        puppet.vanish()
        federation.join()
        assert str(federation.errors[SERVER]) == "bank did not come back within 0 s"
        assert str(federation.errors["hospital"]) == "hospital: the server stopped: bank did not come back within 0 s"


def test_patience_has_a_limit(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path, wait_limit=1.0) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        federation.join(20)
        assert str(federation.errors[SERVER]) == "bank did not come within 1 s"
        assert "bank did not come within 1 s" in str(federation.errors["hospital"])


def test_a_party_without_a_server_gives_up(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path) as federation:
        federation.address = f"127.0.0.1:{free_port()}"
        federation.start("hospital", wait_limit=1.0)
        federation.join(20)
        assert str(federation.errors["hospital"]).startswith(f"hospital: no server at {federation.address} for ")
        assert federation.waits["hospital"]


LABELS: dict[str, tuple[int, int, bytes, list[float]]] = {
    "a class too many": (2, 3, b"\0" * 75, [3.0] * 75),
    "a negative class": (2, 3, b"\0" * 75, [-1.0] * 75),
    "no number": (0, 1, b"\0" * 75, [math.nan] * 75),
    "too large": (0, 1, b"\0" * 75, [math.inf] * 75),
    "an unknown loss": (9, 1, b"\0" * 75, [1.0] * 75),
    "too few labels": (1, 1, b"\0" * 75, [1.0]),
    "no rows": (1, 1, b"", []),
    "unknown parts": (1, 1, bytes(range(75)), [1.0] * 3),
    "more rows than there are": (1, 1, b"\0" * 700, [1.0] * 700),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_cannot_be(case: str, tmp_path: Path) -> None:
    """A label holder that sends nonsense ends the run in one line, at the server or at a party that hears of it."""
    loss, outputs, parts, labels = LABELS[case]
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    with loop.stack:
        while not (loop.up["bank"] and loop.up["bank"][0][1][5] == TARGETS):
            loop.step()
        targets = Targets(1, loss, outputs, parts, struct.pack(f"<{len(labels)}d", *labels))
        loop.up["bank"][0] = ("frame", encode_control(targets, 1))
        with pytest.raises(CvflError) as caught:
            loop.run()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("holders", "said"), [((), "none"), (("bank", "shop"), "bank and shop")])
def test_one_party_holds_the_label(holders: tuple[str, ...], said: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    columns = {"bank": "y", "shop": "city"}
    party = {
        name: {"table": str(tmp_path / f"{name}.csv")} | ({"label": column} if name in holders else {})
        for name, column in columns.items()
    }
    loop = Loop(table_settings(tmp_path, party=party), tmp_path / "loop")
    with loop.stack, pytest.raises(RemoteProtocolError, match=f"exactly one party holds the label, not {said}; set"):
        loop.run()


def hostile(draw: random.Random) -> list[bytes]:
    """Frames with a valid seal: any kind, sender and round with any body, and control messages at a wrong time."""
    frames = [
        seal(kind, m, draw.choice([0, 1, 2, (1 << 32) - 1]), [draw.randbytes(draw.choice([0, 1, 12, 40, 200]))])
        for kind in range(10)
        for m in (0, 1, 2, 9)
    ]
    for session in (0, 1, 2, -5, 10**30):
        frames += [
            encode_control(Have(session=session, run="x", rounds=[-1, 0, 3, 10**20]), 2),
            encode_control(Settled(session=session, rows=[-1] * draw.randrange(4)), 2),
            encode_control(Begin(session=session, m=2, t0=1), 2),
            encode_control(Recall(session=session), 2),
        ]
    frames += [encode_control(End(rounds=1), 2), hello("bank"), seal(CONTROL, 2, 0, [b"[" * 5000])]
    draw.shuffle(frames)
    return frames


@pytest.mark.parametrize("stage", [2, 8, 14, 18, 26])
def test_any_frame_of_an_admitted_party_ends_in_replies_or_one_typed_error(stage: int, tmp_path: Path) -> None:
    """Never a crash of the server, whatever the moment: while it waits, aligns, settles or trains."""
    write_tables(tmp_path)
    draw, config = random.Random(stage), table_settings(tmp_path, rounds=3)
    frames = hostile(draw)
    for at in range(0, len(frames), 16):
        loop = Loop(config, tmp_path / str(at))
        with loop.stack:
            while loop.delivered < stage:
                loop.step()
            for frame in frames[at : at + 16]:
                with contextlib.suppress(CvflError):
                    loop.server.role.receive(2, frame)
                    loop.server.role.work()
