"""Dates with English names of months, and with years of two digits, rewritten as ISO 8601 has them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_NAMES = (
    "jan(?:uary)?",
    "feb(?:ruary)?",
    "mar(?:ch)?",
    "apr(?:il)?",
    "may",
    "june?",
    "july?",
    "aug(?:ust)?",
    "sept?(?:ember)?",
    "oct(?:ober)?",
    "nov(?:ember)?",
    "dec(?:ember)?",
)
_DAY, _YEAR, _BETWEEN, _BESIDE = "([0-9]{1,2})", "([0-9]{4}|[0-9]{2})", r"\.?[ ,/-]{1,2}", r"\.?[ ,/-]{0,2}"


def named_months(array: pa.Array, time: str) -> tuple[str, pa.Array]:
    """A pattern that fits 29 Feb 2024, 29FEB24 and Feb 29, 2024, and the text with what fits it as an ISO date.

    `time` is the pattern of what may follow; its first group is kept.
    """
    any_month = "|".join(_NAMES)
    pattern = f"(?i)^(?:{'|'.join(_ways(f'(?:{any_month})'))}){time}"
    if not pc.any(pc.match_substring_regex(array, pattern)).as_py():
        return pattern, array
    for number, name in enumerate(_NAMES, start=1):
        for written in _ways(name):
            array = pc.replace_substring_regex(array, f"(?i)^{written}{time}", rf"\2-{number:02d}-0\1\3")
    return pattern, array


def _ways(month: str) -> tuple[str, str]:
    """Day, month and year, or month, day and year; in both the day is the first group and the year the second."""
    return f"{_DAY}{_BESIDE}{month}{_BESIDE}{_YEAR}", f"{month}{_BETWEEN}{_DAY}{_BETWEEN}{_YEAR}"


def full_years(array: pa.Array) -> pa.Array:
    """ISO dates whose years of two digits have four: 30 to 99 are of the 20th century, 00 to 29 of the 21st."""
    array = pc.replace_substring_regex(array, "^([3-9][0-9]-)", r"19\1")
    return pc.replace_substring_regex(array, "^([0-2][0-9]-)", r"20\1")
