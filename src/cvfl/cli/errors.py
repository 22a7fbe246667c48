"""Errors as a user sees them: one line on standard error, exit code 2."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from cvfl.errors import ConfigError, CvflError


@contextmanager
def one_line() -> Iterator[None]:
    """Turn a cvfl error into its line and exit code 2, Ctrl-C into exit code 130."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        yield
    except CvflError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
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
def extra(name: str, what: str = "this command") -> Iterator[None]:
    """Say what to install when a library that only some commands or options need is not there."""
    try:
        yield
    except ImportError:
        raise ConfigError(f"{what} needs: pip install 'cvfl[{name}]'") from None
