"""Ends processes when the one that started them is gone, however it ended. Run by its path: it must start quickly.

It waits until its input closes, which happens when its parent ends, even by kill -9; then it ends all processes that
have the mark in their environment, children of children included, whatever sessions they have made for themselves.
"""

from __future__ import annotations

import contextlib
import sys

import psutil

MARK = "CVFL_SUPERVISOR"
PATIENCE = 5.0
"""Seconds that a process has to end when asked, before it is killed."""


def marked(mark: str) -> list[psutil.Process]:
    """All processes of this mark."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(MARK) == mark:
                found.append(one)
    return found


def end(mark: str) -> None:
    """Ask all processes of this mark to end, and kill what does not, and what it has started meanwhile."""
    for one in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    psutil.wait_procs(marked(mark), timeout=PATIENCE)
    while left := marked(mark):
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=PATIENCE)


if __name__ == "__main__":
    sys.stdin.read()
    end(sys.argv[1])
