"""What goes wrong at a role itself: it is stopped while it reads."""

from __future__ import annotations

import threading
import time

import pytest

from cvfl.serving.online import stock
from cvfl.serving.online.stock import PartyStock, Watch
from serving import tables
from serving.online.doors import MEMORY, trained

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("given"))


def test_nobody_waits_for_long_for_what_is_being_read_when_all_is_over(monkeypatch):
    monkeypatch.setattr(stock, "_PATIENCE", 0.2)
    reads, room = threading.Event(), threading.Event()

    def look() -> list[str]:
        reads.set()
        room.wait(20)
        return []

    with Watch(look, lambda lines: None, 0.01) as watch:
        reads.wait(20)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    room.set()
    watch._thread.join(20)


def test_a_table_that_is_being_read_when_all_is_over_is_given_up(given, tmp_path):
    """A thread that computes when the process ends would make it crash."""
    paths = tables.write(tables.frames(first=1000, rows=70), tmp_path)
    steps, found = list[str](), threading.Event()

    def step(what: str, done: int, total: int) -> None:
        if threading.current_thread().name == "cvfl-watch":
            steps.append(what)
            found.set()
            party.over.wait(20)

    party = PartyStock(tables.config(paths), "shop", given.run, MEMORY, 600.0, step)
    rows, lines = party.kept.newest.rows, list[str]()
    with Watch(party.look, lines.extend, 0.01, party.over) as watch:
        tables.write(tables.frames(first=1000, rows=90), tmp_path)
        assert found.wait(20)
    watch._thread.join(20)
    assert not watch._thread.is_alive()
    assert (len(steps), lines) == (1, [])
    assert party.kept.newest.rows is rows
