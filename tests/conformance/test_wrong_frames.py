"""Parties with a certificate that break the protocol: garbage is cut off, and who is guilty is named to all."""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import SERVER, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import Outcome
from conformance.peers import CONFIG, Puppet, finishes, hello, until
from conformance.threads import Threads, threads
from cvfl.errors import CvflError, DataError, RemoteProtocolError
from cvfl.federation.roles import PartyRun
from cvfl.runtime.carrier import refusal
from cvfl.wire import Embedding, Evaluation, Gradient, encode
from cvfl.wire.control import (
    CONTROL,
    TARGETS,
    Complete,
    End,
    Refusal,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import kind_of, seal
from cvfl.wire.read import read_frame
from cvfl.wire.targets import Targets

pytestmark = pytest.mark.usefixtures("tidy")
GARBAGE: dict[str, bytes] = {
    "no bytes": b"",
    "a few bytes": b"cvfl",
    "random bytes": bytes(range(200, 0, -1)),
    "half a frame": hello("bank")[:-9],
    "a flipped bit": hello("bank")[:-1] + b"!",
    "an unknown kind": seal(0, 2, 0, [b"x"]),
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


WRONG: dict[str, tuple[bytes, str]] = {
    "in the name of another": (encode(Embedding(0, 1, b"of the hospital")), "a message in the name of role 1"),
    "of a round to come": (encode(Embedding(3, 2, b"")), "Embedding of round 3 in round 0"),
    "that nobody asked for": (encode(Evaluation(0, 2, b"")), "Evaluation of round 0 in round 0"),
    "of the server's kind": (encode(Gradient(0, b"")), "an unexpected Gradient (training)"),
    "of the end": (encode_control(End(rounds=4), 2), "an unexpected End (training)"),
    "that it stops": (refusal(CvflError("bank.csv: row 7")), "stopped with a CvflError; its own log says more"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_message_that_breaks_the_protocol_ends_the_run_with_the_guilty_name(wrong: str, federation: Threads) -> None:
    """A party with a certificate that breaks the protocol is not worked around: everyone hears who it was."""
    frame, said = WRONG[wrong]
    federation.start("hospital")
    puppet = Puppet(federation.address, federation.identity("bank"))
    run = PartyRun(CONFIG, "bank", federation.folder / "puppet", federation.stack)
    bank = run.role
    puppet.say(bank.hello())
    while bank.party is None:  # it goes along until the rounds begin, and then says what is wrong
        heard = puppet.hear()
        assert heard is not None
        replies = list(bank.receive(heard))
        for reply in replies if bank.party is None else [frame]:
            puppet.say(reply)
    federation.join()
    assert str(federation.errors[SERVER]) == f"bank: {said}"
    assert str(federation.errors["hospital"]) == f"hospital: the server stopped: bank: {said}"


def test_what_a_failing_party_tells_the_others_holds_nothing_of_its_table() -> None:
    frame = refusal(DataError("shop.csv: id person-0007 appears twice"))
    assert b"stopped with a DataError" in frame
    assert b"person" not in frame
    assert b"csv" not in frame


def test_what_others_sent_that_is_not_allowed_they_hear() -> None:
    assert b"bank: an unexpected Targets" in refusal(RemoteProtocolError("bank: an unexpected Targets"))


def test_a_frame_that_is_too_large(tmp_path: Path, expected: Outcome) -> None:
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


LABELS: dict[str, tuple[int, int, bytes, list[float]]] = {
    "a class too many": (2, 3, b"\0" * 75, [3.0] * 75),
    "a negative class": (2, 3, b"\0" * 75, [-1.0] * 75),
    "no number": (0, 1, b"\0" * 75, [math.nan] * 75),
    "too large": (0, 1, b"\0" * 75, [math.inf] * 75),
    "an unknown loss": (7, 1, b"\0" * 75, [1.0] * 75),
    "too few labels": (1, 1, b"\0" * 75, [1.0]),
    "no rows": (1, 1, b"", []),
    "parts without their labels": (1, 1, bytes(i % 4 for i in range(75)), [1.0] * 3),
    "more rows than there are": (1, 1, b"\0" * 700, [1.0] * 700),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_cannot_be(case: str, tmp_path: Path) -> None:
    """A label holder that sends nonsense ends the run in one line, at the server or at a party that hears of it."""
    loss, outputs, parts, labels = LABELS[case]
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    with loop.stack:
        while not (loop.up["bank"] and kind_of(loop.up["bank"][0][1]) == TARGETS):
            loop.step()
        targets = Targets(1, loss, outputs, parts, struct.pack(f"<{len(labels)}d", *labels))
        loop.up["bank"][0] = ("frame", encode_control(targets, 1))
        with pytest.raises(CvflError) as caught:
            loop.run()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("role", ["hospital", "server", "nobody"])
def test_a_party_tells_the_hash_of_its_own_model_alone(role: str, tmp_path: Path) -> None:
    loop = Loop(CONFIG, tmp_path)
    with loop.stack:
        while not (loop.up["bank"] and isinstance(read_frame(loop.up["bank"][0][1]), Complete)):
            loop.step()
        complete = read_frame(loop.up["bank"][0][1])
        assert isinstance(complete, Complete)
        claimed = complete.model_copy(update={"parameters": {role: "0" * 64}})
        loop.up["bank"][0] = ("frame", encode_control(claimed, 2))
        with pytest.raises(RemoteProtocolError, match=f"^bank: a hash of the model of {role}$"):
            loop.run()


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
        values: list[dict[str, Any]] = [
            {"type": "have", "run": "x", "rounds": [-1, 0, 3, 10**20]},
            {"type": "have", "run": "ab", "rounds": [0, 3]},
            {"type": "row secret", "sealed": ["00"] * draw.randrange(3)},
            {"type": "settled", "rows": [-1] * draw.randrange(4)},
            {"type": "settled", "rows": [0, 1, 1 << 30]},
            {"type": "begin", "m": 2, "t0": 1},
            {"type": "recall"},
        ]
        frames += [seal(CONTROL, 2, 0, [json.dumps({"session": session} | one).encode()]) for one in values]
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
