"""Reads a run directory back: summary.json, metrics.jsonl and audit.json in, small frozen records out.

`record.py` writes what is read here. A file that is missing or not as written is refused by name, and within
metrics.jsonl by line.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cvfl.errors import DataError
from cvfl.runs.audit import Audit, read_audit

T = TypeVar("T")

# A loss beyond this has diverged. It is read as NaN, like infinity, so that sums and squares of it never overflow.
_DIVERGED = 1e100


@dataclass(frozen=True)
class Sent:
    """Bytes on the wire: to the server, from it, and for evaluation in both directions."""

    up: float
    down: float
    evaluation: float

    @property
    def training(self) -> float:
        """What training needs; evaluation is a choice."""
        return self.up + self.down

    @property
    def total(self) -> float:
        """All bytes, whatever they were for."""
        return self.up + self.down + self.evaluation


@dataclass(frozen=True)
class CompressionError:
    """Squared error as measured, its mean by theory, and what no outcome may exceed."""

    measured: float
    expected: float
    bound: float


@dataclass(frozen=True)
class Spent:
    """How often a row was released, and epsilon of its columns at one party and at all of them."""

    releases: int
    one_party: float
    all_parties: float


@dataclass(frozen=True)
class Account:
    """What noise keeps private: the norm that rows are clipped to, noise in units of it, and what rows spent."""

    clip: float
    noise: float
    delta: float
    parties: int
    training: Spent
    held_out: Spent


@dataclass(frozen=True)
class Round:
    """One line of metrics.jsonl; without an evaluation `train` and `test` are empty.

    A published record keeps some rounds `aside` of the even spacing, because they were the best so far.
    """

    number: int
    epoch: float
    loss: float
    sent: Sent
    train: Mapping[str, float]
    test: Mapping[str, float]
    errors: Mapping[str, CompressionError]
    seconds: float | None = None
    aside: bool = False


@dataclass(frozen=True)
class Run:
    """A run directory: the figures of its summary and all its rounds."""

    name: str
    seed: int
    rounds: int
    completed: bool
    metric: str | None
    train: Mapping[str, float]
    test: Mapping[str, float]
    sent: Sent
    by_party: Mapping[str, Sent]
    formula_bytes: float | None
    error: CompressionError | None
    seconds: float
    parameters: Mapping[str, str]
    settings: Mapping[str, str]
    versions: Mapping[str, str]
    history: tuple[Round, ...]
    round_seconds: float | None = None
    account: Account | None = None
    audit: Audit | None = None

    @property
    def compressed(self) -> bool:
        """Whether any compressor in the configuration is other than the identity."""
        named = [value for key, value in self.settings.items() if key.endswith("compressor") and value != "null"]
        return not named or any(value.partition(":")[0] != "identity" for value in named)


def read_run(directory: Path) -> Run:
    """Read a run directory; what is missing or malformed raises DataError with the file's name."""
    path = directory / "summary.json"
    summary = _Object(_parse(_read(path), str(path)), str(path))
    metrics, sent = summary.inner("metrics"), summary.inner("bytes")
    error = summary.optional("compression_error", _Object.inner)
    formula = summary.optional("formula_bytes", _Object.number)
    history = _history(directory / "metrics.jsonl")
    privacy = summary.optional("privacy", _Object.inner)
    return Run(
        name=summary.text("name"),
        seed=summary.integer("seed"),
        rounds=summary.integer("rounds"),
        completed=summary.flag("completed"),
        metric=summary.optional("metric", _Object.text),
        train=metrics.optional("train", _Object.numbers) or {},
        test=metrics.optional("test", _Object.numbers) or {},
        sent=_sent(sent),
        by_party={name: _sent(party) for name, party in sent.inner("by_party").items()},
        formula_bytes=formula,
        error=_error(error) if error else None,
        seconds=summary.number("seconds"),
        parameters=summary.optional("parameters", _Object.flat) or {},
        settings=summary.optional("config", _Object.flat) or {},
        versions=summary.optional("versions", _Object.flat) or {},
        history=history,
        round_seconds=summary.optional("round_seconds", _Object.number) or _round_seconds(history),
        account=_account(privacy) if privacy else None,
        audit=read_audit(directory),
    )


