"""Folding: sums over the others take the place of their embeddings; gradients stay as they are, bytes do not."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance.cases import settings
from conformance.loop import Loop
from cvfl.compress import Context, Identity
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, DecodeError, RemoteProtocolError
from cvfl.federation.builder.recipe import recipe_for
from cvfl.models import Concat
from cvfl.protocol import Loss, Plan, StepSize
from cvfl.runtime import Meter, rounds
from cvfl.types import Direction
from cvfl.wire import Broadcast, Bytes, Embedding, Folded, Message, decode, encode, encode_packet
from cvfl.wire.frame import kind_of, seal, unseal
from cvfl.wire.message import FOLDED, KINDS
from cvfl.wire.varint import varint
from federations import apart, config, data, federation, parameters, run

HEADS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mlp": {"server_model": {"name": "mlp", "hidden": [16, 8]}},
    "sum": {"server_model": {"name": "sum", "hidden": [6]}},
}
BOTH = {"compressor": "auto", "server_compressor": "auto"}


def widths(M: int) -> dict[str, Any]:
    """Another width for every party."""
    return {"party": {f"org{m}": {"model": {"width": 1 + m, "hidden": [6]}} for m in range(1, M + 1)}}


@pytest.mark.parametrize(("precision", "close"), [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("M", [1, 2, 4])
@pytest.mark.parametrize("head", HEADS)
def test_folding_changes_no_parameter(head: str, M: int, precision: str, close: float) -> None:
    changes = HEADS[head] | (widths(M) if head != "sum" else {}) | {"precision": precision, "local_iterations": 3}
    table = data(Loss.MULTICLASS, M, dtype=getattr(torch, precision))
    plain, folded = (federation(table, folding=folding, **changes) for folding in (False, True))
    assert folded.plan.folding
    before = parameters(folded)
    run(plain)
    run(folded)
    for ours, theirs, start in zip(parameters(folded), parameters(plain), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=close)
        assert not torch.equal(ours, start)


@pytest.mark.parametrize("head", HEADS)
def test_folding_changes_no_gradient(head: str) -> None:
    feds = [federation(folding=folding, rounds=1, **HEADS[head]) for folding in (False, True)]
    for fed in feds:
        run(fed)
    plain, folded = ([value.grad for party in fed.parties for value in party.model.parameters()] for fed in feds)
    for ours, theirs in zip(folded, plain, strict=True):
        assert float(theirs.abs().max()) > 1e-6
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"folding": True}, 3),
        ({"folding": True, "compressor": "lattice:bits=3", "server_compressor": "scalar:bits=8"}, 3),
        (BOTH, 3),
        ({"server_compressor": "auto"}, 3),
        ({"compressor": "auto"}, 0),
        (BOTH | HEADS["mlp"], 16),
        (BOTH | HEADS["sum"], 4),
        (BOTH | {"server_model": {"name": "attention"}}, 0),
        (BOTH | {"algorithm": 2}, 0),
        (BOTH | {"folding": False}, 0),
        ({}, 0),
    ],
)
def test_what_is_folded_and_how_wide_the_sums_are(changes: dict[str, Any], width: int) -> None:
    fed = federation(**changes)
    assert (fed.plan.sum_width, fed.plan.folding) == (width, width > 0)


def test_what_cannot_be_folded_is_refused_in_one_line() -> None:
    said = r"^folding: the server model does not start with a linear layer or a sum over embeddings$"
    with pytest.raises(ConfigError, match=said):
        federation(folding=True, server_model={"name": "attention"})
    with pytest.raises(ConfigError, match=said):
        recipe_for(config(folding=True), data(), server_model=lambda: Concat(nn.Tanh()))
    with pytest.raises(ConfigError, match="folding is for algorithm 1"):
        federation(folding=True, algorithm=2)
    with pytest.raises(ConfigError, match="folding is for algorithm 1"):
        Plan(1, 8, 1, 16, 60, 0, (2,), Loss.BINARY, StepSize(eta=0.1), algorithm=2, sum_width=3)


class Counted(Meter):
    """A meter that keeps the frames that it counts: direction, party, bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[Direction, int, bytes]] = []

    def add(self, m: int, direction: Direction, frame: Bytes) -> None:
        self.frames.append((direction, m, bytes(frame)))
        super().add(m, direction, frame)

    def down(self, m: int) -> list[bytes]:
        return [frame for direction, to, frame in self.frames if direction is Direction.DOWN and to == m]

    def packets(self, m: int) -> set[bytes]:
        """Embeddings of party m as they travelled."""
        messages = [decode(frame) for _, sender, frame in self.frames if sender == m]
        return {bytes(said.packet) for said in messages if isinstance(said, Embedding)}


