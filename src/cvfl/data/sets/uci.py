"""Tables of the UCI repository as federations of organisations that could hold their columns.

credit default   bank: limit and bills, bureau: repayment status, shop: payments, registry: demographics
Adult            employer, school, tax office, registry
multiple features   six ways to measure 2,000 handwritten digits, one party each
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from cvfl.data.tables.ids import read_ids
from cvfl.data.tables.organisation import Assembled, Organisation, PartyTable, assemble
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.split import Part, Shares, hashed, seed_key
from cvfl.data.tables.table import Kind, Table
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError
from cvfl.lazy import lazy
from cvfl.protocol import Loss

preprocessing = lazy("sklearn.preprocessing")

_CREDIT = ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0"]
_CREDIT += [f"PAY_{i}" for i in range(2, 7)]
_CREDIT += [f"BILL_AMT{i}" for i in range(1, 7)] + [f"PAY_AMT{i}" for i in range(1, 7)]
_CREDIT_PARTIES = {
    "bank": ("LIMIT_BAL", *(f"BILL_AMT{i}" for i in range(1, 7))),
    "bureau": ("PAY_0", *(f"PAY_{i}" for i in range(2, 7))),
    "shop": tuple(f"PAY_AMT{i}" for i in range(1, 7)),
    "registry": ("SEX", "EDUCATION", "MARRIAGE", "AGE"),
}
_ADULT = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"]
_ADULT += ["race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"]
_ADULT_PARTIES = {
    "employer": ("workclass", "occupation", "hours-per-week"),
    "school": ("education", "education-num"),
    "tax-office": ("capital-gain", "capital-loss"),
    "registry": ("age", "marital-status", "relationship", "race", "sex", "native-country"),
}
_VIEWS = {"fourier": "fou", "profile": "fac", "karhunen": "kar", "pixels": "pix", "zernike": "zer", "morphology": "mor"}


def load_credit_default(path: Path, seed: int, test_share: float, dtype: torch.dtype) -> Assembled:
    """30,000 clients of a bank, 22% of whom default next month; UCI's `data.csv` with columns ID, X1 to X23 and Y.

    The file may also spell the columns out, LIMIT_BAL to PAY_AMT6 and `default.payment.next.month`.
    """
    file = _needed(path, "data.csv")
    with file.open(encoding="utf-8", errors="replace") as lines:
        coded = "X1" in lines.readline().split(",")
    names = {name: f"X{i}" if coded else name for i, name in enumerate(_CREDIT, start=1)}
    label = "Y" if coded else "default.payment.next.month"
    parties = {party: tuple(names[name] for name in columns) for party, columns in _CREDIT_PARTIES.items()}
    types = {names[name]: Kind.CATEGORY for name in ("SEX", "EDUCATION", "MARRIAGE")}
    with open_table(Source("credit_default", path=file, types=types)) as table:
        _, fractions = hashed(list(read_ids(table, ["ID"]).rows), seed_key(seed))
        return _assembled(table, parties, label, Shares(test_share).of(fractions), dtype)


def load_adult(path: Path, dtype: torch.dtype) -> Assembled:
    """48,842 persons of the 1994 census, who earn more than 50,000 dollars or not; UCI's `adult.data` and `adult.test`.

    The split is the publisher's. `fnlwgt`, a weight of the sample and not a property of the person, is left out.
    """
    rows = {
        part: _adult_rows(_needed(path, file)) for part, file in ((Part.TRAIN, "adult.data"), (Part.TEST, "adult.test"))
    }
    parts = np.repeat(np.array(list(rows), dtype=np.int8), [len(found) for found in rows.values()])
    columns = zip(*(row for found in rows.values() for row in found), strict=True)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "adult.parquet"
        pq.write_table(pa.table({name: pa.array(column) for name, column in zip(_ADULT, columns, strict=True)}), file)
        with open_table(Source("adult", path=file, missing=("?",))) as table:
            return _assembled(table, _ADULT_PARTIES, "income", parts, dtype)


def load_mfeat(path: Path, seed: int, test_share: float, dtype: torch.dtype) -> Assembled:
    """2,000 handwritten digits in six views, 200 of each class in order; UCI's `mfeat-fou` to `mfeat-mor`."""
    views = {name: _numbers(_needed(path, f"mfeat-{suffix}")) for name, suffix in _VIEWS.items()}
    classes = np.arange(2000) // 200
    _, fractions = hashed([str(row) for row in range(2000)], seed_key(seed))
    parts = Shares(test_share).of(fractions)
    train, test = (np.flatnonzero(parts == part) for part in (Part.TRAIN, Part.TEST))
    scaled = [
        torch.from_numpy(preprocessing.StandardScaler().fit(x[train]).transform(x)).to(dtype) for x in views.values()
    ]
    return Assembled(
        VerticalData(
            names=tuple(views),
            train=tuple(x[train] for x in scaled),
            test=tuple(x[test] for x in scaled),
            train_labels=torch.from_numpy(classes[train]),
            test_labels=torch.from_numpy(classes[test]),
            loss=Loss.MULTICLASS,
        ),
        classes=tuple(str(digit) for digit in range(10)),
    )


def _assembled(
    table: Table,
    parties: Mapping[str, tuple[str, ...]],
    label: str,
    parts: np.ndarray[tuple[int], np.dtype[np.int8]],
    dtype: torch.dtype,
) -> Assembled:
    """One table divided by columns; the first party holds the label."""
    holder = next(iter(parties))
    tables = [
        PartyTable(Organisation(name, features=columns, label=label if name == holder else None), table)
        for name, columns in parties.items()
    ]
    return assemble(tables, [np.arange(table.rows)] * len(tables), parts, dtype)


def _needed(folder: Path, name: str) -> Path:
    file = folder / name
    if not file.is_file():
        raise DataError(f"{file} is not there; `cvfl data fetch` gets it, or says where it is to be had")
    return file


def _adult_rows(file: Path) -> list[list[str]]:
    rows = []
    with file.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines, skipinitialspace=True), start=1):
            if not row or row[0].startswith("|"):
                continue
            if len(row) != len(_ADULT):
                raise DataError(f"{file}: line {number} has {len(row)} values, not {len(_ADULT)}")
            rows.append([*row[:-1], row[-1].rstrip(".")])
    if not rows:
        raise DataError(f"{file}: no rows")
    return rows


def _numbers(file: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    try:
        table = np.loadtxt(file, ndmin=2)
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    if len(table) != 2000:
        raise DataError(f"{file}: {len(table)} rows, not 2,000")
    return table
