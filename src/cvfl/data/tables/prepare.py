"""A party's table becomes numbers: every column by an encoder of its own, fitted on the party's training rows only.

Every column is prepared alone, so a table needs the memory of its result and of one column.

    NAME.preparation = gzip( JSON: format, kinds {column: as it is read}, encoders {column: what was learned} )
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from cvfl.data.tables.encoders import Code, Date, Encoder, Fitted, Impute, Number, OneHot, Quantile, Standard
from cvfl.data.tables.spellings import READABLE, Type, kind_of
from cvfl.data.tables.table import Kind, Table
from cvfl.errors import DataError
from cvfl.types import Section

MISSING = "(missing)"
MOSTLY_RARE = 0.5
"""A category of which a larger share of the rows is in the bucket is said: it may be no category."""
_ROWS = 1 << 20
"""Rows that are transformed at a time."""


class Settings(Section):
    """How columns become numbers: one-hot or embedded categories, the share below which a value is rare, gaps."""

    categories: Literal["one-hot", "embedding"] = "one-hot"
    """A category becomes one column for each value, or a code for a vector that the model learns."""
    rare: float = Field(default=0.01, ge=0, lt=1)
    """Values of a category with less than this share of the rows go into one bucket."""
    impute: Impute = "median"
    """What fills the gaps of a column of numbers."""
    scale: Literal["standard", "quantile", "none"] = "standard"
    """Numbers are brought to mean 0 and deviation 1, or to normal scores by their places in training."""


class Preparation(Fitted):
    """The kind and the encoder of each column, in the order of the prepared columns; category codes come last."""

    format: Literal[1] = 1
    kinds: dict[str, Type]
    encoders: dict[str, Encoder]

    @model_validator(mode="after")
    def _same_columns(self) -> Preparation:
        if self.kinds.keys() != self.encoders.keys():
            raise ValueError("kinds and encoders are of different columns")
        return self

    @property
    def categories(self) -> tuple[int, ...]:
        """How many codes each of the last columns has."""
        return tuple(encoder.codes for encoder in self.encoders.values() if isinstance(encoder, Code))

    @property
    def columns(self) -> tuple[str, ...]:
        """For every prepared column the name of the one that it comes from."""
        return tuple(name for name, encoder in self.encoders.items() for _ in range(encoder.width))

    def transform(self, table: Table, rows: NDArray[np.int64], dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows of a table as they went, or would have gone, into training: columns are read as what they were there."""
        x, at = torch.empty(len(rows), len(self.columns), dtype=dtype), 0
        for name, encoder in self.encoders.items():
            values = _read(table, name, self.kinds[name])
            for start in range(0, len(rows), _ROWS):
                some = slice(start, start + _ROWS)
                x[some, at : at + encoder.width] = values.encoded(encoder, rows[some], dtype)
            at += encoder.width
        return x

    def mostly_rare(self, x: Tensor) -> dict[str, tuple[float, str]]:
        """Of these rows, categories that are mostly in the bucket: the share that is, and an example from training."""
        found, at = {}, 0
        for name, encoder in self.encoders.items():
            last = x[:, at + encoder.width - 1]
            at += encoder.width
            if isinstance(encoder, OneHot | Code) and encoder.rare:
                bucket = 1 if isinstance(encoder, OneHot) else len(encoder.values) + 1
                share = float((last == bucket).double().mean())
                if share > MOSTLY_RARE:
                    found[name] = share, encoder.rare[0]
        return found

    def save(self, path: Path) -> None:
        """Write it as compressed JSON; nothing in it is ever executed."""
        path.write_bytes(gzip.compress(self.model_dump_json().encode(), compresslevel=6, mtime=0))

    @classmethod
    def load(cls, path: Path) -> Preparation:
        """Read what `save` wrote, in the same bits."""
        try:
            return cls.model_validate_json(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise DataError(f"{path}: not a preparation, or a damaged one ({type(error).__name__})") from None


def rare_line(name: str, share: float, example: str) -> str:
    """What there is to say of a category that is mostly in the bucket."""
    short = example if len(example) <= 30 else f"{example[:29]}…"
    return (
        f"column {name!r} is a category of which {share:.0%} of the rows have rare values, such as {short!r}, that "
        f"count as one; {READABLE}; else exclude it, or lower `rare`"
    )


def prepare(
    table: Table,
    features: Sequence[str],
    rows: NDArray[np.int64],
    train: int,
    settings: Settings,
    dtype: torch.dtype = torch.float32,
) -> tuple[Preparation, Tensor]:
    """Fit on the first `train` of these rows and transform all of them."""
    kinds = {name: table.type(name) for name in features}
    embedded = settings.categories == "embedding"
    last = [name for name in features if embedded and kinds[name] is Kind.CATEGORY]
    encoders = {}
    for name in [*(name for name in features if name not in last), *last]:
        column = _read(table, name, kinds[name])
        _check_varied(table, name, column)
        encoders[name] = _fit(table.kind(name), column, rows[:train], settings)
    preparation = Preparation(kinds=kinds, encoders=encoders)
    return preparation, preparation.transform(table, rows, dtype)


@dataclass(frozen=True)
class _Column:
    """A column: a value a row, or a code a row into the few values that there are."""

    values: NDArray[Any]
    codes: NDArray[np.int32] | None = None

    def encoded(self, encoder: Any, rows: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """These rows as numbers."""
        if self.codes is None:
            return torch.from_numpy(encoder.encode(self.values[rows])).to(dtype)
        # The few values are encoded once, and the rows look them up.
        few = torch.from_numpy(encoder.encode(self.values)).to(dtype)
        return few[torch.from_numpy(self.codes[rows].astype(np.int64))]


def _read(table: Table, name: str, type: Type) -> _Column:
    match kind_of(type):
        case Kind.NUMBER:
            return _Column(table.numbers(name, type))
        case Kind.DATE:
            return _Column(table.dates(name, type))
        case Kind.CATEGORY:
            found = table.categories(name)  # code -1, the last value, is a missing one
            return _Column(np.array([*found.values, MISSING], dtype=object), found.codes)


def _fit(kind: Kind, column: _Column, rows: NDArray[np.int64], settings: Settings) -> Encoder:
    scaler = {"standard": Standard, "quantile": Quantile, "none": None}[settings.scale]
    match kind:
        case Kind.NUMBER:
            return Number.fit(column.values[rows], settings.impute, scaler)
        case Kind.DATE:
            return Date.fit(column.values[rows], settings.impute, scaler)
        case Kind.CATEGORY:
            assert column.codes is not None
            codes, counts = np.unique(column.codes[rows], return_counts=True)
            how = OneHot if settings.categories == "one-hot" else Code
            return how.fit(column.values[codes], counts.tolist(), settings.rare)


def _check_varied(table: Table, name: str, column: _Column) -> None:
    if column.codes is not None:
        used = np.unique(column.codes)
        if len(used) == 1:
            _refuse(table, name, column.values[used[0]])
        return
    known = column.values[column.values == column.values]
    if len(known) == 0:
        raise DataError(f"{table.name}: column {name!r} has no value at all; add it to exclude")
    if len(known) == len(column.values) and known.min() == known.max():
        _refuse(table, name, known[0])


def _refuse(table: Table, name: str, value: object) -> None:
    raise DataError(
        f"{table.name}: column {name!r} is constant ({value} in all {table.rows:,} rows); add it to exclude"
    )
