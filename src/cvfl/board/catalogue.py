"""All runs below a folder, looked at by one thread at a time: what has not changed is not read twice."""

from __future__ import annotations

import time
from pathlib import Path

from cvfl.board.known import Known, stamp
from cvfl.board.places import Found, find
from cvfl.board.rows import Row, row
from cvfl.runs.status import NAME, status_path

LOOK = 0.5
"""Seconds between two looks at runs that are under way."""
_SEARCH = 3.0
"""Seconds between two searches for new runs, and for changes of those that are over."""
_OPEN = 64
"""Runs whose lines are kept in memory."""
_FILES = ("summary.json", "config.json", NAME, "metrics.jsonl", "state")


class Catalogue:
    """The runs below `root`, by name."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[str, Known] = {}
        self._marks: dict[str, object] = {}
        self._rows: dict[str, Row] = {}
        self._found = Found(())
        self._looked = self._searched = float("-inf")

    def refresh(self) -> None:
        """Look again, unless it was just done."""
        now = time.monotonic()
        if now - self._looked < LOOK / 2:
            return
        search = now - self._searched >= _SEARCH
        if search:
            self._found, self._searched = find(self.root), now
            self._forget()
        for place in self._found.places:
            known = self._known.get(place.name)
            if known is None or known.under_way or search:
                mark = (*(stamp(place.path / name) for name in _FILES), stamp(status_path(place.path)))
                if known is None or known.under_way or mark != self._marks[place.name]:
                    self._see(Known(place, known.columns_read if known else None), mark)
        self._close()
        self._looked = now

    def _see(self, known: Known, mark: object) -> None:
        """Keep a look at a run; a status that an aborted run has left behind is none."""
        self._known[known.name], self._marks[known.name] = known, mark
        if known.exists:
            self._rows[known.name] = row(known)
        else:
            self._rows.pop(known.name, None)

    def _forget(self) -> None:
        for name in self._known.keys() - {place.name for place in self._found.places}:
            for kept in (self._known, self._marks, self._rows):
                kept.pop(name, None)

    def _close(self) -> None:
        """Forget the lines of those runs that were opened first, if too many are open."""
        opened = [known for known in self._known.values() if known.columns_read is not None and not known.under_way]
        for known in opened[: max(0, len(opened) - _OPEN)]:
            known.close()

    @property
    def rows(self) -> dict[str, Row]:
        """A row of the list a run, by name."""
        return dict(self._rows)

    @property
    def more(self) -> bool:
        """Whether there are more runs than are listed."""
        return self._found.more

    def known(self, name: str) -> Known | None:
        """A run by its name, if it is listed."""
        return self._known.get(name) if name in self._rows else None
