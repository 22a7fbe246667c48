"""Errors as a user sees them: one line on standard error, exit code 2 or, for what passes by itself, 75."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from cvfl.errors import ConfigError, CvflError, ExhaustedError, exhausted, plain

PASSING = 75
"""The exit code of what passes by itself, as sysexits.h has it: whoever starts the role again is right."""


class Ended(KeyboardInterrupt):
    """The system asks the command to end: what it has started and written for a while goes with it, as on Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _end(number: int, _: object) -> None:
    raise Ended(number)


@contextmanager
def one_line() -> Iterator[None]:
    """Turn a cvfl error into its line and exit code; Ctrl-C and signals that end it into "stopped" and their code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with _signals():
            yield
    except CvflError as error:
        console.print(f"error: {plain(str(error))}", style="red", markup=False)
        raise typer.Exit(PASSING if isinstance(error, ExhaustedError) else 2) from None
    except OSError as error:
        if not exhausted(error):
            raise
        console.print(f"error: {plain(str(error))}", style="red", markup=False)
        raise typer.Exit(PASSING) from None
    except KeyboardInterrupt as error:
        console.print("stopped")
        number = error.number if isinstance(error, Ended) else signal.SIGINT
        raise typer.Exit(128 + number) from None


@contextmanager
def _signals() -> Iterator[None]:
    """Take SIGTERM and SIGHUP for Ctrl-C; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def extra(name: str, what: str = "this command") -> Iterator[None]:
    """Say what to install when a library that only some commands or options need is not there."""
    try:
        yield
    except ImportError:
        raise ConfigError(f"{what} needs: pip install 'cvfl[{name}]'") from None
