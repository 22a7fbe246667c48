"""PhysioNet/CinC Challenge 2012: in-hospital death from the first 48 hours in intensive care; open to everyone.

PATH/set-a/132539.txt   Time,Parameter,Value            one of 4,000 records for training
PATH/Outcomes-a.txt     RecordID,…,In-hospital_death    their outcomes
PATH/set-b/…, PATH/Outcomes-b.txt                       the same for test

Who measures what is in `physionet2012_series.toml` beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch

from cvfl.data.sets import Progress, shipped
from cvfl.data.sets.timeseries import (
    Chosen,
    Grid,
    Integers,
    Measurements,
    carried_forward,
    constant,
    each_word,
    hourly,
    parsed_together,
    read_apart,
    read_deaths,
    standardised,
)
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError, suggest

HOME = "https://physionet.org/content/challenge-2012/1.0.0/"
FILES = "https://physionet.org/files/challenge-2012/1.0.0/"


@dataclass(frozen=True)
class Variable:
    """A time series: values outside its range are slips of the pen; a skewed one is read as log(1 + x)."""

    name: str
    low: float
    high: float
    skewed: bool


_HOLDINGS = shipped("physionet2012_series.toml")
_SERIES = tuple(
    Variable(name, low, high, name in held["skewed"])
    for held in _HOLDINGS.values()
    for name, (low, high) in held["series"].items()
)
_DESCRIPTORS = ("RecordID", "Age", "Gender", "Height", "ICUType")
_PARAMETERS = (*(variable.name for variable in _SERIES), "MechVent", *_DESCRIPTORS)
# -1 stands for an unknown descriptor; a ventilation of 0 would say as much as no record of one.
_LOW = np.array([*(variable.low for variable in _SERIES), 1.0, *(0.0 for _ in _DESCRIPTORS)])
_HIGH = np.array([*(variable.high for variable in _SERIES), 1.0, *(np.inf for _ in _DESCRIPTORS)])
_CARDIAC_SURGERY_RECOVERY = 2
_OUTCOME = "In-hospital_death"


def load_physionet2012(
    path: Path,
    parties: int = 4,
    dtype: torch.dtype = torch.float32,
    on_progress: Progress = lambda done, total: None,
) -> VerticalData:
    """Set a for training and set b for test: a row is 48 hours x 76 features, divided among the parties.

    76 = 36 series, 36 masks (1 where the hour has a measurement), MechVent, Age, Gender and CardiacSurgery. MechVent
    is only ever recorded as 1, so it is its own mask; CardiacSurgery is ICUType 2, whose patients die least often;
    Height is not used. A series and its mask are always at one party, so each of four parties has 9 x 2 + 1 = 19
    features; another number of parties shares out the same series in the same order, as evenly as they go.

    Series are standardised on the measured training values; a gap keeps the value before it, and starts at the mean.
    The publisher's split is kept.
    """
    parts = _divided_features(parties)
    stays = read_apart(lambda letter: _read_set(Path(path), letter), "a", "b", on_progress)
    names = list(_HOLDINGS) if parties == len(_HOLDINGS) else [f"party{m}" for m in range(1, parties + 1)]
    return stays.shared(_features(stays.grid, stays.train), names, parts, dtype)


def _divided_features(parties: int) -> list[list[int]]:
    """Places of every party's features in the order of `_features`; a series and its mask stay together."""
    units: list[tuple[int, ...]] = []
    for m, held in enumerate(_HOLDINGS.values()):
        own = len(held["series"])
        units += [(i, len(_SERIES) + i) for i in range(m * own, (m + 1) * own)]
        units.append((2 * len(_SERIES) + m,))
    if not 1 <= parties <= len(units):
        raise DataError(f"physionet2012: {len(units)} series and facts cannot be divided among {parties} parties")
    return [[i for unit in part for i in units[unit]] for part in np.array_split(np.arange(len(units)), parties)]


