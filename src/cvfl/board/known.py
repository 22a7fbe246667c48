"""What is known of one run: from its directory, or, while it has none, from its status and the lines at its server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cvfl.board.places import Place
from cvfl.errors import DataError
from cvfl.runs.alarms import parted
from cvfl.runs.columns import Columns
from cvfl.runs.read import flattened, read_config, read_run, read_summary
from cvfl.runs.record import Metrics, Run, Sent, Summary, tells_randomised
from cvfl.runs.status import NAME, Status, read_status, status_path

State = Literal["preparing", "waiting", "training", "finished", "stopped", "failed", "damaged"]
UNDER_WAY: tuple[State, ...] = ("preparing", "waiting", "training")
_SILENT = 30.0
"""Seconds since the last line after which a run that tells no status counts as stopped."""
_RECENT = 100
"""Rounds whose mean duration says how fast a run is."""


class Known:
    """One look at a run; figures of files are read when they are asked for, and once."""

    def __init__(self, place: Place, columns: Columns | None = None) -> None:
        self.place, self.path, self.name = place, place.path, place.name
        self.status: Status | None = read_status(status_path(self.path)) or read_status(self.path / NAME)
        self._columns = columns if columns is not None and columns.path == self.journal else None
        self._fresh, self._unread = False, ""

    @property
    def journal(self) -> Path:
        """Where its lines are: in its directory or, as long as there is none, with the state of its server."""
        own, told = self.path / "metrics.jsonl", self.status.journal if self.status else None
        return Path(told) if told and Path(told).name == own.name and stamp(own) is None else own

    @cached_property
    def exists(self) -> bool:
        """Whether there is anything of it: a process that is there, or something on the disk."""
        return self.under_way or stamp(self.path) is not None or stamp(self.journal) is not None

    @property
    def columns(self) -> Columns:
        """Its lines so far."""
        if self._columns is None:
            self._columns = Columns(self.journal)
        if not self._fresh:
            self._columns.refresh()
            self._fresh = True
        return self._columns

    @property
    def columns_read(self) -> Columns | None:
        """Its lines as far as they were read."""
        return self._columns

    def close(self) -> None:
        """Forget its lines; they are read again when they are asked for."""
        self._columns, self._fresh = None, False

    @cached_property
    def _read(self) -> Summary | str | None:
        """Its summary; what is wrong with it, in a line; or None, if there is none yet."""
        if stamp(self.path / "summary.json") is None:
            return None
        try:
            return read_summary(self.path)
        except DataError as error:
            return self._told(error)

    def _told(self, error: DataError) -> str:
        """An error without the folder."""
        return str(error).replace(f"{self.path}/", "")

    @property
    def _summary(self) -> Summary | None:
        """Its summary, if it still holds: that of a run which was taken up again is an old one."""
        return self._read if isinstance(self._read, Summary) and not self.under_way else None

    @property
    def problem(self) -> str:
        """What is wrong with its files, in a line."""
        return self._read if isinstance(self._read, str) else ""

    @property
    def alarms(self) -> list[str]:
        """What its people should look at: of a run that is over by its summary, else by its process and its lines."""
        if self._summary:
            return parted(self._summary.warning or "")
        noted = parted(self.status.note if self.status else "")
        return [*dict.fromkeys([*noted, *self.columns.tally.alarms.lines])]

    @property
    def damage(self) -> list[str]:
        """What of its files cannot be read and is left out, a line a file."""
        found = [self.problem] if self.problem else [self._beside] if self._beside else []
        if lines := self.columns.damaged:
            more = f" and {len(lines) - 1:,} more" if len(lines) > 1 else ""
            found.append(f"{self.journal.name}: line {lines[0]:,}{more} cannot be read; what is shown is without that")
        return found

    @property
    def _beside(self) -> str:
        """What is wrong with a file beside its summary."""
        self.record  # noqa: B018  reads them
        return self._unread

    @cached_property
    def state(self) -> State:
        """What goes on."""
        status = self.status
        if status is not None and status.alive:
            return status.phase
        if self.problem:
            return "damaged"
        if status is not None and status.phase == "failed":
            return "failed"
        if stamp(self.path / "state") is not None:
            return "stopped" if status is not None or self._silent else "training"
        return "finished" if isinstance(self._read, Summary) and self._read.completed else "stopped"

    @property
    def _silent(self) -> bool:
        mark = stamp(self.journal)
        return mark is None or time.time() - mark[0] / 1e9 > _SILENT

    @property
    def under_way(self) -> bool:
        """Whether its process is there."""
        return self.state in UNDER_WAY

    @cached_property
    def record(self) -> Run | None:
        """Its record as tables take it: of a run that is not over made of its lines. None before the first one."""
        if self._summary:
            try:
                return read_run(self.path, with_history=False)
            except DataError as error:  # what stands beside the summary is damaged; the lines are there
                self._unread = self._told(error)
        last = self.columns.last
        if last is None:
            return None
        scores = self.columns.evaluated[-1] if self.columns.evaluated else None
        return Run.model_validate(
            {
                "name": str(self.config.get("compressor", self.name)),
                "seed": self.config.get("seed", 0) if isinstance(self.config.get("seed", 0), int) else 0,
                "rounds": last.number + 1,
                "completed": False,
                "metric": self.metric,
                "metrics": {} if scores is None else {part: getattr(scores, part) for part in _PARTS},
                "bytes": last.sent.model_dump() | {"by_party": {m: s.model_dump() for m, s in last.by_party.items()}},
                "seconds": self.seconds,
                "config": self.config,
                "history": (),
                "settings": self.settings,
            }
        )

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Its configuration."""
        if isinstance(self._read, Summary) and self._read.config:
            return self._read.config
        found = read_config(self.path)
        return found or (self.status.config if self.status else {})

    @property
    def settings(self) -> dict[str, str]:
        """The same as text under dotted keys."""
        return dict(flattened(self.config))

    @cached_property
    def metric(self) -> str | None:
        """The metric that tables show."""
        if isinstance(self._read, Summary) and self._read.metric:
            return self._read.metric
        return self.status.metric if self.status and self.status.metric else _usual(self.scores)

    @property
    def scores(self) -> Metrics:
        """Metrics of the newest evaluation: of test rows, or of validation rows where there are no others."""
        if self._summary:
            return self._summary.tested or self._summary.metrics.validation
        newest = self.columns.evaluated[-1] if self.columns.evaluated else None
        return (newest.test or newest.validation) if newest else {}

    @property
    def estimated(self) -> bool:
        """Whether these are estimates, by labels that were told randomised; its lines never have others."""
        return self._summary.estimated if self._summary else tells_randomised(self.config)

    @property
    def sent(self) -> Sent | None:
        """All bytes so far."""
        if self._summary:
            return self._summary.sent
        return self.columns.last.sent if self.columns.last else None

    @property
    def done(self) -> int:
        """Rounds that are over."""
        if self._summary:
            return self._summary.rounds
        return self.columns.last.number + 1 if self.columns.last else 0

    @property
    def rounds(self) -> int | None:
        """Rounds that there are to be."""
        if self.status and self.status.rounds:
            return self.status.rounds
        if isinstance(rounds := self.config.get("rounds"), int):
            return rounds
        epochs, last = self.config.get("epochs"), self.columns.last if self.under_way else None
        if isinstance(epochs, int) and last is not None and last.epoch > 0:
            return max(self.done, round(epochs * (last.number + 1) / last.epoch))
        return None

    @property
    def seconds(self) -> float:
        """How long its rounds took; of a run that is over also what came after them."""
        if self._summary:
            return self._summary.seconds
        return float(np.nansum(self.columns["seconds"]))

    @property
    def pace(self) -> float | None:
        """Rounds a second, of the newest ones if it goes on."""
        if self.under_way:
            recent = self.columns["seconds"][-_RECENT:]
            recent = recent[np.isfinite(recent)]
            return len(recent) / total if (total := float(recent.sum())) > 0 else None
        return self.done / self.seconds if self.seconds > 0 and self.done else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the last round, at that pace."""
        if self.state != "training" or self.rounds is None or not self.pace:
            return None
        return max(0, self.rounds - self.done) / self.pace

    @property
    def changed(self) -> float:
        """When its files last changed."""
        paths = (self.path / "summary.json", self.journal, status_path(self.path), self.path)
        return max((mark[0] / 1e9 for path in paths if (mark := stamp(path))), default=0.0)


_PARTS = ("train", "validation", "test")
_LISTED = ("accuracy", "roc_auc", "r2", "rmse")


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None if there is none, or none that can be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _usual(scores: Metrics) -> str | None:
    """A metric to show where nobody has said which."""
    return next((name for name in (*_LISTED, *sorted(scores)) if name in scores), None)
