"""What a column holds: numbers, categories or dates; and how arrays of each are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DEFAULT_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "?")
# What pyarrow's cast reads, without its words for infinity and NaN: those are text, or among the words for missing.
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
EXACT = 2.0**53  # below it a float holds every whole number


class Kind(StrEnum):
    """How a column is read."""

    NUMBER = "number"
    CATEGORY = "category"
    DATE = "date"


@dataclass(frozen=True)
class Declared:
    """What the source itself said: kinds of text columns, types of those that cannot be read, and what to tell."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Odd:
    """Values that do not fit their column: the first, and how many."""

    count: int = 0
    row: int = 0
    value: str = ""

    def add(self, start: int, array: pa.Array, bad: NDArray[np.bool_]) -> None:
        """Count the bad ones of an array whose first value stands in row `start` + 1."""
        if bad.any():
            first = int(bad.argmax())
            if not self.count:
                self.row, self.value = start + first + 1, str(array[first].as_py())
            self.count += int(bad.sum())

    def __str__(self) -> str:
        value = self.value if len(self.value) <= 40 else f"{self.value[:39]}…"
        more = f" and {self.count - 1:,} more" if self.count > 1 else ""
        return f"{value!r} in row {self.row:,}{more}"


def is_text(kind: pa.DataType) -> bool:
    """Whether the kind of a column must be found from its values."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def native_kind(kind: pa.DataType) -> Kind | None:
    """The kind that a type implies; none for text and for what cannot be read (lists, structs, bytes)."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        return Kind.DATE
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return Kind.NUMBER if number or types.is_boolean(kind) or types.is_null(kind) else None


def clean(text: pa.Array, missing: pa.Array) -> pa.Array:
    """Text without surrounding blanks, null where it is one of the words for a missing value."""
    text = pc.utf8_trim_whitespace(text)
    return pc.if_else(pc.is_in(text, value_set=missing), None, text)


def as_text(array: pa.Array) -> pa.Array:
    """Any readable array as text, one spelling a value: 7, 7.0 and a decimal 7.00 are all "7"."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_floating(array.type):
        array = array.cast(pa.float32()) if pa.types.is_float16(array.type) else array
        array = pc.if_else(pc.is_nan(array), None, array)
        whole = pc.and_(pc.equal(pc.floor(array), array), pc.less(pc.abs(array), EXACT))
        digits = pc.if_else(whole, array, None).cast(pa.int64()).cast(pa.large_string())
        return pc.coalesce(digits, array.cast(pa.large_string()))
    text = array.cast(pa.large_string())
    return pc.replace_substring_regex(text, r"\.0+$", "") if pa.types.is_decimal(array.type) else text


def as_numbers(array: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers, NaN where one is missing, and where a value is there but is not a finite number."""
    try:
        values = _numpy(array.cast(pa.float64(), safe=False))
    except pa.ArrowInvalid:
        values = _numpy(pc.if_else(pc.match_substring_regex(array, _NUMBER), array, None).cast(pa.float64()))
    if is_text(array.type):
        return values, ~np.isfinite(values) & array.is_valid().to_numpy(zero_copy_only=False)
    return values, np.isinf(values)


def as_dates(array: pa.Array) -> tuple[NDArray[np.datetime64], NDArray[np.bool_]]:
    """Dates to the second, in UTC where there is a zone, NaT where one is missing; and where there is no date."""
    if not is_text(array.type):
        values = array.to_numpy(zero_copy_only=False).astype("datetime64[s]")
        return values, np.zeros(len(values), np.bool_)
    for zone in (None, "UTC"):
        try:
            return as_dates(array.cast(pa.timestamp("us", zone)))
        except pa.ArrowInvalid:
            continue
    values = np.array([_moment(value) for value in array.to_pylist()], "datetime64[s]")
    return values, np.isnat(values) & array.is_valid().to_numpy(zero_copy_only=False)


def spelled_numbers(words: Iterable[str]) -> NDArray[np.float64]:
    """The words that are numbers, such as -999 or inf, so that columns of numbers know them too."""
    numbers = []
    for word in words:
        with suppress(ValueError):
            numbers.append(float(word))
    return np.array(numbers, np.float64)


def _numpy(array: pa.Array) -> NDArray[np.float64]:
    values: NDArray[np.float64] = array.to_numpy(zero_copy_only=False)
    return values


def _moment(text: str | None) -> datetime | None:
    """A date as Python reads it, for columns where some values name a zone and some do not."""
    try:
        moment = datetime.fromisoformat(text or "")
        return (moment.astimezone(UTC) if moment.tzinfo else moment).replace(microsecond=0, tzinfo=None)
    except (ValueError, OverflowError):
        return None
