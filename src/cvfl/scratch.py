"""Folders for what is needed only for a while: copies of tables, roles on this machine, models of a notebook.

Only this user can enter one. It goes with the object that holds it, at the latest when Python ends. One whose process
was killed is removed by the next process that needs a folder: whoever lives holds a lock on its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import weakref
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Self

_LOCK = "lock"


class Scratch:
    """A folder for a while."""

    def __init__(self) -> None:
        _sweep()
        made = Path(mkdtemp(prefix="cvfl-new-"))  # by this name nobody sweeps it away before it is locked
        lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name.replace("cvfl-new-", "cvfl-tmp-")))
        self.close = weakref.finalize(self, _remove, self.path, lock)
        """Remove the folder."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    """Remove what processes of this user have left that were killed."""
    for path in Path(gettempdir()).glob("cvfl-tmp-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
