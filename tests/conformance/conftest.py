from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.cases import SERVER
from conformance.loop import opened
from conformance.outcome import Outcome, in_process
from conformance.peers import CONFIG
from conformance.threads import Threads, threads


@pytest.fixture
def tidy(no_pages: None) -> Iterator[None]:
    """Pages are tested elsewhere; tables are closed."""
    yield
    while opened:
        opened.pop().close()


@pytest.fixture(scope="session")
def expected() -> Outcome:
    """Where a federation of `CONFIG` ends, whoever tried to disturb it."""
    return in_process(CONFIG)


@pytest.fixture
def federation(tmp_path: Path, tidy: None) -> Iterator[Threads]:
    """A server that waits for its parties."""
    with threads(CONFIG, tmp_path) as running:
        running.start(SERVER)
        yield running


# A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