def counted(table: VerticalData | None = None, **changes: Any) -> Counted:
    fed, meter = federation(table, **changes), Counted()
    for _ in rounds(fed.server, fed.parties, meter, 1):
        pass
    return meter


FRAME, CHECKSUM, PACKET = 2, 2, 2  # header of a frame to a party, checksum of a short frame, header of a packet


@pytest.mark.parametrize("M", [1, 2, 4])
def test_a_party_gets_a_sum_and_its_slice_whatever_the_number_of_others(M: int) -> None:
    """The sum is B x H; of the model come the own H x P and the layers after the first, whose bias is in the sum."""
    B, H, P, outputs = 16, 5, 4, 3
    changes = {"server_model": {"name": "mlp", "hidden": [H]}, "rounds": 1}
    meter = counted(data(M=M), folding=True, **changes)
    total, pieces = PACKET + 8 * B * H, PACKET + 8 * (H * P + H * outputs + outputs)
    expected = FRAME + len(varint(2)) + len(varint(total)) + total + pieces + CHECKSUM
    for m in range(1, M + 1):
        assert [len(frame) for frame in meter.down(m)] == [expected]
        assert meter.parties[m].down == expected
    whole = counted(data(M=M), **changes).parties[1].down
    assert whole - expected > 8 * B * (P * (M - 1) - H)  # all embeddings of the others, less one sum


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"compressor": "lattice:bits=4"},
        dict.fromkeys(("compressor", "partial_compressor"), "feedback(scalar:bits=8)"),
    ],
)
def test_a_party_never_gets_a_packet_of_another(changes: dict[str, Any]) -> None:
    meters = {folding: counted(**changes, folding=folding) for folding in (True, False)}
    assert {type(decode(frame)) for m in (1, 2, 3) for frame in meters[True].down(m)} == {Folded}
    for folding, meter in meters.items():
        for m, other in itertools.permutations((1, 2, 3), 2):
            packets, heard = meter.packets(other), meter.down(m)
            assert len(packets) == 12
            found = [packet for packet in packets if any(packet in frame for frame in heard)]
            assert len(found) == (0 if folding else len(packets))


