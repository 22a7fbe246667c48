"""Local steps on rows that were sent before: which rows they are, and what everyone recalls of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cvfl.compress import build
from cvfl.errors import ConfigError
from cvfl.memory import Memory
from cvfl.protocol import Codec, Loss, Plan, StepSize
from cvfl.protocol.coding.codec import Samples

ROWS, B, P = 23, 5, 3


def plan(cached: bool = True, seed: int = 3, **changes: object) -> Plan:
    values: dict[str, object] = {"widths": (P, P), "loss": Loss.BINARY, "step_size": StepSize(eta=0.1)}
    return Plan(seed, 30, 4, B, ROWS, 0, cached=cached, **(values | changes))  # type: ignore[arg-type]


def test_the_first_step_takes_the_batch_and_without_a_cache_all_do() -> None:
    for t0 in range(12):
        assert torch.equal(plan().local_rows(t0, 0), plan().batch(t0))
        for q in range(4):
            assert torch.equal(plan(cached=False).local_rows(t0, q), plan().batch(t0))


def test_later_steps_take_any_rows_that_were_sent() -> None:
    sent: set[int] = set()
    for t0 in range(12):
        sent |= set(plan().batch(t0).tolist())
        drawn = torch.cat([plan().local_rows(t0, q) for q in range(1, 60)])
        assert len(drawn) == 59 * B
        assert set(drawn.tolist()) <= sent
    assert sent == set(range(ROWS))
    times = torch.bincount(torch.cat([plan().local_rows(11, q) for q in range(1, 1001)]), minlength=ROWS)
    usual = 1000 * B / ROWS
    assert ((times - usual).abs() < 5 * usual**0.5).all()  # each as often as any other


def test_rows_are_the_same_at_all_roles_and_others_in_another_round_or_run() -> None:
    assert torch.equal(plan().local_rows(7, 2), plan().local_rows(7, 2))
    assert not torch.equal(plan().local_rows(7, 2), plan().local_rows(8, 2))
    assert not torch.equal(plan().local_rows(7, 2), plan().local_rows(7, 1))
    assert not torch.equal(plan().local_rows(7, 2), plan(seed=4).local_rows(7, 2))


@pytest.mark.parametrize("changes", [{"algorithm": 2}, {"secure": True}])
def test_where_the_others_cannot_be_read_nothing_is_cached(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="cached rows are for algorithm 1"):
        plan(**changes)


def codec(spec: str, memory: Memory) -> Codec:
    return Codec(build(spec), 3, 1, "one", samples=Samples(plan().batch, ROWS, memory), remembers=True)


def restarted(old: Codec, spec: str, memory: Memory, t0: int) -> Codec:
    new, state = codec(spec, memory), old.state_dict(t0)
    new.load_state_dict({key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()})
    return new


SPECS = ["identity", "scalar:bits=3", "feedback(scalar:bits=2)", "entropy(feedback(deadzone))", "entropy(shaped)"]


@pytest.mark.parametrize("spec", [*SPECS, "feedback(entropy(shaped))"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_what_is_recalled_is_what_was_decoded_last(
    spec: str, restarts: bool, dtype: torch.dtype, limit: int, tmp_path: Path
) -> None:
    """Against a table that a plain loop keeps: at the sender, also when it has gone on, and at a receiver."""
    memory, table = Memory(limit, tmp_path), torch.full((ROWS, P), torch.nan, dtype=dtype)
    sender, receiver = codec(spec, memory), codec(spec, memory)
    asked: list[tuple[Tensor, Tensor]] = []
    random = torch.Generator().manual_seed(1)
    for t0 in range(14):
        batch = plan().batch(t0)
        data = sender.encode(torch.randn(len(batch), P, generator=random, dtype=dtype), t0)
        for rows, known in asked:  # the sender has sent the next packet, which does not count yet
            assert torch.equal(sender.recall(rows, t0 - 1, dtype), known)
            assert torch.equal(receiver.recall(rows, t0 - 1, dtype), known)
        decoded = receiver.decode(data, t0, (len(batch), P), dtype)
        for row, value in zip(batch.tolist(), decoded, strict=True):
            table[row] = value
        if restarts:
            sender, receiver = (restarted(end, spec, memory, t0) for end in (sender, receiver))
        asked = [(rows, table[rows]) for rows in (plan().local_rows(t0, q) for q in range(9))]
        for rows, known in asked:
            assert torch.equal(sender.recall(rows, t0, dtype), known)
            assert torch.equal(receiver.recall(rows, t0, dtype), known)
        sender.observe(torch.randn(len(batch), P, generator=random, dtype=dtype), 0.5, decoded)
    assert table.isfinite().all()
    assert bool(list(tmp_path.iterdir())) == (limit == 0)
