"""Running means of outer products, against their definition; of many columns the leading directions."""

import time

import pytest
import torch
from torch import Tensor

from cvfl.compress.moments import LEADING, WHOLE, Moments, directions


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean(batches: list[Tensor], weights: list[float]) -> Tensor:
    """By its definition: each batch counts a fifth, what was before it four fifths."""
    total = weights[0] * batches[0].t() @ batches[0] / len(batches[0])
    for x, weight in zip(batches[1:], weights[1:], strict=True):
        total = 0.8 * total + 0.2 * weight * x.t() @ x / len(x)
    return total


def moments(batches: list[Tensor], weights: list[float] | None = None) -> Moments:
    found = Moments()
    for x, weight in zip(batches, weights or [1.0] * len(batches), strict=True):
        found.add(x, weight)
    return found


def matrix(kept: Moments) -> Tensor:
    """All of it, however it is kept."""
    assert kept.kept is not None
    return kept.kept.t() @ kept.kept if kept.factored else kept.kept


@pytest.mark.parametrize("P", [1, 7, WHOLE])
def test_of_few_columns_the_mean_itself(P):
    batches, weights = [numbers(rows, P, seed=rows) for rows in (1, 30, 9)], [2.0, 0.5, 7.0]
    found = moments(batches, weights)
    torch.testing.assert_close(matrix(found), mean(batches, weights), rtol=1e-12, atol=1e-12)
    assert found.trace == pytest.approx(float(mean(batches, weights).trace()))
    assert found.within(None) is found.kept
    assert not found.factored


@pytest.mark.parametrize("rows", [1, LEADING, LEADING + 1, 700])
def test_of_many_columns_the_same_if_there_are_no_more_than_the_leading_directions(rows):
    """Data of 40 directions among 300 columns; batches of all sizes, also such as are taken in parts."""
    mix = numbers(40, WHOLE + 44, seed=5)
    batches, weights = [numbers(n, 40, seed=n) @ mix for n in (rows, 30, rows)], [2.0, 0.5, 7.0]
    found, expected = moments(batches, weights), mean(batches, weights)
    assert found.factored
    assert len(found.kept) <= LEADING
    torch.testing.assert_close(matrix(found), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    assert found.trace == pytest.approx(float(expected.trace()))
    space = torch.linalg.qr(numbers(WHOLE + 44, 6))[0]
    torch.testing.assert_close(found.within(space), space.t() @ expected @ space, rtol=1e-9, atol=1e-6)


def test_what_is_left_out_is_what_varies_least():
    """Strong directions among weak ones in all columns: the strong ones are kept, and nothing is made up."""
    P, strong = 400, 20
    sizes = torch.cat([torch.full((strong,), 10.0), torch.full((P - strong,), 0.1)]).double()
    batches = [numbers(300, P, seed=t0) * sizes for t0 in range(4)]
    found, expected = matrix(moments(batches)), mean(batches, [1.0] * 4)
    torch.testing.assert_close(found[:strong, :strong], expected[:strong, :strong], rtol=1e-3, atol=0.1)
    assert float(torch.linalg.eigvalsh(expected - found)[0]) > -1e-9
    assert float(found.trace()) > 0.99 * float(expected.trace())


def test_many_rows_of_many_columns_are_quick():
    found, started = Moments(), time.process_time()
    found.add(numbers(3000, 1024))
    assert time.process_time() - started < 5  # a decomposition of 3,000 x 3,000 takes longer


def test_directions_span_what_was_seen():
    P = WHOLE + 10
    one, two = (moments([numbers(50, 3, seed=seed) @ numbers(3, P, seed=9 + seed)]) for seed in (0, 1))
    one.kept *= 1e-9
    space = directions(one, two)
    assert space.shape == (P, 6)
    torch.testing.assert_close(space.t() @ space, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-8)
    for moment in (one, two):
        inside = space @ moment.within(space) @ space.t()
        torch.testing.assert_close(inside, matrix(moment), rtol=1e-6, atol=1e-9 * moment.trace)


def test_all_directions_of_few_columns():
    assert directions(moments([numbers(9, 4)]), Moments()) is None
    assert directions(moments([numbers(9, WHOLE)])) is None


def test_nothing_was_seen():
    assert Moments().trace == 0.0
    assert not Moments().factored
    nothing, some = moments([torch.zeros(5, 300, dtype=torch.float64)]), moments([numbers(5, 300)])
    assert directions(some, nothing).shape == (300, 5)
