"""How long a thread has spent on coding and decoding: read from outside by who wants to know where time goes.

Roles neither read it nor depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Coding(threading.local):
    seconds = 0.0
    depth = 0


_CODING = _Coding()


def coding(work: Callable[P, R]) -> Callable[P, R]:
    """Count the seconds of this function as coding; of one in another they count once."""

    @wraps(work)
    def timed(*args: P.args, **named: P.kwargs) -> R:
        if _CODING.depth:
            return work(*args, **named)
        _CODING.depth, began = 1, time.perf_counter()
        try:
            return work(*args, **named)
        finally:
            _CODING.seconds += time.perf_counter() - began
            _CODING.depth = 0

    return timed


def coded() -> float:
    """Seconds that this thread has spent on coding so far."""
    return _CODING.seconds
