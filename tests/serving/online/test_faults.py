"""What goes wrong at a role itself: its log cannot be written, it is refused again and again, a thread of it dies."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.cases import write_config
from conformance.network import free_port
from cvfl.cli import app
from cvfl.errors import ExhaustedError, OutputError, RemoteProtocolError
from cvfl.federation.train import train
from cvfl.runs.actions import NAME, ActionLog, read_actions, verified
from cvfl.runs.bundle import read_bundle
from cvfl.runs.directory import PARAMETERS
from cvfl.runs.witness import ServingRecorder
from cvfl.serving.online import service, stock
from cvfl.serving.online.desk import Desk
from cvfl.serving.online.door import Limits
from cvfl.serving.online.roles import party_role
from cvfl.serving.online.stock import PartyStock, Watch
from serving import tables
from serving.online.doors import MEMORY, Serving, trained

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("given"))


@contextmanager
def full(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is no room for the lines of this log."""
    write, inode = os.write, log.stat().st_ino

    def refused(file: int, data: Any) -> int:
        if os.fstat(file).st_ino == inode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refused)
        yield


def code_of(serving: Serving) -> str:
    """What is in the way of requests."""
    found = serving.get("/v2/health/ready")
    return "" if found.status == 200 else found.code


@pytest.mark.parametrize("breaks", [False, True], ids=["goes on", "breaks"])
def test_a_door_whose_log_is_full_says_so_and_goes_on_when_there_is_room(breaks, given, tmp_path, monkeypatch):
    """Also if its connection breaks meanwhile; and the log has what was sent before."""
    monkeypatch.setattr("cvfl.runs.witness.EVERY", 0.3)
    name, log = next(iter(given.expected)), tmp_path / "state" / "bank" / NAME
    right = [{"id": name} | given.expected[name]]
    with Serving(tmp_path, given) as serving:
        with full(log, monkeypatch):
            assert serving.predict(name).body["scores"] == right
            serving.until(lambda: code_of(serving) == "log")
            if breaks:
                serving.turns["bank"].hang_up()
            asked = time.monotonic()
            while time.monotonic() - asked < 2:
                assert serving.predict(name).code == "log"
                time.sleep(0.05)
        serving.until_ready()
        assert serving.predict(name).body["scores"] == right
        why = f"{log}: cannot be written: No space left on device"
        assert ("bank", f"log {{'why': '{why}'}}") in serving.events
        assert serving.threads["bank"].is_alive()
    assert sum(sum(line["rows"].values()) for line in read_actions(log) if line["event"] == "served") == 2
    assert verified(log).lines == len(list(read_actions(log)))


@pytest.mark.parametrize("thread", ["cvfl-batching", "cvfl-watch"])
def test_a_log_that_fails_in_another_thread_than_that_of_the_connection(thread, given, tmp_path, monkeypatch):
    """Those of a request, and of a new model: the connection ends, and what could not be said is said on the next."""
    frames, room, failed = ServingRecorder.frame, [thread], list[str]()

    def frame(recorder: ServingRecorder, *more: Any) -> None:
        if threading.current_thread().name in room:
            failed.append(room.pop())
            raise OutputError("no room")
        frames(recorder, *more)

    name = next(iter(given.expected))
    with Serving(tmp_path, given) as serving:
        monkeypatch.setattr(ServingRecorder, "frame", frame)
        if thread == "cvfl-batching":
            found = serving.predict(name)
            assert (found.status, found.code) == (503, "failed")
            assert not serving.desk.batching._under_way
        else:
            after = another_run(tmp_path / "next")
            for role in serving.models:
                serving.bring(role, after)
            run = read_bundle(after / PARAMETERS / "bank.model.json").run
            serving.until(lambda: failed and serving.get("/v2/health/ready").body["run"] == run)
        serving.until(lambda: serving.predict(name).status == 200)
    assert failed == [thread]


def another_run(folder: Path) -> Path:
    """Of the same terms, on other people."""
    config = tables.config(tables.write(tables.frames(first=500), folder / "in"))
    run = train(config, out=folder / "run", workers=1).path
    assert run is not None
    return run


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("a bug"), 1), (ExhaustedError("no descriptor"), 75)])
def test_a_door_whose_party_has_died_ends_and_says_why(error, code, given, tmp_path, monkeypatch):
    """So that whoever started it starts it again."""

    def dies(*_: Any) -> None:
        time.sleep(0.5)
        raise error

    monkeypatch.setattr(service, "serve_party", dies)
    config = write_config(tmp_path / "fed.toml", given.config)
    words = ["serve", str(config), "--name", "bank", "--model", str(given.run), "--state", str(tmp_path / "state")]
    words += ["--insecure", "--http", f"127.0.0.1:{free_port()}", "--log-json"]
    never = threading.Timer(60, os.kill, (os.getpid(), signal.SIGTERM))
    never.start()
    found = CliRunner().invoke(app, words)
    never.cancel()
    assert found.exit_code == code, found.output
    if code == 1:
        assert found.exception is error
    assert '"answering"' in found.output  # it was open
    assert [line["event"] for line in read_actions(tmp_path / "state" / NAME)] == ["started", "ended"]


