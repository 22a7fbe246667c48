"""What receivers take of a row: what the basis of the last packet can show, and nothing that an older one left."""

from __future__ import annotations

import torch
from torch import Tensor

from cvfl.compress import build
from cvfl.protocol.coding.codec import Codec, Samples

ROWS, P = 24, 6
SEES_FIRST, SEES_LAST = torch.eye(P)[:2], torch.eye(P)[-2:]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def codec() -> Codec:
    samples = Samples(lambda t0: torch.arange(ROWS), ROWS)
    return Codec(build("feedback(entropy(shaped:tolerance=0.01))"), 1, 1, "bank", samples=samples)


def gradient(seen: Tensor) -> Tensor:
    """One that lies in these directions alone."""
    return numbers(ROWS, len(seen), seed=5) @ seen / ROWS


def sent(ends: list[Codec], h: Tensor, t0: int) -> list[Tensor]:
    """One round: the first end sends, all decode."""
    data = ends[0].encode(h, t0)
    return [end.decode(data, t0, tuple(h.shape), h.dtype) for end in ends]


def turned() -> tuple[list[Codec], Tensor]:
    """Two ends after rounds in which the loss saw some directions, and then others; and what was sent in the last."""
    ends, h = [codec(), codec()], numbers(ROWS, P, seed=1)
    for t0 in range(40):
        seen = SEES_FIRST if t0 < 3 else SEES_LAST
        ends[0].observe(gradient(seen), 0.5, h)
        h = h + 0.01 * numbers(ROWS, P, seed=10 + t0)
        found = sent(ends, h, t0)
        assert torch.equal(*found)
    return ends, h


def test_what_was_sent_in_another_basis_is_not_used() -> None:
    ends, h = turned()
    back = ends[1].recall(torch.arange(ROWS), 39, torch.float32)
    off = (back - h).norm(dim=0) / h.norm(dim=0)
    assert float(off[-2:].max()) < 0.3  # what the loss sees
    span = ends[1].compressor.span
    assert span is not None
    assert span.shape[1] < P
    torch.testing.assert_close(back.double() @ span @ span.t(), back.double(), rtol=0, atol=1e-6)


def test_a_row_is_taken_alike_before_and_after_its_round_is_over() -> None:
    ends, _ = turned()
    rows = torch.tensor([3, 0, 17])
    now = ends[1].recall(rows, 39, torch.float32)
    ends[1].state_dict(40)  # the round is over
    assert torch.equal(ends[1].recall(rows, 40, torch.float32), now)


def test_a_restart_takes_the_same() -> None:
    ends, _ = turned()
    again, rows = codec(), torch.arange(ROWS)
    again.load_state_dict(ends[1].state_dict(40))
    assert torch.equal(again.recall(rows, 40, torch.float32), ends[1].recall(rows, 40, torch.float32))


def test_the_error_that_is_measured_is_that_of_what_is_used() -> None:
    ends, h = turned()
    data = ends[0].encode(h, 40)
    back = ends[1].decode(data, 40, tuple(h.shape), h.dtype)
    measured = ends[0].measure(h, data, 40)
    torch.testing.assert_close(measured.error, float((back - h).double().square().sum()), rtol=1e-5, atol=1e-8)
    assert measured.error <= measured.worst


def test_before_anything_was_sent_all_directions_count() -> None:
    assert codec().compressor.span is None
