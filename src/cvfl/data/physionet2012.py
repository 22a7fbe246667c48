"""PhysioNet/CinC Challenge 2012: in-hospital death from the first 48 hours in intensive care; open to everyone.

    PATH/set-a/132539.txt   Time,Parameter,Value      a record a file, 4,000 of them: training (or PATH/set-a.zip)
    PATH/Outcomes-a.txt     RecordID,…,In-hospital_death
    PATH/set-b, PATH/Outcomes-b.txt                   the same for test
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import compute, csv

from cvfl.data.timeseries import (
    Floats,
    Integers,
    Measurements,
    carried_forward,
    constant,
    divided,
    hourly,
    standardised,
)
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError, suggest
from cvfl.protocol import Loss
from cvfl.rng import SPLIT, stream

HOME = "https://physionet.org/content/challenge-2012/1.0.0/"
FILES = tuple(
    (f"https://physionet.org/files/challenge-2012/1.0.0/{file}", file)
    for file in ("set-a.zip", "set-b.zip", "Outcomes-a.txt", "Outcomes-b.txt")
)


@dataclass(frozen=True)
class Variable:
    """A time series: values outside its range are slips of the pen; a skewed one is read as log(1 + x)."""

    name: str
    low: float
    high: float
    skewed: bool = False


# Who measures what, nine series each, and the one fact beside them that has no mask of its own.
_HOLDINGS: dict[str, tuple[tuple[Variable, ...], str]] = {
    "monitor": (
        (
            Variable("HR", 10, 300),
            Variable("SysABP", 30, 300),
            Variable("DiasABP", 10, 200),
            Variable("MAP", 20, 250),
            Variable("NISysABP", 30, 300),
            Variable("NIDiasABP", 10, 200),
            Variable("NIMAP", 20, 250),
            Variable("RespRate", 3, 80),
            Variable("Temp", 25, 45),
        ),
        "Gender",
    ),
    "chemistry": (
        (
            Variable("Na", 90, 190),
            Variable("K", 1, 12),
            Variable("Mg", 0.1, 10),
            Variable("HCO3", 1, 60),
            Variable("BUN", 0, 250, skewed=True),
            Variable("Creatinine", 0, 30, skewed=True),
            Variable("Glucose", 5, 2000, skewed=True),
            Variable("Albumin", 0.5, 7),
            Variable("Cholesterol", 10, 600),
        ),
        "Age",
    ),
    "haematology": (
        (
            Variable("HCT", 5, 70),
            Variable("WBC", 0, 500, skewed=True),
            Variable("Platelets", 0, 2500, skewed=True),
            Variable("ALP", 0, 5000, skewed=True),
            Variable("ALT", 0, 25000, skewed=True),
            Variable("AST", 0, 40000, skewed=True),
            Variable("Bilirubin", 0, 80, skewed=True),
            Variable("TroponinI", 0, 100, skewed=True),
            Variable("TroponinT", 0, 50, skewed=True),
        ),
        "CardiacSurgery",
    ),
    "ward": (
        (
            Variable("GCS", 3, 15),
            Variable("Urine", 0, 3000, skewed=True),
            Variable("Weight", 25, 300, skewed=True),
            Variable("FiO2", 0.2, 1),
            Variable("SaO2", 20, 100),
            Variable("PaO2", 15, 700, skewed=True),
            Variable("PaCO2", 5, 150),
            Variable("pH", 6.5, 8),
            Variable("Lactate", 0, 40, skewed=True),
        ),
        "MechVent",
    ),
}
_VARIABLES = tuple(variable for series, _ in _HOLDINGS.values() for variable in series)
_DESCRIPTORS = ("RecordID", "Age", "Gender", "Height", "ICUType")
_PARAMETERS = (*(variable.name for variable in _VARIABLES), "MechVent", *_DESCRIPTORS)
_HEADER = b"Time,Parameter,Value"
_CARDIAC_SURGERY_RECOVERY = 2


def load_physionet2012(
    path: Path, parties: int = 4, seed: int = 0, validation_share: float = 0.0, dtype: torch.dtype = torch.float32
) -> VerticalData:
    """Set a for training (a share of it for validation), set b for test: rows of 48 hours x 76 features in all.

    76 = 36 series, 36 masks (1 where that hour has a measurement), MechVent, Age, Gender and CardiacSurgery. MechVent
    is only ever recorded as 1, so it is its own mask; CardiacSurgery is ICUType 2, the units' largest difference in
    mortality; Height is not used. A series and its mask are always at one party, so with four parties everyone has
    9 x 2 + 1 = 19 features; with another number, series are dealt out in the same order as evenly as they go.
    """
    if not 1 <= parties <= 40:
        raise DataError(f"physionet2012: 40 series and facts cannot be divided among {parties} parties")
    train, test = _read_set(Path(path), "a"), _read_set(Path(path), "b")
    held_out = np.zeros(len(train.labels), dtype=bool)
    order = stream(seed, SPLIT, "physionet2012").permutation(len(train.labels))
    held_out[order[: round(validation_share * len(order))]] = True
    in_train = np.concatenate([~held_out, np.zeros(len(test.labels), dtype=bool)])
    in_validation = np.concatenate([held_out, np.zeros(len(test.labels), dtype=bool)])
    features = _features(train, test, in_train)
    labels = torch.from_numpy(np.concatenate([train.labels, test.labels])).to(dtype)
    holdings = _divide(parties)
    in_test = ~(in_train | in_validation)
    return VerticalData(
        names=tuple(_HOLDINGS) if parties == 4 else tuple(f"party{m}" for m in range(1, parties + 1)),
        train=divided(features, holdings, in_train, dtype),
        test=divided(features, holdings, in_test, dtype),
        train_labels=labels[in_train],
        test_labels=labels[in_test],
        loss=Loss.BINARY,
        validation=divided(features, holdings, in_validation, dtype) if held_out.any() else (),
        validation_labels=labels[in_validation],
    )


@dataclass(frozen=True)
class _Set:
    """One of the challenge's sets: series on the hourly grid, what is recorded once, and deaths."""

    series: Floats
    ventilated: Floats
    descriptors: Floats
    labels: Integers