def test_a_door_that_can_send_nothing_any_more_closes(given, tmp_path, monkeypatch):
    def bug(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Desk, "_ask", bug)
    with Serving(tmp_path, given, Limits(timeout=1.0)) as serving:
        assert serving.predict("p1010").code == "stopping"
        serving.threads["door"].join(30)
        assert not serving.threads["door"].is_alive()
        assert str(serving.desk.failure) == "a bug"
        assert serving.door.trouble.code == "stopping"


def test_a_party_that_is_refused_again_and_again_fills_neither_memory_nor_its_log(given, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "_PAUSE", 0.0)
    roles = list[weakref.ref[Any]]()

    def noted(*given: Any) -> Any:
        role = party_role(*given)
        roles.append(weakref.ref(role))
        return role

    monkeypatch.setattr(service, "party_role", noted)
    log = tmp_path / "state" / "shop" / NAME
    with Serving(tmp_path, given) as serving:
        serving.stop_party("shop")
        before = sum(1 for _ in read_actions(log))
        serving.stocks["shop"].config = serving.config.model_copy(update={"seed": 77})  # other terms
        serving.start_party("shop")
        serving.until(lambda: len(roles) > 20)
        gc.collect()
        assert sum(role() is not None for role in roles) < 5
        serving.stop_party("shop")
    events = [line["event"] for line in read_actions(log)][before:]
    assert events.count("again") == 1
    assert events.count("joined") == events.count("left") > 15


class Waits(threading.Event):
    """Notes for how long it was waited, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return False


def test_a_role_begins_anew_later_each_time_until_it_has_gone_well(tmp_path, monkeypatch):
    over, said, now = Waits(), list[str](), [0.0]
    recorder = ServingRecorder(ActionLog(tmp_path), "shop", ["bank", "shop"])
    tries: Iterator[tuple[str, float]] = iter([*[("refused", 0.0)] * 9, ("other", 0.0), ("other", 61.0)])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def once() -> None:
        why, seconds = next(tries, ("", 0.0))
        now[0] += seconds
        if why:
            raise RemoteProtocolError(why)
        over.set()

    service._again_and_again(once, recorder, lambda event, why: said.append(why), over)
    assert over.seconds == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 1]
    assert said == ["refused"] * 9 + ["other"] * 2
    assert [line["event"] for line in read_actions(tmp_path / NAME)] == ["again"] * 3


def test_a_role_begins_anew_when_its_log_can_be_written(tmp_path, monkeypatch):
    """However long that takes: nothing is done of which there is no line."""
    over, tries = Waits(), list[str]()
    recorder = ServingRecorder(ActionLog(tmp_path), "shop", ["bank", "shop"])
    told, again = list[str](), recorder.again
    recorder.tell = told.append
    rooms = [False] * 5 + [True]

    def when_there_is_room() -> None:
        if rooms.pop(0):
            return again()
        with full(tmp_path / NAME, monkeypatch):
            return again()

    def once() -> None:
        tries.append("".join(line["event"] for line in read_actions(tmp_path / NAME)))
        if len(tries) > 1:
            return over.set()
        raise RemoteProtocolError("refused")

    monkeypatch.setattr(recorder, "again", when_there_is_room)
    service._again_and_again(once, recorder, lambda event, why: None, over)
    assert tries == ["", "again"]
    assert over.seconds == [1] * 6
    assert told == [f"{tmp_path / NAME}: cannot be written: No space left on device"]


def test_a_server_that_begins_anew_says_of_each_party_that_it_is_gone(given, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "_PAUSE", 0.0)
    role = SimpleNamespace(names=("bank", "shop"), missing=["shop"], awaited={})
    errors: Iterator[BaseException] = iter([*[RemoteProtocolError("broken off")] * 3, KeyboardInterrupt()])

    class Carrier:
        port = 1

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def run(self, on_wait: Any) -> None:
            raise next(errors)

    monkeypatch.setattr(service, "server_role", lambda *_: role)
    monkeypatch.setattr(service, "FederationServer", Carrier)
    recorder = ServingRecorder(ActionLog(tmp_path), "server", ["bank", "shop"])
    with pytest.raises(KeyboardInterrupt):
        service.serve_server(given.config, None, None, recorder, None, lambda *_, **__: None)
    lines = [(line["event"], line.get("who")) for line in read_actions(tmp_path / NAME)]
    assert lines == [("left", "bank"), ("again", None), ("left", "bank"), ("left", "bank")]


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
