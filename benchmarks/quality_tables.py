"""Federations of users' tables to measure the quality of models on: files as organisations would have them.

Public tables are cut into the columns that organisations could hold. The generated ones each have one difficulty:
few positives, many columns of noise, heavy tails, gaps, an interaction between two parties that neither sees alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_classification

Columns = dict[str, NDArray[Any]]

CREDIT = {
    "bank": ["LIMIT_BAL", *(f"BILL_AMT{i}" for i in range(1, 7))],
    "bureau": ["PAY_0", *(f"PAY_{i}" for i in range(2, 7))],
    "shop": [f"PAY_AMT{i}" for i in range(1, 7)],
    "registry": ["SEX", "EDUCATION", "MARRIAGE", "AGE"],
}
ADULT = {
    "employer": ["workclass", "occupation", "hours-per-week"],
    "school": ["education", "education-num"],
    "tax-office": ["capital-gain", "capital-loss"],
    "registry": ["age", "marital-status", "relationship", "race", "sex", "native-country"],
}
ADULT_COLUMNS = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"]
ADULT_COLUMNS += ["relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"]
ADULT_COLUMNS += ["income"]
VITALS = ["HR", "NIDiasABP", "NIMAP", "NISysABP", "RespRate", "Temp", "Urine", "GCS", "SysABP", "DiasABP", "MAP"]
BLOOD = ["BUN", "Creatinine", "Glucose", "HCO3", "HCT", "K", "Mg", "Na", "Platelets", "WBC"]
ORGANS = ["ALP", "ALT", "AST", "Albumin", "Bilirubin", "Lactate", "PaCO2", "PaO2", "pH", "FiO2", "SaO2"]
ORGANS += ["TroponinI", "TroponinT", "Cholesterol", "MechVent"]


@dataclass(frozen=True)
class Tables:
    """The tables of a federation: the parties' columns, who has the label, and which numbers are categories."""

    parties: Mapping[str, Columns]
    holder: str
    label: str
    categories: tuple[str, ...] = ()

    def write(self, folder: Path) -> dict[str, Path]:
        """One file a party, each with the column `id`."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for name, columns in self.parties.items():
            rows = len(next(iter(columns.values())))
            table = pa.table(
                {"id": pa.array(np.arange(1000, 1000 + rows))} | {k: _array(v) for k, v in columns.items()}
            )
            files[name] = folder / f"{name}.csv"
            pyarrow.csv.write_csv(table, files[name])
        return files


def _array(values: NDArray[Any]) -> pa.Array:
    return pa.array(values, from_pandas=True)  # NaN is a gap


def _cut(columns: Columns, parties: Mapping[str, list[str]], holder: str, label: str) -> dict[str, Columns]:
    cut = {name: {key: columns[key] for key in keys} for name, keys in parties.items()}
    cut[holder] |= {label: columns[label]}
    return cut


def credit_default(data: Path) -> Tables:
    """30,000 clients of a bank in Taiwan; who will not pay next month?"""
    read = pyarrow.csv.read_csv(data / "credit_default" / "data.csv")
    columns = {name: read[name].to_numpy() for name in read.column_names}
    columns["default"] = columns.pop("default.payment.next.month")
    return Tables(_cut(columns, CREDIT, "bank", "default"), "bank", "default", ("SEX", "EDUCATION", "MARRIAGE"))


def adult(data: Path) -> Tables:
    """48,842 persons of the census of 1994; who earns more than 50,000 dollars?"""
    rows = [
        [field.strip() for field in line.rstrip(".\n").split(",")]
        for file in ("adult.data", "adult.test")
        for line in (data / "adult" / file).read_text(encoding="utf-8").splitlines()
        if line.count(",") == 14
    ]
    columns: Columns = {
        name: np.array([None if value == "?" else value for value in column], dtype=object)
        for name, column in zip(ADULT_COLUMNS, zip(*rows, strict=True), strict=True)
    }
    return Tables(_cut(columns, ADULT, "tax-office", "income"), "tax-office", "income")


def physionet(data: Path) -> Tables:
    """8,000 patients in intensive care; who dies in hospital? Mean, extremes, last value and count of each series."""
    found = [
        _stay(file) for folder in ("set-a", "set-b") for file in sorted((data / "physionet2012" / folder).iterdir())
    ]
    died = {}
    for file in ("Outcomes-a.txt", "Outcomes-b.txt"):
        for line in (data / "physionet2012" / file).read_text(encoding="utf-8").splitlines()[1:]:
            died[line.split(",")[0]] = int(line.split(",")[-1])
    stays = [(record, values) for record, values in found if record in died]
    names = sorted({name for _, values in stays for name in values})
    columns: Columns = {name: np.array([values.get(name, np.nan) for _, values in stays]) for name in names}
    columns["died"] = np.array([died[record] for record, _ in stays])
    parties = {
        "ward": ["Age", "Gender", "Height", "ICUType", "Weight", *_of(names, VITALS)],
        "laboratory": _of(names, BLOOD),
        "specialists": _of(names, ORGANS),
    }
    return Tables(_cut(columns, parties, "ward", "died"), "ward", "died", ("ICUType",))


def _of(names: list[str], series: list[str]) -> list[str]:
    return [name for name in names if name.split()[0] in series]


def _stay(file: Path) -> tuple[str, dict[str, float]]:
    series: dict[str, list[float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        _, name, value = line.split(",")
        if name and float(value) != -1:
            series.setdefault(name, []).append(float(value))
    once = {
        name: values[0] for name, values in series.items() if name in ("Age", "Gender", "Height", "ICUType", "Weight")
    }
    several = {
        f"{name} {kind}": value
        for name, values in series.items()
        if name not in (*once, "RecordID")
        for kind, value in _told(np.array(values)).items()
    }
    return file.stem, once | several


def _told(values: NDArray[np.float64]) -> dict[str, float]:
    return {
        "mean": values.mean(),
        "min": values.min(),
        "max": values.max(),
        "last": values[-1],
        "count": float(len(values)),
    }


def breast_cancer(data: Path) -> Tables:
    """569 tumours, measured by two clinics."""
    bunch = load_breast_cancer()
    columns = dict(zip(bunch.feature_names, bunch.data.T, strict=True)) | {"benign": bunch.target}
    names = list(bunch.feature_names)
    return Tables(_cut(columns, {"clinic": names[:15], "imaging": names[15:]}, "clinic", "benign"), "clinic", "benign")


def digits(data: Path) -> Tables:
    """1,797 handwritten digits; four parties with a quarter of the pixels each."""
    bunch = load_digits()
    varied = [(name, x) for name, x in zip(bunch.feature_names, bunch.data.T, strict=True) if x.std() > 0]
    columns = dict(varied) | {"digit": np.array([f"digit {y}" for y in bunch.target], dtype=object)}
    parties: dict[str, list[str]] = {}
    for name, _ in varied:  # pixel_ROW_COLUMN
        _, row, column = name.split("_")
        quarter = f"{'south' if int(row) > 3 else 'north'}-{'east' if int(column) > 3 else 'west'}"
        parties.setdefault(quarter, []).append(name)
    return Tables(_cut(columns, parties, "north-west", "digit"), "north-west", "digit")


def diabetes(data: Path) -> Tables:
    """442 patients and how far their diabetes has come a year later: a quantity."""
    bunch = load_diabetes(scaled=False)
    columns = dict(zip(bunch.feature_names, bunch.data.T, strict=True)) | {"progression": bunch.target}
    parties = {"practice": ["age", "sex", "bmi", "bp"], "laboratory": ["s1", "s2", "s3", "s4", "s5", "s6"]}
    return Tables(_cut(columns, parties, "practice", "progression"), "practice", "progression")


def _generated(seed: int, rows: int, **how: object) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    x, y = make_classification(rows, random_state=seed, shuffle=False, **how)
    order = np.random.default_rng(seed).permutation(rows)
    return x[order], y[order]


def _shared_out(x: NDArray[np.float64], y: NDArray[np.int64], seed: int, parties: int = 3) -> Tables:
    """Columns in random order, in equal parts."""
    order = np.random.default_rng(seed + 1).permutation(x.shape[1])
    cut: dict[str, Columns] = {
        f"party-{i + 1}": {f"x{j}": x[:, j] for j in sorted(part)}
        for i, part in enumerate(np.array_split(order, parties))
    }
    cut["party-1"]["y"] = y
    return Tables(cut, "party-1", "y")


def imbalanced(data: Path) -> Tables:
    """20,000 rows, 2% of which are positive."""
    x, y = _generated(
        1, 20_000, n_features=20, n_informative=8, n_redundant=4, weights=[0.98], flip_y=0.005, class_sep=0.8
    )
    return _shared_out(x, y, 1)


def noise_columns(data: Path) -> Tables:
    """6,000 rows of 200 columns, of which 10 matter."""
    x, y = _generated(2, 6_000, n_features=200, n_informative=10, n_redundant=0, n_clusters_per_class=2, flip_y=0.02)
    return _shared_out(x, y, 2)


def heavy_tails(data: Path) -> Tables:
    """10,000 rows whose columns have infinite variance."""
    x, y = _generated(3, 10_000, n_features=15, n_informative=8, n_redundant=2, flip_y=0.02)
    return _shared_out(np.sign(x) * np.expm1(np.abs(x) * 2.5), y, 3)


def gaps(data: Path) -> Tables:
    """8,000 rows, in which 30% of the values are missing."""
    x, y = _generated(4, 8_000, n_features=16, n_informative=8, n_redundant=4, flip_y=0.02)
    x[np.random.default_rng(4).random(x.shape) < 0.3] = np.nan
    return _shared_out(x, y, 4)


def interaction(data: Path) -> Tables:
    """10,000 rows; the label is in the sign of a product of two parties' columns."""
    draw = np.random.default_rng(5)
    a, b = draw.normal(size=(10_000, 5)), draw.normal(size=(10_000, 5))
    score = 1.5 * a[:, 0] * b[:, 0] + 0.5 * a[:, 1] - 0.5 * b[:, 1]
    y = (draw.random(10_000) < 1 / (1 + np.exp(-2 * score))).astype(np.int64)
    parties: dict[str, Columns] = {
        "left": {f"a{i}": a[:, i] for i in range(5)} | {"y": y},
        "right": {f"b{i}": b[:, i] for i in range(5)},
    }
    return Tables(parties, "left", "y")


FEDERATIONS: dict[str, Callable[[Path], Tables]] = {
    make.__name__: make for make in (credit_default, adult, breast_cancer, digits, physionet, diabetes)
}
GENERATED: dict[str, Callable[[Path], Tables]] = {
    make.__name__: make for make in (imbalanced, noise_columns, heavy_tails, gaps, interaction)
}


def every() -> Iterator[str]:
    """Names of all federations."""
    yield from (*FEDERATIONS, *GENERATED)
