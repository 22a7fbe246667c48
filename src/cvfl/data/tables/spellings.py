"""How a column writes its values, found from all of them: it is read in the first way that fits every one.

    1234.5  -3e4                    number
    20240229                        "yyyymmdd"  if every value is such a day of 1900 to 2099
    1,234.5   12%   $1,234          "1,234.5"   a point before the fraction
    1.234,5   1,5   12 %   5,99 €   "1.234,5"   a comma before the fraction
    2024-02-29  2024-02-29T12:00    date        ISO 8601
    2024/02/29                      "y/m/d"
    29.02.2024  29/2/2024 12:00     "d/m/y"     and years of four digits only
    02/29/2024                      "m/d/y"
    29.02.24                        "dd.mm.yy"  years 30 to 99 are of the 20th century
    29 Feb 2024  29-FEB-24          "d mon y"   English names of months; Feb 29, 2024, too
    anything else                   category    but a tenth or less of it among others is a mistake

Thousands may also be set apart by a blank or an apostrophe. A percent sign is left out; all values have it or none. So
is the sign of a currency, of which a column has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cvfl.data.tables import kinds
from cvfl.data.tables.kinds import Kind, Odd, is_text
from cvfl.data.tables.months import full_years, named_months

MOSTLY = 0.9
"""A column of which this share is written in one way is meant to be so."""
READABLE = "numbers and dates are read when all are written in one way, such as 1234.5 or 2024-02-29"
_DATELIKE = r"[0-9]{1,4}[-/. ]\w{1,9}[-/. ][0-9]{2,4}\b.*"
_ALIKE = rf"^([<>~]?\s*[+-]?[0-9][0-9.,' ]*\s*[a-zA-Zµ°%²³/]*|{_DATELIKE})$"
"""A number with a unit, or what may be a date."""
_FEW, _WAYS = 8, 20
"""So few different values are those of a category, and so are those that are written in more ways."""


class Spelling(StrEnum):
    """A way to write numbers or dates that is not the usual one, by its example."""

    POINT = "1,234.5"
    COMMA = "1.234,5"
    YEAR = "y/m/d"
    DAY = "d/m/y"
    MONTH = "m/d/y"
    SHORT = "dd.mm.yy"
    NAMED = "d mon y"
    COMPACT = "yyyymmdd"


Type = Kind | Spelling
"""How a column is read."""

_GAP = r"[ '’\x{a0}\x{202f}"  # between thousands, with the sign that is not the fraction's
_THOUSANDS: dict[Type, str] = {Spelling.POINT: _GAP + ",]", Spelling.COMMA: _GAP + ".]"}
_FRACTION: dict[Type, str] = {Spelling.POINT: r"\.", Spelling.COMMA: ","}
_CURRENCIES = "$€£¥₹"
_SIGN = rf"[{_CURRENCIES}]"
_TIME = r"(([ T][0-9]{1,2}:[0-9]{2}(:[0-9]{2})?)?)$"
_DATES: dict[Type, tuple[str, str]] = {
    Spelling.YEAR: (r"^([0-9]{4})[/.]([0-9]{1,2})[/.]([0-9]{1,2})" + _TIME, r"\1-0\2-0\3\4"),
    Spelling.DAY: (r"^([0-9]{1,2})[/.-]([0-9]{1,2})[/.-]([0-9]{4})" + _TIME, r"\3-0\2-0\1\4"),
    Spelling.MONTH: (r"^([0-9]{1,2})[/.-]([0-9]{1,2})[/.-]([0-9]{4})" + _TIME, r"\3-0\1-0\2\4"),
    Spelling.SHORT: (r"^([0-9]{2})\.([0-9]{2})\.([0-9]{2})" + _TIME, r"\3-\2-0\1\4"),
    Spelling.COMPACT: (r"^((?:19|20)[0-9]{2})([0-9]{2})([0-9]{2})$", r"\1-\2-\3"),
}
_NONE = "-"  # what is neither a number nor a date


@dataclass(frozen=True)
class Found:
    """How a column is to be read; another way that fits as well; what it mixes, if it is not written in one way."""

    type: Type
    other: Type | None = None
    mixes: str = ""
    alike: tuple[str, ...] = ()
    """Examples of values of a category that look like numbers or dates."""


def kind_of(type: Type) -> Kind:
    """What a column holds that is read so."""
    if isinstance(type, Kind):
        return type
    return Kind.NUMBER if type in _FRACTION else Kind.DATE


def as_numbers(array: pa.Array, type: Type = Kind.NUMBER) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers written in this way, NaN where one is missing; and where something else is."""
    if type not in _FRACTION or not is_text(array.type):
        return kinds.as_numbers(array)
    sign, gap = _FRACTION[type], _THOUSANDS[type]
    amount = rf"([0-9]*|[1-9][0-9]{{0,2}}({gap}[0-9]{{3}})+)({sign}[0-9]*)?([eE][+-]?[0-9]+)?"
    pattern = rf"^[+-]?({_SIGN}\s*)?[+-]?{amount}(\s*(%|{_SIGN}))?$"
    plain = pc.replace_substring_regex(array, rf"\s*{_SIGN}\s*|{gap}|\s*%$", "")
    return kinds.as_numbers(_where(array, pattern, pc.replace_substring(plain, ",", ".")))


