"""Laws 4 and 8: every byte is counted where a frame leaves, and nothing but the protocol's messages leaves."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from cvfl.protocol import Loss
from cvfl.runtime import Meter, inprocess
from cvfl.wire import (
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Gradient,
    Passed,
    Report,
    decode,
    decode_packet,
    encode,
    packed_size,
)
from federations import data, federation, run

UP, DOWN, CHECKSUM = 3, 2, 2  # frame headers: kind, sender and round; kind and round; and what ends a short frame
PACKET, ENTRY = 2, 2  # header of a packet of one plane; entry of a broadcast but the last
MEASURED_RANGE = 16  # two float64


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All frames that the runtime encodes."""
    frames: list[bytes] = []

    def spy(message):  # type: ignore[no-untyped-def]
        frames.append(encode(message))
        return frames[-1]

    monkeypatch.setattr(inprocess, "encode", spy)
    return frames


@pytest.mark.parametrize(
    ("compressor", "server_compressor", "down"), [("topk:bits=8", "scalar:bits=4", Broadcast), ("auto", "auto", Folded)]
)
def test_the_meter_counts_exactly_the_frames_that_left(
    compressor: str, server_compressor: str, down: type, captured: list[bytes]
) -> None:
    meter = run(federation(compressor=compressor, server_compressor=server_compressor, local_iterations=2))
    kinds = Counter[type]()
    for frame in captured:
        kinds[type(decode(frame))] += len(frame)
    total = meter.total()
    assert total.up == kinds[Embedding]
    assert total.down == kinds[down]
    assert total.evaluation == kinds[Evaluation]
    assert total.total == sum(len(frame) for frame in captured)
    for m, traffic in meter.parties.items():
        sent = [frame for frame in captured if isinstance(message := decode(frame), Embedding) and message.m == m]
        assert traffic.up == sum(len(frame) for frame in sent)


def test_a_sealed_message_is_counted_on_both_ways(captured: list[bytes]) -> None:
    """Up from its sender, and down to its receiver; those of evaluation apart."""
    meter = run(federation(rounds=3, evaluate_every=2, privacy={"labels": "org2"}))
    sent = [(decode(frame), len(frame)) for frame in captured]
    kinds = Counter(type(message) for message, _ in sent)
    assert kinds == {Passed: 2 * (3 * 4 + 2 * 2), Report: 3}
    assert meter.total().total == sum(size for _, size in sent)
    plain = UP + PACKET + 16 * 4 * 8 + CHECKSUM
    sealed, test_embedding = plain + 2 + 16, UP + 2 + PACKET + 20 * 4 * 8 + 16 + CHECKSUM
    reports = sum(size for message, size in sent if isinstance(message, Report))
    for m in (1, 3):
        traffic = meter.parties[m]
        assert (traffic.up, traffic.down, traffic.evaluation) == (3 * sealed, 3 * sealed, 2 * test_embedding)
    traffic = meter.parties[2]
    assert (traffic.up, traffic.down) == (6 * sealed + reports, 6 * sealed)
    assert traffic.evaluation == 4 * test_embedding


def test_a_round_costs_what_the_wire_format_says() -> None:
    """Algorithm 1, scalar b = 3, M = 3, P = 4, B = 16: each figure by hand."""
    meter = run(federation(rounds=1, compressor="scalar:bits=3", evaluate_every=5))
    packet = PACKET + MEASURED_RANGE + packed_size(16 * 4, 3)
    theta_0 = PACKET + 8 * (12 * 3 + 3)  # 12 x 3 weights and 3 biases, float64, exact
    test_embedding = UP + PACKET + 20 * 4 * 8 + CHECKSUM
    for traffic in meter.parties.values():
        assert traffic.up == UP + packet + CHECKSUM
        entries = (ENTRY + 1 + theta_0) + (ENTRY + packet) + (ENTRY - 1 + packet)  # a length of two bytes, one, none
        assert traffic.down == DOWN + 1 + entries + CHECKSUM
        assert traffic.evaluation == test_embedding


def test_algorithm_2_sends_each_party_only_its_own_gradient(captured: list[bytes]) -> None:
    run(federation(algorithm=2, rounds=2))
    kinds = Counter(type(decode(frame)) for frame in captured)
    assert kinds == {Embedding: 6, Gradient: 6, Evaluation: 3}
    for frame in captured:
        if isinstance(message := decode(frame), Gradient):
            assert decode_packet(message.packet, (16, 4)).planes[0].symbols.numel() == 16 * 4


@pytest.mark.parametrize(
    "method", [{"algorithm": 1}, {"folding": True}, {"algorithm": 2}, {"privacy": {"labels": "org1"}}]
)
def test_no_frame_holds_features_or_labels(captured: list[bytes], method: dict[str, object]) -> None:
    """Mark the features and labels with values whose bytes can be found again."""
    table = data(Loss.SQUARED)
    marks = torch.tensor([1234.5678, 8765.4321], dtype=torch.float64)
    for x in table.train:
        x[:, 0] = marks[0]
    table.train_labels[:] = marks[1]
    run(federation(table, **method, rounds=4, step_size={"eta": 1e-9}))
    assert len(captured) > 8
    for mark in marks:
        needles = [mark.numpy().tobytes(), mark.float().numpy().tobytes()]
        assert not any(needle in frame for needle in needles for frame in captured)


def test_the_meter_separates_parties_directions_and_evaluation() -> None:
    meter, frame = Meter(), encode(Embedding(0, 1, b"abc"))
    meter.add(1, inprocess.Direction.UP, frame)  # type: ignore[attr-defined]
    meter.add(2, inprocess.Direction.DOWN, frame)  # type: ignore[attr-defined]
    meter.add(2, inprocess.Direction.UP, encode(Evaluation(0, 2, b"abcd")))  # type: ignore[attr-defined]
    assert (meter.parties[1].up, meter.parties[2].down, meter.parties[2].evaluation) == (8, 8, 9)
    assert meter.total().total == 25


def test_a_rounds_bytes_are_those_of_its_own_messages() -> None:
    """A party's answer to round t0 is already its embedding of round t0 + 1, and is counted there."""
    fed, meter = federation(rounds=5, batch_size=15), Meter()  # four batches of one size an epoch
    seen = [dict(meter.through(report.t0)) for report in inprocess.rounds(fed.server, fed.parties, meter, 1)]
    for t0, by_party in enumerate(seen):
        assert by_party[1].up == (t0 + 1) * seen[0][1].up
        assert by_party[1].down == (t0 + 1) * seen[0][1].down
    assert seen[-1] == meter.parties