def _features(grid: Grid, train: Chosen) -> Grid:
    """Rows x 48 x 76: all series, their masks, then the fact of every party."""
    series, skewed = grid[..., : len(_SERIES)], [variable.skewed for variable in _SERIES]
    series[..., skewed] = np.log1p(series[..., skewed])
    masks = ~np.isnan(series)
    # Before its first measurement a series stands at its mean, which is 0 once standardised.
    values = carried_forward(standardised(series, train), np.zeros(len(_SERIES)))
    age, gender, unit = (grid[:, 0, _PARAMETERS.index(name)] for name in ("Age", "Gender", "ICUType"))
    known = np.stack([age, gender, unit == _CARDIAC_SURGERY_RECOVERY], axis=1)
    facts = constant(np.nan_to_num(standardised(known, train)))
    beside = dict(zip(("Age", "Gender", "CardiacSurgery"), np.moveaxis(facts, 2, 0), strict=True))
    beside["MechVent"] = (~np.isnan(grid[..., _PARAMETERS.index("MechVent")])).astype(np.float32)
    return np.concatenate([values, masks, *(beside[held["fact"]][..., None] for held in _HOLDINGS.values())], axis=2)


def _read_set(path: Path, letter: str) -> tuple[Grid, Integers]:
    """All parameters of a set on the hourly grid, and whether the patients died."""
    folder = path / f"set-{letter}"
    try:
        texts = {file: file.read_bytes() for file in sorted(folder.glob("*.txt"))}
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from None
    if not texts:
        raise DataError(f"{folder}: no records; {_get(folder.name + '.tar.gz')} and unpack it there")
    for file, text in texts.items():
        _check_start(file, text)
    measured = parsed_together(texts, _parsed, "unpack its archive again").plausible(_LOW, _HIGH)
    labels = _labels(path / f"Outcomes-{letter}.txt", [int(file.stem) for file in texts])
    return hourly(measured, len(texts), len(_PARAMETERS)), labels


def _get(file: str) -> str:
    """Where to get a file."""
    return f"get {file} from {FILES}{file} (see {HOME})"


def _check_start(file: Path, text: bytes) -> None:
    lines = text[:80].splitlines()
    expected = ["Time,Parameter,Value", f"00:00,RecordID,{file.stem}"]
    if [line.decode(errors="replace") for line in lines[:2]] != expected or not file.stem.isdigit():
        raise DataError(f"{file}: it does not start with {expected[0]} and {expected[1]}; unpack its archive again")


def _parsed(texts: Sequence[bytes]) -> Measurements:
    """The lines of the files; `row` is the place of the file among them. Raises ValueError."""
    lines = b"\n".join(text.partition(b"\n")[2] for text in texts)
    words = pa.dictionary(pa.int32(), pa.string())
    table = pyarrow.csv.read_csv(
        pa.BufferReader(lines),
        pyarrow.csv.ReadOptions(column_names=["time", "parameter", "value"]),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"time": words, "parameter": words, "value": pa.float64()}
        ),
    )
    parameter = each_word(table["parameter"], _parameter)
    starts = parameter == _PARAMETERS.index("RecordID")
    if starts.sum() != len(texts):
        raise ValueError(f"{starts.sum()} lines with a RecordID")
    hours = each_word(table["time"], _hours)
    return Measurements(np.cumsum(starts) - 1, parameter.astype(np.int64), hours, table["value"].to_numpy())


def _parameter(name: str) -> int:
    if name not in _PARAMETERS:
        raise ValueError(f"unknown parameter {name!r}{suggest(name, _PARAMETERS)}")
    return _PARAMETERS.index(name)


def _hours(time: str) -> float:
    hours, _, minutes = time.partition(":")
    if not (hours.isdigit() and minutes.isdigit() and len(minutes) == 2):
        raise ValueError(f"{time!r} is not a time such as 07:30")
    return int(hours) + int(minutes) / 60


def _labels(file: Path, records: Sequence[int]) -> Integers:
    """Whether the patient of each record died in hospital."""
    known = dict(zip(*read_deaths(file, ("RecordID", pa.int64()), _OUTCOME, _get(file.name)), strict=True))
    if alone := set(known) ^ set(records):
        record = min(alone)
        lacks = f"record {record} has no outcome" if record in records else f"there is no record {record}"
        raise DataError(f"{file}: {lacks} ({len(alone)} in all); {_get(file.name)} and the records again")
    died = np.array([known[record] for record in records])
    if died.min() == died.max():
        raise DataError(f"{file}: {_OUTCOME} is {died[0]} for all {len(died)} records; there is nothing to learn")
    return died