def as_dates(array: pa.Array, type: Type = Kind.DATE) -> tuple[NDArray[np.datetime64], NDArray[np.bool_]]:
    """Dates written in this way, NaT where one is missing; and where something else is."""
    if type is Spelling.COMPACT:
        array = kinds.as_text(array)  # which may be whole numbers
    if (type not in _DATES and type is not Spelling.NAMED) or not is_text(array.type):
        return kinds.as_dates(array)
    if type is Spelling.NAMED:
        pattern, dates = named_months(array, _TIME)
    else:
        pattern, iso = _DATES[type]
        dates = pc.replace_substring_regex(array, pattern, iso)
    padded = full_years(pc.replace_substring_regex(dates, "-0([0-9]{2})", r"-\1"))
    return kinds.as_dates(_where(array, pattern, pc.replace_substring_regex(padded, "[ T]([0-9]):", r"T0\1:")))


def _where(array: pa.Array, pattern: str, rewritten: pa.Array) -> pa.Array:
    """The rewritten text where the pattern fits, null where the text is, and no value at all elsewhere."""
    return pc.if_else(pc.match_substring_regex(array, pattern), rewritten, _NONE)


def all_days(chunks: Iterable[pa.Array]) -> bool:
    """Whether every value is a day written as yyyymmdd, and there is one: amounts are not, by chance, all of them."""
    seen = 0
    for array in chunks:
        if as_dates(array, Spelling.COMPACT)[1].any():
            return False
        seen += len(array) - array.null_count
    return seen > 0


def infer(chunks: Callable[[], Iterable[pa.Array]], told: Kind | None = None) -> Found:
    """How a text column is read, with all that there is or among those of the kind that it is told to be."""
    every = [type for type in (*Kind, *Spelling) if type is not Kind.CATEGORY and told in (None, kind_of(type))]
    if told is None and all_days(chunks()):
        return Found(Spelling.COMPACT, other=Kind.NUMBER)
    usual = _tallied(chunks(), every[:1])
    tallies = usual if usual[0].fits_all else usual + _tallied(chunks(), every[1:])
    if fitting := [tally.type for tally in tallies if tally.fits_all]:
        return Found(fitting[0], other=fitting[1] if len(fitting) > 1 else None)
    nearest = max(tallies, key=lambda tally: tally.share)
    if told or nearest.share >= MOSTLY:
        return Found(nearest.type, mixes=nearest.mixture)
    return Found(Kind.CATEGORY, alike=_alike(chunks()))