def _round_seconds(history: Sequence[Round]) -> float | None:
    """The median of the rounds that were not evaluated, since evaluation is a choice."""
    plain = [line.seconds for line in history if line.seconds is not None and not line.test]
    timed = plain or [line.seconds for line in history if line.seconds is not None]
    return statistics.median(timed) if timed else None


def _history(path: Path) -> tuple[Round, ...]:
    text = _read(path).removesuffix("\n")
    lines = enumerate(text.split("\n") if text else (), start=1)
    return tuple(_round(_Object(_parse(line, f"{path}, line {n}"), f"{path}, line {n}")) for n, line in lines)


def _round(line: _Object) -> Round:
    errors = line.optional("compression_error", _Object.inner)
    return Round(
        number=line.integer("round"),
        epoch=line.number("epoch"),
        loss=line.number("loss"),
        sent=_sent(line.inner("bytes")),
        train=line.optional("train", _Object.numbers) or {},
        test=line.optional("test", _Object.numbers) or {},
        errors={role: _error(error) for role, error in errors.items()} if errors else {},
        seconds=line.optional("seconds", _Object.number),
        aside=line.optional("aside", _Object.flag) or False,
    )


def _sent(values: _Object) -> Sent:
    return Sent(*(values.number(key) for key in ("up", "down", "evaluation")))


def _error(values: _Object) -> CompressionError:
    return CompressionError(*(values.number(key) for key in ("measured", "expected", "bound")))


def _account(values: _Object) -> Account:
    return Account(
        clip=values.number("clip"),
        noise=values.number("noise"),
        delta=values.number("delta"),
        parties=values.integer("parties"),
        training=_spent(values.inner("training")),
        held_out=_spent(values.inner("held_out")),
    )


def _spent(values: _Object) -> Spent:
    return Spent(values.integer("releases"), values.number("one_party"), values.number("all_parties"))


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
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    except RecursionError:
        raise DataError(f"{where}: not JSON: nested too deeply") from None


def _clean(text: str) -> str:
    """One line of printable text: a name may hold anything, XML may not."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class _Object:
    """A JSON object that knows its place, so that a wrong value is reported by file and key."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise DataError(f"{where}: expected an object, found {_named(values)}")
        self._values, self._where = values, where

    def optional(self, key: str, read: Callable[[_Object, str], T]) -> T | None:
        """What `read` finds under the key, or None where there is nothing."""
        return None if self._values.get(key) is None else read(self, key)

    def inner(self, key: str) -> _Object:
        return _Object(self._get(key), f"{self._where}: {key!r}")

    def items(self) -> list[tuple[str, _Object]]:
        return [(_clean(key), self.inner(key)) for key in self._values]

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return _clean(value)

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def integer(self, key: str) -> int:
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str) -> float:
        value = self._get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, "a number")
        return float(value) if abs(value) < _DIVERGED else math.nan

    def numbers(self, key: str) -> dict[str, float]:
        inner = self.inner(key)
        return {_clean(name): inner.number(name) for name in inner._values}

    def flat(self, key: str) -> dict[str, str]:
        """All values below the key as text, under dotted keys: ``step_size.eta``."""
        return dict(_flattened(self.inner(key)._values, ""))

    def _get(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise DataError(f"{self._where}: key {key!r} is missing") from None

    def _wrong(self, key: str, expected: str) -> DataError:
        return DataError(f"{self._where}: {key!r} must be {expected}, not {_named(self._values[key])}")


def _flattened(values: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found += _flattened(value, f"{prefix}{key}.")
        else:
            found.append((_clean(f"{prefix}{key}"), _clean(value if isinstance(value, str) else json.dumps(value))))
    return found


def _named(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
