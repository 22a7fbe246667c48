"""metrics.jsonl as columns, read as it grows: a run of 100,000 rounds in a third of a second, then what was added.

Round, epoch, loss, seconds and bytes of every line are found by a pattern, without parsing it. Lines with metrics or
errors are parsed whole; when there are many of them, at an even spacing. The last line may be torn: it waits for its
end. A line that cannot be read is counted and passed over.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cvfl.errors import DataError
from cvfl.runs.read import parse_round
from cvfl.runs.record import Round

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
_KEYS = ("round", "epoch", "loss", "seconds", "bytes")
Column = NDArray[np.float64]


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
        self.damaged = 0
        """Lines that could not be read."""

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
            for line in lines:
                self._append(self._checked(line))
        for line in lines:
            if _WHOLE.search(line):
                self._evaluation(line)
        self.last = self._checked(lines[-1]) or self.last

    def _append(self, line: Round | None) -> None:
        if line is None:
            self.damaged += 1
            return
        seconds = math.nan if line.seconds is None else line.seconds
        values = (line.number, line.epoch, line.loss, seconds, line.sent.total)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

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


def _values(found: Sequence[tuple[bytes, ...]]) -> Iterator[Iterable[float]]:
    """Columns of what the pattern found."""
    number, epoch, loss, seconds, *counted = zip(*found, strict=True)
    yield from (map(float, number), map(float, epoch), map(float, loss))
    yield (float(value or b"nan") for value in seconds)
    yield map(sum, zip(*(map(int, (value or b"0" for value in part)) for part in counted), strict=True))
