"""Measurements at odd times on an hourly grid: last value of the hour, previous values carried on, standard scale.

(row, channel, hours, value)  --hourly-->  rows x 48 x channels, NaN where nothing was measured
                              --standardised, carried_forward-->  no NaN left
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.data.sets import Progress
from cvfl.data.tables.spill import one_line
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError
from cvfl.protocol import Loss

HOURS = 48
_SLACK = 1e-6  # hours that rounding may add
Floats = NDArray[np.float64]
Grid = NDArray[np.float32]
Integers = NDArray[np.int64]
Chosen = NDArray[np.bool_]


@dataclass(frozen=True)
class Measurements:
    """One measurement a place: whose it is, which channel, hours since the start, and the value."""

    row: Integers
    channel: Integers
    hours: Floats
    value: Floats

    def plausible(self, low: Floats, high: Floats) -> Measurements:
        """Those within the first 48 hours and within the range of their channel."""
        in_time = (self.hours > -_SLACK) & (self.hours < HOURS + _SLACK)
        kept = in_time & (self.value >= low[self.channel]) & (self.value <= high[self.channel])
        return Measurements(self.row[kept], self.channel[kept], self.hours[kept], self.value[kept])


def joined(parts: Sequence[Measurements]) -> Measurements:
    """All measurements of all parts."""
    return Measurements(
        row=np.concatenate([np.empty(0, np.int64), *(part.row for part in parts)]),
        channel=np.concatenate([np.empty(0, np.int64), *(part.channel for part in parts)]),
        hours=np.concatenate([np.empty(0), *(part.hours for part in parts)]),
        value=np.concatenate([np.empty(0), *(part.value for part in parts)]),
    )


def parsed_together(
    texts: Mapping[Path, bytes], parse: Callable[[Sequence[bytes]], Measurements], remedy: str
) -> Measurements:
    """What thousands of small files hold: all at once, which is far quicker, then singly to name the one at fault."""
    try:
        return parse(list(texts.values()))
    except ValueError:
        for file, text in texts.items():
            try:
                parse([text])
            except ValueError as error:
                raise DataError(f"{file}: {one_line(error)}; {remedy}") from None
        raise


def each_word(column: pa.ChunkedArray, convert: Callable[[str], float]) -> Floats:
    """A dictionary column of few different words, each converted once; NaN for a gap."""
    words = column.unify_dictionaries().combine_chunks()
    numbers = np.array([*map(convert, words.dictionary.to_pylist()), np.nan])
    each: Floats = numbers[words.indices.fill_null(len(numbers) - 1).to_numpy()]
    return each


def hourly(measured: Measurements, rows: int, channels: int) -> Grid:
    """Rows x 48 x channels: the last value of every hour (h, h + 1], the larger of two at one time, NaN if none."""
    order = np.lexsort((measured.value, measured.hours))
    step = np.clip(np.ceil(measured.hours[order]) - 1, 0, HOURS - 1).astype(np.int64)
    grid = np.full((rows, HOURS, channels), np.nan, dtype=np.float32)
    # NumPy assigns in order, so the latest of several values stays.
    grid[measured.row[order], step, measured.channel[order]] = measured.value[order]
    return grid


def carried_forward(grid: Grid, start: Floats) -> Grid:
    """Every gap filled with the value before it, and before the first value with the channel's `start`."""
    filled = np.empty_like(grid)
    value = np.broadcast_to(start.astype(np.float32), grid[:, 0].shape)
    for step in range(grid.shape[1]):
        value = np.where(np.isnan(grid[:, step]), value, grid[:, step])
        filled[:, step] = value
    return filled


def standardised(grid: Grid, train: Chosen) -> Grid:
    """Each channel with mean 0 and deviation 1 over what is known of the training rows; what is unknown stays NaN."""
    known = grid[train].reshape(-1, grid.shape[-1])
    count = np.maximum(np.sum(~np.isnan(known), axis=0), 1)
    mean = np.nansum(known, axis=0, dtype=np.float64) / count
    deviation = np.sqrt(np.nansum((known - mean.astype(np.float32)) ** 2, axis=0, dtype=np.float64) / count)
    scaled: Grid = (grid - mean.astype(np.float32)) / np.where(deviation > 0, deviation, 1.0).astype(np.float32)
    return scaled


def constant(facts: Grid) -> Grid:
    """Facts about a row as channels that say the same every hour."""
    return np.repeat(facts[:, None, :], HOURS, axis=1)


def divided(features: Grid, parts: Sequence[Sequence[int]], rows: Chosen, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The chosen rows of every party, each with its own part of the features."""
    chosen = features[rows]
    return tuple(torch.from_numpy(chosen[..., list(part)]).to(dtype) for part in parts)


@dataclass(frozen=True)
class Stays:
    """Stays on the hourly grid (numbers, or codes of categories), whether they ended in death, and which train."""

    grid: Grid
    died: Integers
    train: Chosen

    def shared(
        self, features: Grid, names: Sequence[str], parts: Sequence[Sequence[int]], dtype: torch.dtype
    ) -> VerticalData:
        """What the grid became, divided among parties."""
        labels = torch.from_numpy(self.died).to(dtype)
        return VerticalData(
            names=tuple(names),
            train=divided(features, parts, self.train, dtype),
            test=divided(features, parts, ~self.train, dtype),
            train_labels=labels[self.train],
            test_labels=labels[~self.train],
            loss=Loss.BINARY,
        )


def read_apart(read: Callable[[str], tuple[Grid, Integers]], train: str, test: str, on_progress: Progress) -> Stays:
    """Stays that their publisher has split already: `read` gives the grid and the deaths of either part."""
    grids, deaths = [], []
    for part in (train, test):
        grid, died = read(part)
        grids.append(grid)
        deaths.append(died)
        on_progress(len(grids), 2)
    return Stays(np.concatenate(grids), np.concatenate(deaths), np.arange(sum(map(len, deaths))) < len(deaths[0]))


def read_deaths(file: Path, key: tuple[str, pa.DataType], outcome: str, remedy: str) -> tuple[list[Any], Integers]:
    """Two columns of a CSV file: whose stay it was, and whether it ended in death."""
    name, kind = key
    try:
        table = pyarrow.csv.read_csv(file)
        if missing := [column for column in (name, outcome) if column not in table.column_names]:
            raise DataError(f"{file}: column {missing[0]} is missing; {remedy}")
        whose, died = table[name].cast(kind).to_pylist(), table[outcome].cast(pa.int64()).to_numpy()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file}: {one_line(error)}; {remedy}") from None
    if len(odd := died[(died != 0) & (died != 1)]):
        raise DataError(f"{file}: {outcome} is {odd[0]} for a stay, not 0 or 1; {remedy}")
    return whose, died
