"""MIMIC-III: in-hospital death from the first 48 hours in intensive care, as the paper has it.

PATH/PATIENTS.csv.gz, ADMISSIONS.csv.gz, …              the tables as published; the demo's too
PATH/in-hospital-mortality/{train,test}/listfile.csv    what the public project mimic3-benchmarks makes of them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch

from cvfl.data.sets import Progress
from cvfl.data.sets.mimic3_tables import HOME, TABLES, read_measurements, read_stays
from cvfl.data.sets.mimic3_variables import CHANNELS, HIGH, LOW
from cvfl.data.sets.timeseries import (
    Chosen,
    Grid,
    Integers,
    Measurements,
    Stays,
    carried_forward,
    each_word,
    hourly,
    joined,
    parsed_together,
    read_apart,
    read_deaths,
    standardised,
)
from cvfl.data.tables.split import hashed, seed_key
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError

_BENCHMARK = "in-hospital-mortality"
_HEADER = ["Hours", *(channel.name for channel in CHANNELS)]
_AGAIN = "make it again with mimic3-benchmarks"


def load_mimic3(
    path: Path,
    parties: int = 4,
    seed: int = 0,
    test_share: float = 0.18,
    dtype: torch.dtype = torch.float32,
    on_progress: Progress = lambda done, total: None,
) -> VerticalData:
    """Stays of 48 hours x 76 features: 17 channels as 59 values (categories one-hot), then 17 masks of measurement.

    As in the paper the parties hold consecutive features, 19 each if they are four; another number of parties shares
    them as evenly as they go. A gap keeps the value before it, and starts at a normal value; numbers are standardised
    on training rows. Tables are split by patient, so that nobody is on both sides: 0.18 is the paper's share for test.
    The folders of mimic3-benchmarks are split already; there `seed` and `test_share` change nothing.
    """
    features = sum(channel.features for channel in CHANNELS) + len(CHANNELS)
    if not 1 <= parties <= features:
        raise DataError(f"mimic3: {features} features cannot be divided among {parties} parties")
    stays = _read(Path(path), seed, test_share, on_progress)
    parts = [list(part) for part in np.array_split(np.arange(features), parties)]
    names = [f"party{m}" for m in range(1, parties + 1)]
    return stays.shared(_features(stays.grid, stays.train), names, parts, dtype)


def _read(path: Path, seed: int, test_share: float, on_progress: Progress) -> Stays:
    """The stays from whichever layout the folder has."""
    made = path / _BENCHMARK if (path / _BENCHMARK).is_dir() else path
    if any((made / part).is_dir() for part in ("train", "test")):
        return read_apart(lambda part: _read_part(made / part), "train", "test", on_progress)
    if any((path / f"{table}{ending}").is_file() for table in TABLES for ending in (".csv", ".csv.gz")):
        return _from_tables(path, seed, test_share, on_progress)
    tables = ", ".join(f"{table}.csv.gz" for table in TABLES)
    raise DataError(
        f"{path}: put {tables} of {HOME} there, for which it asks a credentialed login, "
        f"or the folder {_BENCHMARK} that mimic3-benchmarks makes of them"
    )


def _features(grid: Grid, train: Chosen) -> Grid:
    """Rows x 48 x 76, in the order of the public benchmark."""
    filled = carried_forward(grid, np.array([channel.start for channel in CHANNELS]))
    scaled = standardised(filled, train)
    parts = [
        filled[..., [place]] == np.arange(channel.features) if channel.categories else scaled[..., [place]]
        for place, channel in enumerate(CHANNELS)
    ]
    return np.concatenate([*parts, ~np.isnan(grid)], axis=2, dtype=np.float32)


def _from_tables(path: Path, seed: int, test_share: float, on_progress: Progress) -> Stays:
    stays = read_stays(path)
    measured = read_measurements(path, stays, on_progress)
    # Nothing can be said of a stay without a single measurement.
    seen, row = np.unique(measured.row, return_inverse=True)
    kept = [stays[place] for place in seen]
    if not kept:
        raise DataError(f"{path}: CHARTEVENTS and LABEVENTS have no measurement of any of {len(stays)} stays")
    grid = hourly(Measurements(row, measured.channel, measured.hours, measured.value), len(kept), len(CHANNELS))
    _, fractions = hashed([str(stay.subject) for stay in kept], seed_key(seed))
    return Stays(grid, np.array([stay.died for stay in kept]), fractions >= test_share)


def _read_part(folder: Path) -> tuple[Grid, Integers]:
    """The episodes that a listfile of mimic3-benchmarks names, and whether they ended in death."""
    file = folder / "listfile.csv"
    names, died = read_deaths(file, ("stay", pa.string()), "y_true", _AGAIN)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{file}: {twice[0]} is listed twice; {_AGAIN}")
    measured = parsed_together(_texts([folder / name for name in names]), _parsed, _AGAIN).plausible(LOW, HIGH)
    return hourly(measured, len(names), len(CHANNELS)), died


def _texts(files: Sequence[Path]) -> dict[Path, bytes]:
    try:
        return {file: file.read_bytes() for file in files}
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}, but listfile.csv names it; {_AGAIN}") from None


def _parsed(texts: Sequence[bytes]) -> Measurements:
    """The lines of the episodes; `row` is the place of the episode among them. Raises ValueError."""
    for text in texts:
        _check_header(text.partition(b"\n")[0])
    bodies = [text.partition(b"\n")[2] for text in texts]
    if not any(body.strip() for body in bodies):
        return joined([])
    words = pa.dictionary(pa.int32(), pa.string())
    types = {channel.name: words if channel.categories else pa.float64() for channel in CHANNELS}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(b"\n".join(bodies)),
        pyarrow.csv.ReadOptions(column_names=_HEADER),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"Hours": pa.float64()} | types, null_values=[""], strings_can_be_null=True
        ),
    )
    row = np.repeat(np.arange(len(bodies)), [sum(map(bool, body.splitlines())) for body in bodies])
    hours, parts = table["Hours"].to_numpy(), []
    for place, channel in enumerate(CHANNELS):
        column = table[channel.name]
        value = each_word(column, channel.code) if channel.categories else column.to_numpy()
        known = ~np.isnan(value)
        parts.append(Measurements(row[known], np.full(known.sum(), place), hours[known], value[known]))
    return joined(parts)


def _check_header(line: bytes) -> None:
    names = line.decode(errors="replace").strip().split(",")
    if missing := [name for name in _HEADER if name not in names]:
        raise ValueError(f"column {missing[0]} is missing")
    if names != _HEADER:
        raise ValueError(f"its columns are not {', '.join(_HEADER)}")
