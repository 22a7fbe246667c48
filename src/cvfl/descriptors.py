"""File descriptors. Whoever connects to a role uses one up, and the role's own files must not be without.

    0 ─────────────────────────── soft limit ──────────── soft limit + RESERVE
      connections, and everything            the role's own files, for the moment of opening them

A connection is refused by the system at the soft limit; gRPC then tries again every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cvfl.errors import exhausted

try:
    import resource
except ImportError:  # a system without such limits
    resource = None  # type: ignore[assignment]

MOST = 1 << 14
"""More are not claimed: a connection whose handshake is not over takes 20 to 50 KB."""
RESERVE = 32
PATIENCE = 60.0
"""Seconds for which a file that cannot be opened for lack of descriptors is tried again."""
_PAUSE = 0.05
T = TypeVar("T")


def claim_descriptors() -> None:
    """Take as many as the system gives a process, up to MOST and but for the reserve."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most - RESERVE, most // 2), hard))


def with_descriptor(action: Callable[[], T]) -> T:
    """Do what opens a file; when no descriptor is free, with one of the reserve, and again for a while."""
    until = time.monotonic() + PATIENCE
    try:
        return action()
    except OSError as error:
        if not exhausted(error):
            raise
    while True:
        try:
            with _reserve():
                return action()
        except OSError as error:
            if not exhausted(error) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


@contextmanager
def _reserve() -> Iterator[None]:
    if resource is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = soft + RESERVE if hard == resource.RLIM_INFINITY else min(soft + RESERVE, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
