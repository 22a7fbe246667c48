"""`cvfl board` and a board beside a run, as an operator meets them."""

from __future__ import annotations

import builtins
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
from typer.testing import CliRunner

from board.made import finished
from cvfl.cli import app
from cvfl.cli.observers import Observer
from cvfl.runs.progress import Progress
from cvfl.runs.status import NAME, read_status, status_path

pytestmark = pytest.mark.usefixtures("no_pages")
CONFIG = 'rounds = 40\nbatch_size = 32\nevaluate_every = 5\n[data]\nname = "wine"\n[step_size]\neta = 0.1\n'


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def rows(port: int) -> dict[str, dict[str, object]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/api/runs")
    found = json.loads(connection.getresponse().read())["rows"]
    connection.close()
    return {row["name"]: row for row in found}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "wine.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_shows_an_example_and_the_list_of_commands_has_it() -> None:
    code, output = call("board", "--help")
    assert code == 0
    assert "Example: cvfl board runs --port 8080" in " ".join(output.split())
    assert "Show runs in the browser" in call("--help")[1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nowhere",), "nowhere: no such folder; name one that has runs, or train one with: cvfl train CONFIG"),
        (("wine.toml",), "wine.toml is a file; name a folder of runs"),
        (("--host", "0.0.0.0"), "0.0.0.0: a board that others can reach needs a token; give --token FILE"),
        (("--host", "0.0.0.0", "--token", "wine"), "wine: the token cannot be read (FileNotFoundError)"),
        (("--token", "short"), "short: a token has 16 characters or more"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: tuple[str, ...], line: str) -> None:
    (folder / "short").write_text("12345\n")
    code, output = call("board", "--port", "0", *arguments)
    assert code == 2
    assert output.startswith(f"error: {line}")
    assert output.count("\n") == 1


def test_a_port_in_use_is_one_line(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, output = call("board", "--port", port)
    assert code == 2
    assert output == f"error: --port 127.0.0.1:{port}: Address already in use; is another process there?\n"


def test_without_its_packages_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.partition(".")[0] in ("starlette", "uvicorn"):
            raise ImportError(name)
        return whole(name, *rest)

    for name in [name for name in sys.modules if name.startswith(("cvfl.board", "starlette", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    for arguments in (("board",), ("train", "wine.toml", "--board")):
        code, output = call(*arguments)
        assert code == 2
        assert "needs: pip install 'cvfl[board]'" in output
    assert [path.name for path in folder.iterdir()] == ["wine.toml"]


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_says_where_it_is_and_ends_when_asked_to(folder: Path, ending: signal.Signals) -> None:
    finished(folder / "runs" / "one")
    before = signal.signal(ending, signal.default_int_handler)  # else a child inherits that it is ignored
    command = [sys.executable, "-m", "cvfl.cli", "board", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = child.stdout.readline().split()[0]
        port = int(url.rstrip("/").rpartition(":")[2])
        assert url == f"http://127.0.0.1:{port}/"
        assert rows(port)["one"]["state"] == "finished"
        child.send_signal(ending)
        _, said = child.communicate(timeout=20)
    signal.signal(ending, before)
    assert child.returncode == 128 + ending
    assert said == "stopped\n"


def test_a_run_is_shown_while_it_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, dict[str, object]] = {}
    url: list[str] = []
    told = Observer.event

    def event(self: Observer, event: str, **values: object) -> None:
        if event == "board":
            url.append(str(values["url"]))
        told(self, event, **values)

    def round_(self: Observer, progress: Progress) -> None:
        end = time.monotonic() + 20.0
        while progress.report.t0 == 30 and "one" not in seen and time.monotonic() < end:
            time.sleep(0.6)  # folders are searched for new runs every few seconds
            seen.update(rows(int(url[0].rstrip("/").rpartition(":")[2])))

    monkeypatch.setattr("cvfl.cli.observers._Terminal.event", event)
    monkeypatch.setattr("cvfl.cli.observers._Terminal.round", round_)
    code, output = call("train", "wine.toml", "--board", "--out", "runs/one")
    assert code == 0, output
    assert seen["one"]["state"] == "training"
    assert 20 <= seen["one"]["rounds"] <= 31
    assert seen["one"]["metric"] == "accuracy"
    status = read_status(folder / "runs" / "one" / NAME)
    assert status is not None
    assert (status.phase, status.rounds, status.alive) == ("finished", 40, False)
    assert sorted(path.name for path in folder.iterdir()) == ["runs", "wine.toml"]
    assert [path.name for path in (folder / "runs").iterdir()] == ["one"]
    assert not [thread for thread in threading.enumerate() if thread.name == "cvfl-board"]


def test_a_run_that_stops_says_so_and_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(self: Observer, progress: Progress) -> None:
        if progress.report.t0 == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr("cvfl.federation.train.KEEP_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr("cvfl.cli.observers._Terminal.round", stops)
        assert call("train", "wine.toml", "--out", "runs/one")[0] == 130
    status = read_status(folder / "runs" / "one" / NAME)
    assert status is not None
    assert (status.phase, status.starts) == ("stopped", 1)
    code, output = call("train", "wine.toml", "--out", "runs/one", "--resume")
    assert code == 0, output
    again = read_status(folder / "runs" / "one" / NAME)
    assert again is not None
    assert (again.phase, again.starts, again.began) == ("finished", 2, status.began)


def test_what_goes_wrong_is_not_in_the_status(folder: Path) -> None:
    code, output = call("train", "wine.toml", "--out", "runs/one", "--set", "batch_size=100000")
    assert code == 2
    assert "batch_size" in output
    assert not status_path(folder / "runs" / "one").exists()


@pytest.mark.slow
def test_a_federation_of_processes_tells_who_is_there(folder: Path) -> None:
    command = [sys.executable, "-m", "cvfl.cli", "train", "wine.toml", "--runtime", "grpc", "--out", "runs/one"]
    command += ["--set", "rounds=150", "--set", "data.parties=2"]
    path, found = status_path(folder / "runs" / "one"), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        while child.poll() is None:
            if (status := read_status(path)) is not None:
                found.append(status)
            time.sleep(0.2)
        assert child.returncode == 0
    assert {"waiting", "training"} <= {status.phase for status in found}
    waiting = next(status for status in found if status.phase == "waiting")
    assert len(waiting.parties) == 2
    training = next(status for status in found if status.phase == "training")
    assert all(party.here and party.visits == 1 for party in training.parties.values())
    assert training.journal is not None
    over = read_status(folder / "runs" / "one" / NAME)
    assert over is not None
    assert over.phase == "finished"
