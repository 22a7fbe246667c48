"""The lines of a run while it goes on: metrics.jsonl, one JSON object a round, appended and read back."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cvfl.descriptors import with_descriptor

BLOCK = 1 << 14
"""Bytes that are read at once from the end of a file of lines; a line is seldom longer."""


class Journal:
    """The lines of a run as they come, kept beside the checkpoints, so that a restarted server goes on with them.

    They are on disk alone: a run may have very many.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All of them, read anew."""
        return read_lines(self.path)

    def append(self, line: dict[str, Any]) -> None:
        """Add the line of a round."""
        with with_descriptor(lambda: self.path.open("a", encoding="utf-8")) as file:
            print(json.dumps(line), file=file)

    def back(self, t0: int) -> None:
        """Forget the rounds from t0 on."""
        self.replace([line for line in self.lines if line["round"] < t0])

    def replace(self, lines: Sequence[dict[str, Any]]) -> None:
        """Have these lines instead, whole or not at all."""
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in lines))


def write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with_descriptor(lambda: partial.write_text(text, encoding="utf-8"))
    partial.replace(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one may be torn."""
    lines: list[dict[str, Any]] = []
    written = with_descriptor(lambda: path.read_text(encoding="utf-8")) if path.exists() else ""
    for text in written.splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line, read from the end, so that a long file costs no more than a short one."""
    try:
        with path.open("rb") as file:
            text, _ = tail(file.fileno())
        found: dict[str, Any] | None = json.loads(text) if text else None
    except (FileNotFoundError, ValueError):  # not there yet, or not any more
        return None
    return found


def tail(file: int) -> tuple[bytes, int]:
    """The last whole line of an open file, and where it ends: what comes after it is torn."""
    end = _line_start(file, os.fstat(file).st_size)
    start = _line_start(file, max(0, end - 1))
    return os.pread(file, end - start, start), end


def _line_start(file: int, at: int) -> int:
    """Where the line begins that has what is before `at`: block by block, since one read has 2 GiB at most."""
    while at:
        start = max(0, at - BLOCK)
        found = os.pread(file, at - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0