def _alike(chunks: Iterable[pa.Array]) -> tuple[str, ...]:
    """Examples of values of which nearly all look like numbers or dates, if they are many, or dates in a few ways."""
    seen = alike = different = 0
    ways: dict[str, str] = {}
    for array in chunks:
        known = array.drop_null()
        seen += len(known)
        alike += pc.sum(pc.match_substring_regex(known, _ALIKE)).as_py() or 0
        values = pc.unique(known)
        shapes = pc.replace_substring_regex(values, "[0-9]+", "9")
        if alike < MOSTLY * seen or pc.count_distinct(shapes).as_py() > _WAYS:
            return ()
        different = max(different, len(values))
        for shape in pc.unique(shapes):
            ways.setdefault(shape.as_py(), values[pc.index(shapes, shape).as_py()].as_py())
    mixed = len(ways) > 1 and all(re.match(_DATELIKE, value) for value in ways.values())
    return tuple(ways.values()) if mixed or different > _FEW else ()


@dataclass
class _Tally:
    """How many values of a column are written in one way."""

    type: Type
    odd: Odd = field(default_factory=Odd)
    bare: Odd = field(default_factory=Odd)  # those without a percent sign
    currencies: set[str] = field(default_factory=set)
    seen: int = 0

    @property
    def share(self) -> float:
        return 1 - self.odd.count / self.seen if self.seen else 1.0

    @property
    def fits_all(self) -> bool:
        return not self.odd.count and self.bare.count in (0, self.seen) and len(self.currencies) < 2

    @property
    def mixture(self) -> str:
        if not self.odd.count and len(self.currencies) > 1:
            return f"numbers in {' and '.join(sorted(self.currencies))}"
        if not self.odd.count:
            return f"numbers with and without a percent sign: {self.bare}"
        return f"{kind_of(self.type)}s and text: {self.odd}"

    def add(self, row: int, text: pa.Array) -> None:
        if self.share < MOSTLY:
            return  # it is given up
        read = as_numbers if kind_of(self.type) is Kind.NUMBER else as_dates
        self.odd.add(row, text, read(text, self.type)[1])
        self.seen += len(text) - text.null_count
        if self.type in _FRACTION:
            bare = pc.invert(pc.ends_with(text, "%")).fill_null(False)
            self.bare.add(row, text, bare.to_numpy(zero_copy_only=False))
            self.currencies |= {sign for sign in _CURRENCIES if pc.any(pc.match_substring(text, sign)).as_py()}


def _tallied(chunks: Iterable[pa.Array], types: Iterable[Type]) -> list[_Tally]:
    tallies, row = [_Tally(type) for type in types], 0
    for text in chunks:
        for tally in tallies:
            tally.add(row, text)
        row += len(text)
    return tallies


def spelling_notes(table: str, found: Mapping[str, Found]) -> tuple[str, ...]:
    """How columns are written, where it is not the usual way or could be another."""
    columns: dict[Type, list[str]] = {}
    for name, way in found.items():
        if isinstance(way.type, Spelling):
            columns.setdefault(way.type, []).append(name)
    return (
        *(f"{table}: {kind_of(type)}s written as {type} in {listed(names)}" for type, names in columns.items()),
        *(
            f"{table}: years of two digits in {listed(names)}: 30 to 99 are of the 20th century, 00 to 29 of the 21st"
            for type, names in columns.items()
            if type is Spelling.SHORT
        ),
        *(
            f"{table}: {name} is read as a category, though its values look like numbers or dates, such as "
            f'{" and ".join(map(repr, way.alike[:2]))}; {READABLE}; else set {type_key(name)} = "category"'
            for name, way in found.items()
            if way.alike
        ),
        *(
            f"{table}: {name} can be read as {way.type} and as {way.other}; it is read as the first, "
            f'else set {type_key(name)} = "{way.other}"'
            for name, way in found.items()
            if way.other
        ),
    )


def listed(names: Sequence[str]) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def such_as(type: Type) -> str:
    """An example of what is expected, where one helps."""
    return " such as 2024-02-29" if type is Kind.DATE else f" written as {type}" if isinstance(type, Spelling) else ""


def type_key(name: str) -> str:
    """The configuration key that sets a column's type, quoted as TOML needs it."""
    return f"types.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name, ensure_ascii=False)}"
