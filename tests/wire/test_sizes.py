"""What a frame costs beyond what it carries, kind by kind: the figures that docs/wire-format.md promises."""

from __future__ import annotations

import pytest
import torch

from cvfl.compress import Context, build
from cvfl.compress.registry import AUTO
from cvfl.protocol.coding.codec import Codec, Samples
from cvfl.wire import (
    Blinded,
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Gone,
    Gradient,
    Matched,
    Passed,
    Report,
    Setup,
    Spelling,
    encode,
    encode_packet,
    encode_setup,
)
from cvfl.wire.control import Recall, encode_control
from cvfl.wire.frame import head_of, round_of, seal, unseal
from cvfl.wire.purpose import Purpose, purpose_of

ROUNDS = {0: 1, 127: 1, 128: 2, 16_383: 2, 16_384: 3, (1 << 32) - 1: 5}
"""Bytes of a round's number."""


@pytest.mark.parametrize(("t0", "size"), ROUNDS.items())
@pytest.mark.parametrize(("m", "sender"), [(1, 1), (127, 1), (128, 2), (65_535, 3)])
def test_a_frame_of_a_party_names_it_and_the_round(t0: int, size: int, m: int, sender: int) -> None:
    """A byte, the party, the round, and two bytes of checksum."""
    for message in (Embedding(t0, m, bytes(40)), Evaluation(t0, m, bytes(40))):
        assert len(encode(message)) == 1 + sender + size + 40 + 2
    assert len(encode(Passed(t0, m, 5, 1, bytes(40)))) == 1 + sender + size + 2 + 40 + 2
    assert len(encode(Report(t0, m, 0.5))) == 1 + sender + size + len('{"loss":0.5,"metrics":null}') + 2


@pytest.mark.parametrize(("t0", "size"), ROUNDS.items())
def test_a_frame_of_the_server_names_the_round_alone(t0: int, size: int) -> None:
    """A byte, the round, and two bytes of checksum; packets cost a length each, but for the last."""
    packet = bytes(40)
    head = 1 + size + 2
    assert len(encode(Gradient(t0, packet))) == head + 40
    assert len(encode(Gradient(t0, packet, packet))) == head + 1 + 1 + 40 + 40
    assert len(encode(Folded(t0, packet, (packet, packet)))) == head + 1 + 2 * (1 + 40) + 40
    assert len(encode(Broadcast(t0, (packet,), ((2, packet), (3, packet))))) == head + 1 + 2 * (2 + 40) + 1 + 40


def test_frames_before_the_first_round_name_their_sender_alone() -> None:
    said: list[Setup] = [
        Blinded(2, 1, 1, 0, 1, Spelling.TEXT, 8, bytes(80)),
        Matched(80, bytes(10)),
        Gone(2, 80, bytes(10)),
    ]
    assert [len(encode_setup(message)) for message in said] == [2 + 14 + 80 + 2, 2 + 4 + 10 + 2, 2 + 4 + 10 + 2]
    text = Recall(session=1).model_dump_json()
    assert len(encode_control(Recall(session=1), 0)) == 2 + len(text) + 2


@pytest.mark.parametrize("t0", ROUNDS)
def test_what_a_header_says_is_read_again(t0: int) -> None:
    """Also where a meter or a carrier reads it without the rest."""
    for frame, sender in ((encode(Embedding(t0, 300, b"x")), 300), (encode(Gradient(t0, b"x")), 0)):
        assert (round_of(frame), unseal(frame).sender, head_of(frame).t0) == (t0, sender, t0)
    sealed = [encode(Passed(t0, 300, 200, kind, b"x")) for kind in (1, 4)]
    assert [purpose_of(frame) for frame in sealed] == [Purpose.TRAINING, Purpose.EVALUATION]


def test_neighbouring_rounds_and_far_ones_are_told_apart() -> None:
    """A frame that comes late, of a session that is over, is not taken for one of now: the round is there in full."""
    assert len({encode(Embedding(t0, 1, b"x")) for t0 in (5, 6, 5 + 128, 5 + 256, 5 + (1 << 16), 5 + (1 << 31))}) == 6


@pytest.mark.parametrize("spec", ["identity", "scalar:bits=3,low=-4,high=4", "lattice:bits=3,low=-4,high=4"])
def test_a_plain_packet_has_two_bytes_of_header(spec: str) -> None:
    h = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    bits = 32 if spec == "identity" else 3
    assert len(encode_packet(build(spec).compress(h, Context()))) == 2 + 240 * bits // 8


def test_a_late_embedding_of_auto_has_seven_bytes_around_its_code() -> None:
    """Kind, party and round (3), the packet (1), its plane (1) and the checksum (2); all else is the code."""
    samples = Samples(lambda t0: torch.arange(64), 64)
    codec = Codec(build(AUTO["embedding"]), 7, 1, "bank", samples=samples)
    random = torch.Generator().manual_seed(1)
    h, sizes = torch.randn(64, 8, generator=random), []
    codec.prime(h.cos() / 64, h)
    for t0 in range(12):
        h = h + 0.05 * torch.randn(64, 8, generator=random)
        frame = encode(Embedding(t0, 1, codec.encode(h, t0)))
        sizes.append((len(frame), frame[3:5]))
        codec.observe(h.cos() / 64, 0.5, h)
    late, head = sizes[-1]
    assert late < 7 + 9 * 64 * 8 / 8  # a row more than there are, at less than a byte a component
    assert head == b"\x12\x9f"  # one plane, coded; a model of 16 bits, a row more than there are, columns as before
    assert seal(1, 1, 11, [b""])[:3] == bytes([0x21, 1, 11])
