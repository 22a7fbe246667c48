"""How a run goes, for who looks on: a small file that the process of a run keeps up to date, about once a second.

    .RUN.status.json   beside the place of the run directory, which may not be there before the first round, or the last
    RUN/status.json    the same when the run is over

A process that is killed leaves the file behind, so it says which process wrote it. There is nothing in it of rows.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field, ValidationError

from cvfl.runs.alarms import joined
from cvfl.runs.journal import write_whole
from cvfl.runs.progress import Progress
from cvfl.runs.record import Record

NAME = "status.json"
_PACE = 1.0
"""Seconds between two versions of the file."""
_CLOCK = 5.0
"""Seconds by which the clock may have been set meanwhile."""
_AWAY = 60.0
"""Seconds after which a process on another machine, of which nobody here can say whether it lives, counts as gone."""
Phase = Literal["preparing", "waiting", "training", "finished", "stopped", "failed"]


class Attendance(Record):
    """A party as the server sees it: whether it is connected and since when, how often it came, since when it owes."""

    here: bool = False
    since: float
    visits: int = 0
    owes_since: float | None = None
    heard: int | None = None

    def seen(self, here: bool, heard: int | None) -> Attendance:
        """The same after another look; `heard` are its messages so far, if another one is due."""
        now = time.time()
        changed = {"here": here, "since": now, "visits": self.visits + here} if here != self.here else {}
        since = None if heard is None else self.owes_since if heard == self.heard else now
        return self.model_copy(update=changed | {"heard": heard, "owes_since": since})


class Status(Record):
    """What the process of a run told last; times are seconds since 1970."""

    phase: Phase = "preparing"
    step: str = ""
    updated: float
    began: float
    starts: int = 1
    pid: int
    born: float | None
    host: str
    journal: str | None = None
    rounds: int | None = None
    round: int | None = None
    metric: str | None = None
    note: str = ""
    parties: dict[str, Attendance] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether the process is there; of one on another machine, whether it has told something lately."""
        if self.phase in ("finished", "stopped", "failed"):
            return False
        if self.host != socket.gethostname():
            return time.time() - self.updated < _AWAY
        born = _born(self.pid)
        return born is not None and self.born is not None and abs(born - self.born) < _CLOCK


def status_path(target: Path) -> Path:
    """Where the status of a run is that will be at `target`."""
    return target.with_name(f".{target.name}.{NAME}")


def read_status(path: Path) -> Status | None:
    """A status, if there is one that can be read."""
    try:
        return Status.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


class StatusFile:
    """Keeps the status of the run that will be at `target`; it never stops a run, whatever the disk says."""

    def __init__(self, target: Path, config: Mapping[str, Any], journal: Path | None = None) -> None:
        self._target, self._path = target, status_path(target)
        earlier, now = read_status(self._path) or read_status(target / NAME), time.time()
        pid = psutil.Process().pid
        self._parties: dict[str, Attendance] = earlier.parties if earlier else {}
        self._values: dict[str, Any] = {
            "began": earlier.began if earlier else now,
            "starts": earlier.starts + 1 if earlier else 1,
            "pid": pid,
            "born": _born(pid),
            "host": socket.gethostname(),
            "journal": str(journal.absolute()) if journal else None,
            "config": dict(config),
        }
        self._written = 0.0
        self.over: Phase = "finished"
        """What is told of the run when it is over."""
        self.tell("preparing")

    def tell(self, phase: Phase, **values: Any) -> None:
        """Something new; it is written at once if the phase is another one, else when it is time."""
        new = phase != self._values.get("phase")
        self._values |= {"phase": phase, **values}
        if new or time.monotonic() - self._written > _PACE:
            self._write(self._path)

    def round(self, progress: Progress) -> None:
        """A round is over."""
        told = {"rounds": progress.rounds, "round": progress.report.t0, "metric": progress.metric}
        known = self._values.get("note", "")
        self.tell("training", step="", note=joined(known, progress.note), **told)

    def look(self, names: Sequence[str], missing: Sequence[str], awaited: Mapping[str, int]) -> None:
        """Who is connected, and of whom a message is due, with how many of theirs have come."""
        known = self._parties
        self._parties = {
            name: known.get(name, Attendance(since=time.time())).seen(name not in missing, awaited.get(name))
            for name in names
        }
        if [one.here for one in known.values()] != [one.here for one in self._parties.values()]:
            self._written = 0.0  # somebody came or went
        self.tell(self._values["phase"])

    def close(self, phase: Phase) -> None:
        """The run is over, or stopped: the status goes into its directory; where nothing is left, so does nothing."""
        self._values |= {"phase": phase, "step": ""}
        with contextlib.suppress(OSError):
            if self._target.is_dir():
                self._write(self._target / NAME)
                self._path.unlink(missing_ok=True)
            elif (journal := self._values["journal"]) and Path(journal).exists():
                self._write(self._path)
            else:
                self._path.unlink(missing_ok=True)

    def _write(self, path: Path) -> None:
        self._written = time.monotonic()
        status = Status(**self._values, updated=time.time(), parties=self._parties)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, status.model_dump_json() + "\n")


@contextmanager
def status_kept(target: Path, config: Mapping[str, Any], journal: Path | None = None) -> Iterator[StatusFile]:
    """Keep the status of the run that will be at `target`; `journal` is where its lines are until then."""
    status = StatusFile(target, config, journal)
    try:
        yield status
    except KeyboardInterrupt:
        status.close("stopped")
        raise
    except BaseException:
        status.close("failed")
        raise
    status.close(status.over)


def _born(pid: int) -> float | None:
    """When a process began; None if there is none, or nothing left of it but its exit code."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