def test_the_sum_is_that_over_the_others() -> None:
    fed = federation(folding=True)
    replies = dict(reply for party in fed.parties for said in party.start() for reply in fed.server.receive(said))
    weight, bias = (value.detach() for value in fed.server.model.parameters())
    for m, folded in replies.items():
        assert isinstance(folded, Folded)
        others = [party for party in fed.parties if party.m != m]
        expected = bias + sum(party._h.detach() @ weight[:, fed.plan.columns(party.m)].t() for party in others)
        found = fed.codecs.replies[m].decode(folded.partial, 0, tuple(expected.shape), expected.dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def packet(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bytes:
    return encode_packet(Identity().compress(torch.ones(shape, dtype=dtype), Context()))


def cut(message: Folded) -> bytes:
    body = unseal(encode(message)).body
    return seal(FOLDED, 0, message.t0, [body[:-1]])


ROWS, WIDTH, OUTPUTS = 32, 4, 3
PIECES, NAN = OUTPUTS * WIDTH, struct.pack("<f", math.nan)
WRONG: dict[str, tuple[Callable[[Folded], bytes], str]] = {
    "a broadcast": (lambda told: encode(Broadcast(told.t0, told.model, ())), "Broadcast of round 1 in round 1"),
    "of another round": (lambda told: encode(replace(told, t0=2)), "Folded of round 2 in round 1"),
    "truncated": (cut, "symbols: .* bytes announced"),
    "too long": (lambda told: encode(replace(told, partial=bytes(told.partial) + b"1")), "1 bytes too many"),
    "nothing in it": (lambda told: seal(FOLDED, 0, told.t0, [varint(0)]), "without its first packet"),
    "no pieces": (lambda told: encode(replace(told, model=())), "a server model of 1 packets, not 0"),
    "pieces twice": (lambda told: encode(replace(told, model=told.model * 2)), "a server model of 1 packets, not 2"),
    "pieces of another shape": (
        lambda told: encode(replace(told, model=(packet((PIECES + 1,)),))),
        r"none of shape \(12,\)",
    ),
    "a row too few": (
        lambda told: encode(replace(told, partial=packet((ROWS - 1, OUTPUTS)))),
        r"none of shape \(32, 3\)",
    ),
    "a wider sum": (
        lambda told: encode(replace(told, partial=packet((ROWS, OUTPUTS + 1)))),
        r"none of shape \(32, 3\)",
    ),
    "more precise": (lambda told: encode(replace(told, partial=packet((ROWS, OUTPUTS), torch.float64))), "float64"),
    "not a number": (lambda told: encode(replace(told, partial=packet((ROWS, OUTPUTS))[:-4] + NAN)), "holds a NaN"),
    "no packet": (lambda told: encode(replace(told, partial=b"")), "packet header"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_message_to_a_party_is_refused_by_name(case: str, tmp_path: Path) -> None:
    make, said = WRONG[case]
    config = settings(folding=True, server_compressor="identity", data={"name": "wine", "parties": 3})
    loop = Loop(config, tmp_path)
    with loop.stack:
        loop.down["bank"][0] = make(next_to(loop, "bank", Folded))
        with pytest.raises(RemoteProtocolError, match=f"^bank: .*{said}"):
            loop.run()


def next_to(loop: Loop, name: str, kind: type[Message]) -> Any:
    """The first message of round 1 that waits for a party."""
    while True:
        waiting = loop.down[name]
        if waiting and kind_of(waiting[0]) in KINDS and decode(waiting[0]).t0 == 1:
            message = decode(waiting[0])
            assert isinstance(message, kind)
            return message
        loop.step()


def test_a_folded_message_where_nothing_is_folded_is_refused_by_name(tmp_path: Path) -> None:
    loop = Loop(settings(), tmp_path)
    with loop.stack:
        broadcast = next_to(loop, "bank", Broadcast)
        loop.down["bank"][0] = encode(Folded(1, packet((ROWS, OUTPUTS)), broadcast.model))
        with pytest.raises(RemoteProtocolError, match=r"^bank: Folded of round 1 in round 1"):
            loop.run()


def test_a_folded_message_to_the_server_is_refused_by_name(tmp_path: Path) -> None:
    loop = Loop(settings(folding=True), tmp_path)
    with loop.stack:
        next_to(loop, "bank", Folded)
        with pytest.raises(RemoteProtocolError, match=r"^bank: an unexpected Folded"):
            loop.server.role.receive(2, encode(Folded(1, packet((ROWS, OUTPUTS)), ())))


def test_any_damage_ends_in_an_answer_or_in_an_error_that_names_the_party() -> None:
    """Entropy-coded sums and pieces in the third epoch, with a state to decode against."""
    fed, draw, said = apart(federation(**BOTH, rounds=12)), random.Random(0), []
    inbox: list[Message] = [message for party in fed.parties for message in party.start()]
    for _ in range(9):
        replies = [reply for message in inbox for reply in fed.server.receive(message)]
        fed.server.train()
        state = copy.deepcopy(fed.parties[0].state_dict())
        inbox = [message for m, reply in replies for message in fed.parties[m - 1].receive(reply)]
    frame = encode(dict(replies)[1])
    for _ in range(150):
        fed.parties[0].load_state_dict(copy.deepcopy(state))
        body = bytearray(unseal(frame).body)
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(DecodeError):  # of the frame itself; a role puts its name before it
            message = decode(seal(FOLDED, 0, 8, [body]))
            try:
                fed.parties[0].receive(message)
            except RemoteProtocolError as error:
                said.append(str(error))
    assert len(said) > 10
    assert all(line.startswith("org1: ") for line in said)
