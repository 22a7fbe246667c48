"""Where runs are: folders below a root that have what a run leaves, and runs that have told where they will be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cvfl.runs.status import NAME as STATUS

DEPTH = 6
"""How deep below the root runs are looked for; those of a suite of studies are four folders down."""
MOST = 5_000
"""Runs that are listed; what is beyond is said to be left out."""
_FOLDERS = 50_000
_LINES = "metrics.jsonl"
_OWN = frozenset(("config.json", "state", STATUS))
"""What a run has beside its lines."""
_LOOKED_AT = 1 << 16
"""Bytes of a file that are looked at to see whose it is."""


@dataclass(frozen=True)
class Place:
    """The folder of a run, which may not be there yet, and its name as seen from the root."""

    path: Path
    name: str


@dataclass(frozen=True)
class Found:
    """Places of runs, and whether there are more than are listed."""

    places: tuple[Place, ...]
    more: bool = False


def find(root: Path) -> Found:
    """All runs below a folder, or the folder itself if it is a run's."""
    places: dict[Path, None] = {}
    for folders, path in enumerate(_runs(root), start=1):
        if path is not None:
            places[path] = None
        if len(places) >= MOST or folders >= _FOLDERS:
            return Found(_named(root, places), True)
    return Found(_named(root, places))


def _named(root: Path, paths: dict[Path, None]) -> tuple[Place, ...]:
    names = ((path, root.name if path == root else path.relative_to(root).as_posix()) for path in paths)
    # A name that is no UTF-8 is shown with its bytes spelled out.
    return tuple(Place(path, os.fsencode(name).decode("utf-8", "backslashreplace")) for path, name in sorted(names))


def _runs(folder: Path, depth: int = 0) -> Iterator[Path | None]:
    """Runs in and below a folder; None for a folder that is none, so that those can be counted."""
    try:
        with os.scandir(folder) as listing:
            entries = {entry.name: entry for entry in listing}
    except OSError:
        return
    if _is_run(folder, entries):
        yield folder
        return
    yield None
    for name, entry in entries.items():
        if name.startswith(".") and name.endswith(f".{STATUS}"):
            yield folder / name.removeprefix(".").removesuffix(f".{STATUS}")
        elif depth < DEPTH and not name.startswith(".") and entry.is_dir() and not _leads_back(entry, depth):
            yield from _runs(Path(entry.path), depth + 1)


def _leads_back(entry: os.DirEntry[str], depth: int) -> bool:
    """Whether it is a link that may lead in a circle; those right below the root are followed elsewhere."""
    return entry.is_symlink() and (
        depth > 0 or Path(entry.path).parent.resolve().is_relative_to(Path(entry.path).resolve())
    )


def _is_run(folder: Path, entries: dict[str, os.DirEntry[str]]) -> bool:
    """A run has a summary, or lines; before its first round it has its configuration, and state.

    Others name files metrics.jsonl, too: one that stands alone is a run's if there is a line of a run in it.
    """
    if "terms.json" in entries:  # the state of a server
        return {"config.json", "state"} <= entries.keys()
    if "summary.json" in entries or {"config.json", "state"} <= entries.keys():
        return True
    return _LINES in entries and (bool(_OWN & entries.keys()) or _has_lines(folder / _LINES))


def _has_lines(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(line.startswith(b'{"round"') for line in file.read(_LOOKED_AT).splitlines())
    except OSError:
        return False
