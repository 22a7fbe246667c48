"""Quiet messages: dropout is left out of what parties send, and the server draws noise like it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cvfl.errors import ConfigError
from cvfl.protocol import Loss, Plan
from cvfl.protocol.learning.layers import Dropout, Forward
from cvfl.protocol.learning.optimizer import StepSize
from cvfl.protocol.learning.spread import Spread, noise_like
from cvfl.rng import stream


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plan(**changes: object) -> Plan:
    values: dict[str, object] = {"seed": 3, "rounds": 40, "Q": 4, "batch_size": 5, "rows": 17, "test_rows": 0}
    values |= {"widths": (3, 20), "loss": Loss.BINARY, "step_size": StepSize(eta=0.1), "cached": True}
    return Plan(**(values | {"quiet": True} | changes))  # type: ignore[arg-type]


def outer(n: Tensor) -> Tensor:
    return n.t() @ n / len(n)


def test_the_square_of_the_root_is_the_mean_outer_product() -> None:
    spread, noise = Spread(4, torch.float64), numbers(100, 4) @ numbers(4, 4, seed=1)
    for _ in range(300):  # what was there before is forgotten
        spread.see(noise)
    root = spread.root(torch.arange(4))
    torch.testing.assert_close(root, root.t())
    torch.testing.assert_close(root @ root, outer(noise))
    assert torch.equal(spread.root(torch.tensor([2, 0])), root[[2, 0]])


def test_there_is_no_noise_before_any_was_seen() -> None:
    assert not Spread(3, torch.float32).root(torch.arange(3)).any()


def test_noise_is_like_what_was_seen() -> None:
    spread, noise = Spread(3, torch.float64), numbers(500, 3) * torch.tensor([2.0, 1.0, 0.0])
    for _ in range(300):
        spread.see(noise)
    root = spread.root(torch.arange(3))
    first, second = noise_like([root, root], 200_000, stream(1, "test"))
    for drawn in (first, second):
        torch.testing.assert_close(outer(drawn), outer(noise), rtol=0.02, atol=0.02)
        assert float(drawn.mean(0).abs().max()) < 0.02
    assert float((first.t() @ second / len(first)).abs().max()) < 0.03
    assert torch.equal(first, noise_like([root], 200_000, stream(1, "test"))[0])


def test_a_restart_goes_on_with_the_same_root() -> None:
    spread, again = Spread(3, torch.float32), Spread(3, torch.float32)
    spread.see(numbers(10, 3))
    again.load_state_dict(spread.state_dict())
    assert torch.equal(spread.root(torch.arange(3)), again.root(torch.arange(3)))


def test_quietly_leaves_out_dropout_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(3, 8, dtype=torch.float64), Dropout(0.5)).train()
    x, embed = numbers(6, 3), Forward(model, 1, 2, numbers(2, 3))
    quiet = embed.quietly(x, 0)
    assert embed.drops
    assert torch.equal(quiet, model[0](x).detach())
    assert not torch.equal(quiet, embed(x, 0, 0))
    assert not quiet.requires_grad
    assert not Forward(model[0], 1, 2, numbers(2, 3)).drops


def test_every_row_of_the_root_is_told_in_turn() -> None:
    told = [plan().noise_rows(2, t0).tolist() for t0 in range(5)]
    assert told[:3] == [[*range(8)], [*range(8, 16)], [16, 17, 18, 19, 0, 1, 2, 3]]
    assert plan().noise_rows(1, 7).sort()[0].tolist() == [0, 1, 2]  # all of few
    assert [plan().noise_told(t0) for t0 in range(4)] == [False, False, True, True]
    assert {row for rows in told[:3] for row in rows} == {*range(20)}


def test_rows_of_the_root_follow_those_of_the_batch() -> None:
    batch, sent = plan().batch(1), plan().sent_rows(2, 1)
    assert torch.equal(sent, torch.cat([batch, 17 + torch.arange(8, 16)]))
    assert torch.equal(plan(quiet=False).sent_rows(2, 1), batch)


def test_the_server_needs_what_it_was_told_before() -> None:
    with pytest.raises(ConfigError, match="cached rows"):
        plan(cached=False)
