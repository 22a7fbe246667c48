"""What a role did, line by line, in a file to which lines are only ever added, each with the SHA-256 of the one before.

STATE/actions.jsonl     {"n": 4, "time": "...", "before": "9f3c...", "event": "round", ...}

Who changes, removes or puts in a line breaks the chain from there on. Who removes lines at the end does not, nor who
computes all hashes after a change anew: nothing here is secret. A number of lines and their last hash, noted elsewhere,
tell. A line that a crash has torn is dropped when the file is opened again, and a line says so.
Nothing here is of columns, ids or labels: names of roles and runs, kinds of messages, numbers of rows and bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cvfl.errors import ConfigError, DataError, writing
from cvfl.files import held
from cvfl.runs.journal import tail

NAME = "actions.jsonl"
NOTHING = "0" * 64
"""What the first line has in place of a hash."""


@dataclass(frozen=True)
class Head:
    """The end of a log: how many lines it has, and the SHA-256 of the last one."""

    lines: int = 0
    sha256: str = NOTHING


class ActionLog:
    """A log that one process at a time adds lines to: it holds a lock on the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file, self.close = held(self, folder, NAME, os.O_APPEND)
        """`close`: add nothing more."""
        self._take_up()

    def _take_up(self) -> None:
        """Go on with the log as it is."""
        self.head, torn = _taken_up(self.path, self._file)
        self._midway = False
        if torn:
            self.append("torn", bytes=torn)

    def append(self, event: str, **values: Any) -> None:
        """Add a line."""
        assert self.close.alive  # or it would be written into whatever file has the number now
        if self._midway:  # Ctrl-C came in the middle of one
            self._take_up()
        line = {"n": self.head.lines, "time": _now(), "before": self.head.sha256, "event": event} | values
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._midway = True
        with writing(self.path):
            left = memoryview(text)
            while left:
                left = left[os.write(self._file, left) :]
        self.head = _head(self.head.lines, text)
        self._midway = False


def read_actions(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, whose chain is checked on the way; a torn last line is passed over."""
    with writing(path, "read"):
        for line, _ in _checked(path):
            yield line


def verified(path: Path, noted: Head | None = None) -> Head:
    """The end of a log whose chain is whole, by the number of its line if not.

    Refuses one, too, that does not go on from an end that was noted earlier.
    """
    head = Head()
    with writing(path, "read"):
        for _, found in _checked(path):
            head = found
            if noted and head.lines == noted.lines and head != noted:
                raise DataError(f"{path}: its first {noted.lines:,} lines are not those that were noted")
    if noted and head.lines < noted.lines:
        raise DataError(f"{path}: {head.lines:,} lines, and {noted.lines:,} were noted: those at the end were removed")
    return head


def log_in(place: Path) -> Path:
    """The log of a role: the file, or that in the folder of its state."""
    path = place / NAME if place.is_dir() else place
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the folder of a role's state, such as state/CONFIG/ROLE")
    return path


def _checked(path: Path) -> Iterator[tuple[dict[str, Any], Head]]:
    """Line by line: a log may be longer than there is memory."""
    head = Head()
    with path.open("rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                return  # torn
            line = _parsed(text)
            where = f"{path}, line {head.lines + 1}"
            if line is None:
                raise DataError(f"{where}: is no line of a log; it was changed, or damaged")
            if (line.get("n"), line.get("before")) != (head.lines, head.sha256):
                raise DataError(
                    f"{where}: does not follow from the one before; one of them was changed, removed or put in"
                )
            head = _head(head.lines, text)
            yield line, head


def _head(n: int, text: bytes) -> Head:
    """The end of a log whose last line this is, the n-th from 0."""
    return Head(n + 1, hashlib.sha256(text).hexdigest())


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _taken_up(path: Path, file: int) -> tuple[Head, int]:
    """The end of the log as it is, by its last line alone, and how many bytes of a torn one behind it were dropped."""
    with writing(path):
        text, end = tail(file)
        torn = os.fstat(file).st_size - end
        if not text:
            head = Head()
        elif (line := _parsed(text)) and isinstance(n := line.get("n"), int):
            head = _head(n, text)
        else:
            raise DataError(f"{path}: its last line is no line of a log; keep it elsewhere, and a new one begins")
        if torn:
            os.ftruncate(file, end)
    return head, torn


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