def _features(train: _Set, test: _Set, rows: NDArray[np.bool_]) -> Floats:
    """All rows x 48 x 76: the series, their masks, then the four facts, in the parties' order."""
    series = np.concatenate([train.series, test.series])
    skewed = [variable.skewed for variable in _VARIABLES]
    series[..., skewed] = np.log1p(series[..., skewed])
    known = ~np.isnan(series)
    # Before the first measurement a series stands at its mean, which is 0 once standardised.
    filled = carried_forward(standardised(series, rows), np.zeros(len(_VARIABLES)))
    _, age, gender, _, unit = np.concatenate([train.descriptors, test.descriptors]).T
    facts = {"Age": age, "Gender": gender, "CardiacSurgery": np.where(unit == _CARDIAC_SURGERY_RECOVERY, 1.0, 0.0)}
    constants = constant(standardised(np.stack(list(facts.values()), axis=1)[:, None], rows)[:, 0])
    beside = dict(zip(facts, np.moveaxis(constants, -1, 0), strict=True))
    beside["MechVent"] = np.concatenate([train.ventilated, test.ventilated])
    return np.concatenate([filled, known, np.stack([beside[fact] for _, fact in _HOLDINGS.values()], axis=-1)], axis=-1)


def _divide(parties: int) -> list[list[int]]:
    """Features of every party: a series and its mask go together."""
    units: list[tuple[int, ...]] = []
    for m, (series, _) in enumerate(_HOLDINGS.values()):
        first = len(series) * m
        units += [(i, len(_VARIABLES) + i) for i in range(first, first + len(series))]
        units.append((2 * len(_VARIABLES) + m,))
    return [[i for unit in part for i in units[unit]] for part in np.array_split(np.arange(len(units)), parties)]


def _read_set(path: Path, letter: str) -> _Set:
    texts = _texts(path, f"set-{letter}")
    measured, names = _measurements(texts)
    rows, series = len(names), len(_VARIABLES)
    grid = hourly(measured, rows, len(_PARAMETERS))
    descriptors = np.full((rows, len(_DESCRIPTORS)), np.nan)
    ...
