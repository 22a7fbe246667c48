"""metrics.jsonl as columns, read as it grows: a run of 100,000 rounds in less than a second, then what was added.

Round, epoch, loss, seconds and bytes of every line are found by a pattern, without parsing it. Lines with metrics or
errors are parsed whole; when there are many of them, at an even spacing. Of times and of what was seen of parties all
lines count: these alone are cut out of each, and added up. The last line may be torn: it waits for its end. A line that
cannot be read is counted and passed over.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from cvfl.errors import DataError
from cvfl.runs.read import parse_round
from cvfl.runs.record import Look, Round
from cvfl.runs.tally import Tally

_BLOCK = 1 << 24
EVALUATIONS = 1_000
"""Lines with metrics that are kept; of more, every second, fourth, ..."""
_NUMBER = rb"(-?\d{1,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,4})?|NaN|-?Infinity)"
_COUNT = rb"(\d{1,15})"
_KEYS_OF_A_LINE = (
    (rb'^\{"round": ?' + _COUNT),
    (rb', ?"epoch": ?' + _NUMBER),
    (rb', ?"loss": ?' + _NUMBER),
    rb'(?:, ?"step_size": ?[^,{}"\n]+)?',
    (rb'(?:, ?"seconds": ?' + _NUMBER + rb")?"),
    (rb', ?"bytes": ?\{"up": ?' + _COUNT),
    *(rb', ?"' + part + rb'": ?' + _COUNT for part in (b"down", b"evaluation")),
    *(rb'(?:, ?"' + part + rb'": ?' + _COUNT + rb")?" for part in (b"alignment", b"setup")),
    rb"\}",
)
_LINE = re.compile(b"".join(_KEYS_OF_A_LINE), re.M)
"""The beginning of a line as runs write it; others are parsed."""
_WHOLE = re.compile(rb'"(?:train|validation|test|compression_error)"')
"""What only lines have that are parsed whole."""
_TIME, _EMBEDDINGS = re.compile(rb'"time": ?(?=\{)'), re.compile(rb'"embeddings": ?(?=\{)')
"""Before what adds up. A party may have such a name, too; what it has there is of another shape."""
_ROUND = re.compile(rb'"round": ?(\d{1,15})')
_DECODER = json.JSONDecoder()
_LOOKS = TypeAdapter(dict[str, Look])
_KEYS = ("round", "epoch", "loss", "seconds", "bytes")
Column = NDArray[np.float64]
Found = TypeVar("Found")


class _Mark(NamedTuple):
    """Which file was read: another one has taken its place if it is another inode, or shorter."""

    inode: int
    end: int


class Columns:
    """The lines of a run so far; `refresh` takes up what was added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(_Mark(0, 0))

    def _begin(self, mark: _Mark) -> None:
        self._mark = mark
        self._columns = {key: array("d") for key in _KEYS}
        self._every, self._seen = 1, 0
        self.evaluated: list[Round] = []
        self.last: Round | None = None
        self.tally = Tally()
        self.lines = 0
        """Whole lines of the file so far."""
        self.damaged: list[int] = []
        """Which of them could not be read, counted from one."""

    def __len__(self) -> int:
        return len(self._columns["round"])

    def __getitem__(self, key: str) -> Column:
        """A column: round, epoch, loss, seconds (of each round) or bytes (of all rounds so far)."""
        return np.array(self._columns[key], dtype=np.float64)

    def refresh(self) -> bool:
        """Take up whole lines that were added; whether anything changed. A file that is not there is empty."""
        try:
            with self.path.open("rb") as file:
                found = self.path.stat()
                changed = found.st_ino != self._mark.inode or found.st_size < self._mark.end
                if changed:
                    self._begin(_Mark(found.st_ino, 0))
                file.seek(self._mark.end)
                while block := file.read(_BLOCK):
                    whole = block.rfind(b"\n") + 1
                    if not whole:
                        break
                    self._take(block[:whole])
                    self._mark = self._mark._replace(end=self._mark.end + whole)
                    file.seek(self._mark.end)
                    changed = True
                return changed
        except OSError:
            changed = len(self) > 0
            self._begin(_Mark(0, 0))
            return changed

    def _take(self, text: bytes) -> None:
        lines, found = text.split(b"\n")[:-1], _LINE.findall(text)
        if len(found) == len(lines):
            for column, values in zip(self._columns.values(), _values(found), strict=True):
                column.extend(values)
        else:  # of another make, or damaged
            for n, line in enumerate(lines, start=self.lines + 1):
                self._append(self._checked(line), n)
        damaged = {*self.damaged}
        for n, line in enumerate(lines, start=self.lines + 1):
            if n not in damaged:
                self._count(line)
                if _WHOLE.search(line):
                    self._evaluation(line)
        self.lines += len(lines)
        self.last = self._checked(lines[-1]) or self.last

    def _append(self, line: Round | None, n: int) -> None:
        if line is None:
            self.damaged.append(n)
            return
        seconds = math.nan if line.seconds is None else line.seconds
        values = (line.number, line.epoch, line.loss, seconds, line.sent.total)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def _count(self, line: bytes) -> None:
        """Add up what is added up of every line."""
        for role, spent in next(_cut(line, _TIME, _clocks), {}).items():
            self.tally.spend(role, *spent)
        if looks := next(_cut(line, _EMBEDDINGS, _LOOKS.validate_python), None):
            t0 = _ROUND.search(line)
            self.tally.look(int(t0[1]) if t0 else 0, looks)

    def _evaluation(self, line: bytes) -> None:
        self._seen += 1
        if self._seen % self._every or (found := self._checked(line)) is None:
            return
        self.evaluated.append(found)
        if len(self.evaluated) > EVALUATIONS:
            self.evaluated, self._every = self.evaluated[1::2], 2 * self._every

    def _checked(self, line: bytes) -> Round | None:
        try:
            return parse_round(line.decode(), str(self.path))
        except (DataError, UnicodeDecodeError):
            return None


def _cut(line: bytes, key: re.Pattern[bytes], shape: Callable[[Any], Found]) -> Iterator[Found]:
    """What is behind a key of a line and has this shape, without parsing the line."""
    for found in key.finditer(line):
        try:
            value, _ = _DECODER.raw_decode(line[found.end() :].decode())
            yield shape(value)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue


def _clocks(value: Mapping[str, Any]) -> dict[str, tuple[float, float, dict[str, float]]]:
    """Seconds by role: its own work, coding, waiting."""
    return {
        role: (
            float(spent["compute"]),
            float(spent["codec"]),
            {name: float(seconds) for name, seconds in spent.get("wait", {}).items()},
        )
        for role, spent in value.items()
    }


def _values(found: Sequence[tuple[bytes, ...]]) -> Iterator[Iterable[float]]:
    """Columns of what the pattern found."""
    number, epoch, loss, seconds, *counted = zip(*found, strict=True)
    yield from (map(float, number), map(float, epoch), map(float, loss))
    yield (float(value or b"nan") for value in seconds)
    yield map(sum, zip(*(map(int, (value or b"0" for value in part)) for part in counted), strict=True))
