"""Measurements at odd times on an hourly grid: last value of the hour, previous values carried on, standard scale.

(row, channel, hours, value)  --hourly-->  rows x 48 x channels, NaN where nothing was measured
                              --standardised, carried_forward-->  no NaN left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HOURS = 48
Floats = NDArray[np.float64]
Grid = NDArray[np.float32]
Integers = NDArray[np.int64]
Chosen = NDArray[np.bool_]
Progress = Callable[[int, int], None]
"""How much is read so far, and in all."""


@dataclass(frozen=True)
class Measurements:
    """One measurement a place: whose it is, which channel, hours since the start, and the value."""

    row: Integers
    channel: Integers
    hours: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.row)

    def only(self, chosen: Chosen) -> Measurements:
        """The chosen measurements."""
        return Measurements(self.row[chosen], self.channel[chosen], self.hours[chosen], self.value[chosen])

    def plausible(self, low: Floats, high: Floats) -> Measurements:
        """Those within the first 48 hours and within the range of their channel."""
        in_time = (self.hours >= 0) & (self.hours <= HOURS)
        return self.only(in_time & (self.value >= low[self.channel]) & (self.value <= high[self.channel]))


def joined(parts: Sequence[Measurements]) -> Measurements:
    """All measurements of all parts."""
    return Measurements(
        row=np.concatenate([np.empty(0, np.int64), *(part.row for part in parts)]),
        channel=np.concatenate([np.empty(0, np.int64), *(part.channel for part in parts)]),
        hours=np.concatenate([np.empty(0), *(part.hours for part in parts)]),
        value=np.concatenate([np.empty(0), *(part.value for part in parts)]),
    )


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
