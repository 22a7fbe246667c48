"""What parties told the server at the end, put into the lines of the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cvfl.protocol import Certificate, Measured
from cvfl.runs import directory as record
from cvfl.wire.control import Complete

Lines = Sequence[dict[str, Any]]


def with_told(lines: Lines, names: Sequence[str], left: Mapping[int, Complete]) -> list[dict[str, Any]]:
    """The lines with the compression errors and the certificates that parties told, in the order of the roles."""
    told = [(names[m - 1], one) for m, one in sorted(left.items())]
    errors = {name: {t0: _error(*figures) for t0, *figures in one.errors} for name, one in told}
    certificates = {name: {t0: _certificate(*figures) for t0, *figures in one.certificates} for name, one in told}
    return _added(_added(lines, "compression_error", errors), "certificate", certificates)


def _error(*figures: float) -> dict[str, Any]:
    return record.error(Measured(*figures)).model_dump()


def _certificate(*figures: float) -> dict[str, Any]:
    return record.certified(Certificate(*figures)).model_dump()


def _added(lines: Lines, key: str, told: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The lines with what each party told of their rounds, beside what is there under this key."""
    found = [{name: by[line["round"]] for name, by in told.items() if line["round"] in by} for line in lines]
    return [line | {key: line.get(key, {}) | own} if own else line for line, own in zip(lines, found, strict=True)]
