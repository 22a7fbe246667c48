"""Reads a run directory back: summary.json, metrics.jsonl, analysis.json and audit.json in, one frozen record out.

A file that is missing or not as written is refused by name, and within metrics.jsonl by line.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cvfl.errors import DataError
from cvfl.runs.analysis import read_analysis
from cvfl.runs.audit import read_audit
from cvfl.runs.record import Record, Round, Run, Summary

AnyRecord = TypeVar("AnyRecord", bound=Record)

# A loss beyond this has diverged. It is read as NaN, like infinity, so that sums and squares of it never overflow.
_DIVERGED = 1e100
_EXPECTED = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "number_type": "a number",
    "float_type": "a number",
}


def read_run(directory: Path, with_history: bool = True) -> Run:
    """Read a run directory; what is missing or malformed raises DataError with the file's name."""
    path = directory / "summary.json"
    summary = _parse(_read(path), str(path))
    history = tuple(_history(directory / "metrics.jsonl")) if with_history else ()
    if isinstance(summary, dict):
        config, seconds = summary.get("config"), summary.get("round_seconds")
        summary |= {
            "history": history,
            "settings": dict(flattened(config)) if isinstance(config, dict) else {},
            "round_seconds": _round_seconds(history) if seconds is None else seconds,
            "audit": read_audit(directory),
            "analysis": read_analysis(directory),
        }
    return _checked(Run, summary, str(path))


def read_summary(directory: Path) -> Summary:
    """The summary of a run alone."""
    path = directory / "summary.json"
    return _checked(Summary, _parse(_read(path), str(path)), str(path))


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run that has no summary yet; nothing if it cannot be read."""
    try:
        found = _parse(_read(directory / "config.json"), "")
    except DataError:
        return {}
    return found if isinstance(found, dict) else {}


def _history(path: Path) -> Iterator[Round]:
    text = _read(path).removesuffix("\n")
    for n, line in enumerate(text.split("\n") if text else (), start=1):
        yield parse_round(line, f"{path}, line {n}")


def parse_round(line: str, where: str) -> Round:
    """A line of metrics.jsonl, which is at `where`."""
    return _checked(Round, _parse(line, where), where)


def _round_seconds(history: Sequence[Round]) -> float | None:
    """The median of the rounds that were not evaluated, since evaluation is a choice."""
    plain = [line.seconds for line in history if line.seconds is not None and not line.test]
    timed = plain or [line.seconds for line in history if line.seconds is not None]
    return statistics.median(timed) if timed else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; is {path.parent} a run directory?") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _parse(text: str, where: str) -> Any:
    """The JSON of a file or a line, tame."""
    try:
        return _tame(json.loads(text))
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    except RecursionError:
        raise DataError(f"{where}: not JSON: nested too deeply") from None


def _tame(value: Any) -> Any:
    """The same with text that can be printed in one line, since a name may hold anything, and without huge numbers."""
    match value:
        case str():
            printable = value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
            return " ".join(printable.split())
        case dict():
            return {_tame(key): _tame(inner) for key, inner in value.items()}
        case list():
            return [_tame(inner) for inner in value]
        case int() | float() if not abs(value) < _DIVERGED:
            return math.nan
    return value


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All values as text, under dotted keys: ``step_size.eta``."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _checked(record: type[AnyRecord], values: Any, where: str) -> AnyRecord:
    try:
        return record.model_validate(values)
    except ValidationError as error:
        raise DataError(": ".join([where, *_told(error.errors()[0])])) from None


def _told(error: ErrorDetails) -> list[str]:
    """What is wrong, after the keys that lead to it."""
    *outer, key = [repr(key) for key in error["loc"]] or [""]
    found = json.dumps(error["input"], default=str)
    found = found if len(found) <= 40 else f"{found[:40]}…"
    if error["type"] == "missing":
        return [*outer, f"key {key} is missing"]
    if expected := _EXPECTED.get(error["type"]):
        return [*outer, f"{key} must be {expected}, not {found}"]
    return [*outer, *([key] if key else []), f"expected an object, found {found}"]
