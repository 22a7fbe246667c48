"""From a short run to the whole one: bytes, seconds and rounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvfl.advise.forecast import Network, forecast, rounds_to, run_bytes, smoothed
from cvfl.advise.trials import Calibration
from cvfl.protocol import Loss, Plan, StepSize

# 25 rows in batches of 10: an epoch is three rounds, the last one of 5 rows.
PLAN = Plan(0, 9, 4, 10, 25, 7, (2, 3), Loss.BINARY, StepSize(eta=0.1), evaluate_every=2)


@pytest.mark.parametrize(
    ("seen", "bytes_"),
    [
        ([100, 100, 60], 3 * 260),  # one epoch: all are like it
        ([100, 100, 60, 40, 40, 20], 260 + 2 * 100),  # they fall: later ones are like the last
        ([100, 100, 60, 40], 260 + 2 * (40 + 100 + 60)),  # an epoch that was seen in part
        ([100, 100], 3 * 250),  # the small batch was not seen: half of the rows, half of the bytes
        ([100] * 12, 900),  # more was seen than is planned
    ],
)
def test_later_epochs_are_like_the_last_one_seen(seen, bytes_):
    assert run_bytes(seen, PLAN) == bytes_


@given(
    rows=st.integers(1, 60),
    batch=st.integers(1, 60),
    rounds=st.integers(1, 80),
    head=st.integers(0, 50),
    a_row=st.integers(0, 9),
    seen=st.integers(1, 80),
)
def test_bytes_that_depend_on_the_batch_alone_are_exact_after_one_epoch(rows, batch, rounds, head, a_row, seen):
    plan = replace(PLAN, rows=rows, batch_size=min(batch, rows), rounds=rounds)
    sent = [head + a_row * len(plan.batch(t0)) for t0 in range(max(rounds, seen))]
    predicted, really = run_bytes(sent[:seen], plan), sum(sent[:rounds])
    if seen >= min(plan.rounds_per_epoch, rounds):
        assert predicted == really
    else:  # a batch that was not seen has a head too small
        assert really - head * (rounds // plan.rounds_per_epoch + 1) <= predicted <= really


@pytest.mark.parametrize("rounds", range(1, 12))
@pytest.mark.parametrize("every", [1, 2, 5, 20])
def test_evaluations_are_those_of_the_plan(rounds, every):
    plan = replace(PLAN, rounds=rounds, evaluate_every=every)
    assert plan.evaluations == sum(plan.evaluates_after(t0) for t0 in range(rounds))
    assert replace(plan, test_rows=0).evaluations == 0


def test_seconds_by_hand():
    seen = Calibration((1.0, 0.5), (100, 100), (300, 300), (1500, 250), seconds=0.2, alignment=7, setup=50, told=20)
    plan = replace(PLAN, rows=20, rounds=10, evaluate_every=3)
    cost = forecast(seen, plan, Network(bandwidth=8000.0, latency=0.03))
    assert (cost.rounds, cost.sent.up, cost.sent.down, cost.evaluation) == (10, 1000, 3000, 1500 + 3 * 250)
    assert (cost.alignment, cost.setup, cost.total) == (7, 50 + 4 * 20, 6387)
    assert cost.compute == pytest.approx(10 * 0.2)
    assert cost.latency == pytest.approx(10 * 2 * 0.03)
    assert cost.transfer == pytest.approx(6.25)  # 6,250 bytes at 1,000 a second
    assert cost.seconds == pytest.approx(2.0 + 0.6 + 6.25)


def test_a_level_is_reached_when_the_mean_stays_there():
    losses = [2.0, 1.0, 0.0, 2.0, 0.5, 0.5, 0.0, 0.5]
    assert smoothed(losses, 1) == losses
    assert smoothed(losses, 2) == [2.0, 1.5, 0.5, 1.0, 1.25, 0.5, 0.25, 0.25]
    assert rounds_to(0.5, smoothed(losses, 2)) == 6  # not 3
    assert rounds_to(2.0, losses) == 1
    assert rounds_to(0.25, smoothed(losses, 2)) == 7
    assert rounds_to(0.2, losses) is None
    assert rounds_to(1.0, [0.5, float("nan")]) is None
