"""The budget's controller: it finds the level that a run can afford, whatever levels do to its bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cvfl.errors import ConfigError, DecodeError
from cvfl.protocol import Loss, Plan, StepSize
from cvfl.protocol.coding.pace import HIGHEST, Pace, least_ease, split_level, with_level
from cvfl.wire import Broadcast, Embedding, Evaluation, Folded, decode, encode

PLAN = Plan(
    seed=1,
    rounds=100,
    Q=1,
    batch_size=10,
    rows=100,
    test_rows=50,
    widths=(2, 2),
    loss=Loss.BINARY,
    step_size=StepSize(eta=0.1),
    sum_width=1,
    evaluate_every=10,
)


def driven(pace: Pace, shrink: float, first: int = 0, last: int = PLAN.rounds) -> list[int]:
    """The levels of rounds in which every sender takes 800 bytes at level 0, and `shrink` of that a level later."""
    levels = []
    for t0 in range(first, last):
        packet = bytes(round(800 * shrink**pace.level))
        pace.next_level(t0, [Embedding(t0, m, packet) for m in (1, 2)])
        packet = bytes(round(800 * shrink**pace.level))
        pace.answered(t0, [Folded(t0, packet, ())] * 2)
        if PLAN.evaluates_after(t0):
            packet = bytes(round(5000 * shrink**pace.level))
            pace.evaluated([Evaluation(t0, m, packet) for m in (1, 2)])
        levels.append(pace.level)
    return levels


NEEDED = 100 * 4 * 807 + 20 * 5010
"""Bytes without a budget."""


@pytest.mark.parametrize("shrink", [0.8, 0.875, 0.93])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_level_that_a_budget_allows_is_found(share: float, shrink: float) -> None:
    budget = round(share * NEEDED) + 3000
    pace = Pace(PLAN, budget, around=3000)
    driven(pace, shrink)
    assert 0.95 * budget < pace.spent + 3000 < 1.05 * budget


def test_what_is_not_needed_is_not_sent() -> None:
    pace = Pace(PLAN, 2 * NEEDED)
    assert set(driven(pace, 0.9)) == {0}
    assert pace.spent == pytest.approx(NEEDED, rel=0.01)


def test_a_restart_goes_on_as_if_nothing_had_happened() -> None:
    whole, first = Pace(PLAN, NEEDED // 2), Pace(PLAN, NEEDED // 2)
    levels = driven(whole, 0.9)
    assert len(set(levels[47:])) > 1
    assert driven(first, 0.9, last=47) == levels[:47]
    again = Pace(PLAN, NEEDED // 2)
    again.load_state_dict(first.state_dict())
    assert driven(again, 0.9, first=47) == levels[47:]
    assert again.spent == whole.spent


def test_a_run_that_cannot_be_kept_within_its_budget_ends_before_it_exceeds_it() -> None:
    budget = NEEDED // 3
    pace = Pace(PLAN, budget)
    with pytest.raises(ConfigError, match=r"^budget: 141,000 bytes are used up after \d+ of 100 rounds; give more"):
        driven(pace, 1.0)
    assert pace.level == HIGHEST
    assert 0.9 * budget < pace.spent <= 1.05 * budget


def test_a_budget_that_frames_alone_exceed_is_refused_at_once() -> None:
    least = 3000 + 2 * 8 * (200 + 10)
    Pace(PLAN, least, around=3000)
    with pytest.raises(ConfigError, match=r"budget: 6,359 bytes, but 100 rounds and 10 evaluations take 6,360"):
        Pace(PLAN, least - 1, around=3000)


def test_nothing_held_out_is_nothing_to_foresee() -> None:
    pace = Pace(replace(PLAN, test_rows=0), NEEDED)
    pace.next_level(0, [Embedding(0, 1, b"x" * 100)])
    assert pace.level == 0


def test_levels_are_coarser_one_after_another_and_held_out_rows_are_never_finer_than_without_one() -> None:
    assert least_ease(0) == (0.0, 0.0)
    for level in range(1, HIGHEST):
        for one, next_ in zip(least_ease(level), least_ease(level + 1), strict=True):
            assert 1.3 < next_ / one <= 1.5
    assert least_ease(16) == (1.0, 16.0)


def test_a_level_travels_behind_the_model_as_one_byte() -> None:
    bare = Folded(3, b"sum", (b"piece",))
    told = decode(encode(with_level(bare, 17)))
    assert isinstance(told, Folded)
    assert split_level(told.model, 1) == ((b"piece",), 17)
    assert split_level(bare.model, 1) == ((b"piece",), None)
    assert len(encode(with_level(bare, 17))) == len(encode(bare)) + 2
    assert encode(with_level(Folded(3, b"sum", ()), 17)).hex(" ")[:-6] == "29 03 02 03 73 75 6d 11"
    assert encode(with_level(Broadcast(3, (), ((2, b"h"),)), 17)).hex(" ")[:-6] == "22 03 02 00 01 11 02 68"


@pytest.mark.parametrize("packet", [b"", b"\x01\x02", bytes([HIGHEST + 1])])
def test_a_level_that_is_none_is_refused(packet: bytes) -> None:
    with pytest.raises(DecodeError, match="a level of the budget that is none"):
        split_level((b"piece", packet), 1)
