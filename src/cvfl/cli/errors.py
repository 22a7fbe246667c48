"""Errors as a user sees them: one line on standard error, exit code 2 or, for what passes by itself, 75."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from cvfl.errors import ConfigError, CvflError, ExhaustedError, exhausted, plain

PASSING = 75
"""The exit code of what passes by itself, as sysexits.h has it: whoever starts the role again is right."""


@contextmanager
def one_line() -> Iterator[None]:
    """Turn a cvfl error into its line and exit code, Ctrl-C into exit code 130."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        yield
    except CvflError as error:
        console.print(f"error: {plain(str(error))}", style="red", markup=False)
        raise typer.Exit(PASSING if isinstance(error, ExhaustedError) else 2) from None
    except OSError as error:
        if not exhausted(error):
            raise
        console.print(f"error: {plain(str(error))}", style="red", markup=False)
        raise typer.Exit(PASSING) from None
    except KeyboardInterrupt:
        console.print("stopped")
        raise typer.Exit(130) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C, so that processes which a command has started end with it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Say what to install when a library that only some commands need is not there."""
    try:
        yield
    except ImportError:
        raise ConfigError(f"this command needs: pip install 'cvfl[{name}]'") from None
