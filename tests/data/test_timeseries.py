from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cvfl.data.sets.timeseries import (
    HOURS,
    Measurements,
    carried_forward,
    constant,
    divided,
    each_word,
    hourly,
    joined,
    parsed_together,
    standardised,
)
from cvfl.errors import DataError

GRIDS = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.just(HOURS), st.integers(1, 3)),
    elements=st.sampled_from([np.nan, 1, 2]),
)


def measured(*events: tuple[int, int, float, float]) -> Measurements:
    row, channel, hours, value = zip(*events, strict=True)
    return Measurements(np.array(row), np.array(channel), np.array(hours, float), np.array(value, float))


def test_the_last_value_of_an_hour_stays_whatever_the_order_of_the_events() -> None:
    grid = hourly(measured((0, 0, 2.9, 7), (0, 0, 2.1, 5), (0, 0, 2.5, 9)), rows=1, channels=1)
    assert grid[0, 2, 0] == 7
    assert np.isnan(np.delete(grid[0, :, 0], 2)).all()


def test_the_larger_of_two_values_at_the_same_time_stays() -> None:
    assert hourly(measured((0, 0, 3.5, 8), (0, 0, 3.5, 6)), 1, 1)[0, 3, 0] == 8


@pytest.mark.parametrize(("hours", "step"), [(0, 0), (0.01, 0), (1, 0), (1.01, 1), (47.5, 47), (48, 47)])
def test_an_hour_ends_with_its_full_hour(hours: float, step: int) -> None:
    assert np.flatnonzero(~np.isnan(hourly(measured((0, 0, hours, 1)), 1, 1)[0, :, 0])).tolist() == [step]


def test_measurements_outside_48_hours_or_the_range_of_their_channel_are_dropped() -> None:
    events = measured((0, 0, -0.5, 5), (0, 0, 48.5, 5), (0, 0, 1, 11), (0, 1, 1, 11), (0, 0, 1, np.nan), (1, 0, 48, 5))
    kept = events.plausible(low=np.array([0.0, 10.0]), high=np.array([10.0, 20.0]))
    assert list(zip(kept.row, kept.channel, kept.value, strict=True)) == [(0, 1, 11), (1, 0, 5)]


def test_nothing_measured_is_a_grid_of_gaps() -> None:
    assert np.isnan(hourly(joined([]), rows=2, channels=3)).all()


@given(GRIDS)
def test_a_gap_takes_the_value_before_it_or_the_start(grid: np.ndarray) -> None:
    filled = carried_forward(grid, np.full(grid.shape[2], 9.0))
    for row, channel in np.ndindex(grid.shape[0], grid.shape[2]):
        last = 9.0
        for step in range(HOURS):
            last = last if np.isnan(grid[row, step, channel]) else grid[row, step, channel]
            assert filled[row, step, channel] == last


@given(GRIDS)
def test_known_training_values_have_mean_0_and_deviation_1_and_gaps_stay(grid: np.ndarray) -> None:
    train = np.arange(len(grid)) < max(1, len(grid) - 1)
    scaled = standardised(grid, train)
    assert np.array_equal(np.isnan(scaled), np.isnan(grid))
    for channel in range(grid.shape[2]):
        values, before = scaled[train][..., channel], grid[train][..., channel]
        known = values[~np.isnan(values)]
        if known.size:
            assert known.mean() == pytest.approx(0, abs=1e-5)
        if len(np.unique(before[~np.isnan(before)])) > 1:
            assert known.std() == pytest.approx(1, abs=1e-5)


def test_rows_outside_training_do_not_move_the_scale() -> None:
    grid = np.array([[[1.0], [3.0]], [[2.0], [2.0]]], dtype=np.float32)
    other = np.array([[[1.0], [3.0]], [[9.0], [5.0]]], dtype=np.float32)
    train = np.array([True, False])
    assert np.array_equal(standardised(grid, train)[0], standardised(other, train)[0])
    assert standardised(other, train)[1].ravel().tolist() == [7.0, 3.0]


def test_facts_say_the_same_every_hour() -> None:
    facts = np.array([[1.0, 2.0]], dtype=np.float32)
    assert np.array_equal(constant(facts), np.broadcast_to(facts[:, None], (1, HOURS, 2)))


def test_parties_get_their_own_features_of_the_chosen_rows() -> None:
    features = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    first, second = divided(features, [[2], [0, 1]], np.array([False, True]), torch.float64)
    assert first.tolist() == [[[8.0], [11.0]]]
    assert second.tolist() == [[[6.0, 7.0], [9.0, 10.0]]]
    assert first.dtype == torch.float64


def test_words_become_numbers_and_gaps_stay_gaps_across_chunks() -> None:
    column = pa.chunked_array([pa.array(["a", None]).dictionary_encode(), pa.array(["ccc", "a"]).dictionary_encode()])
    assert np.array_equal(each_word(column, len), [1, np.nan, 3, 1], equal_nan=True)


def test_the_file_at_fault_is_named() -> None:
    def parse(texts: list[bytes]) -> Measurements:
        numbers = [float(text) for text in texts]
        return measured(*((row, 0, 1, number) for row, number in enumerate(numbers)))

    good = {Path("a"): b"1", Path("b"): b"2"}
    assert parsed_together(good, parse, "again").value.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"^c: could not convert .*; again$"):
        parsed_together(good | {Path("c"): b"x"}, parse, "again")
