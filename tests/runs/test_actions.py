"""The log of actions: a chain that shows every change, survives kill -9, and says the same of the same run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conformance.cases import SERVER, settings
from conformance.outcome import in_process, same
from conformance.threads import threads
from cvfl.cli import app
from cvfl.errors import ConfigError, DataError, OutputError
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.runs.actions import NAME, NOTHING, ActionLog, Head, read_actions, verified
from cvfl.runs.witness import PredictionRecorder, Recorder, ServingRecorder
from cvfl.types import Direction
from cvfl.wire import Ask, Found, Prediction, encode
from cvfl.wire.serving import PSEUDONYM

pytestmark = pytest.mark.usefixtures("no_pages")


def written(folder: Path, lines: int = 4) -> Path:
    log = ActionLog(folder)
    for n in range(lines):
        log.append("round", round=n, sent={"bank": {"Broadcast": [1, 100 + n]}})
    log.close()
    return folder / NAME


def told(path: Path) -> list[dict[str, Any]]:
    """The lines without times and what follows from them."""
    return [{k: v for k, v in line.items() if k not in ("time", "before")} for line in read_actions(path)]


def test_each_line_has_the_hash_of_the_one_before(tmp_path: Path) -> None:
    path = written(tmp_path / "state")
    lines = list(read_actions(path))
    assert [line["n"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["before"] == NOTHING
    assert len({line["before"] for line in lines}) == 4
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    before = verified(path)
    log = ActionLog(path.parent)
    assert log.head == before
    log.append("ended")
    assert verified(path).lines == 5


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_bit_of_any_line_but_the_last_can_be_changed(
    at: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And of the last one none that leaves the hash that was noted down."""
    path = written(tmp_path_factory.mktemp("log"))
    content, head = bytearray(path.read_bytes()), verified(path)
    content[at % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        assert verified(path) != head
    except DataError:
        return
    last = content.rstrip(b"\n").rfind(b"\n")
    assert at % len(content) > last - 1


@pytest.mark.parametrize("change", ["removed", "put in", "swapped", "first removed"])
def test_lines_that_are_moved(change: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    match change:
        case "removed":
            del lines[2]
        case "put in":
            lines.insert(2, lines[1])
        case "swapped":
            lines[1], lines[2] = lines[2], lines[1]
        case "first removed":
            del lines[0]
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"line \d: does not follow from the one before"):
        verified(path)


def test_a_line_torn_anywhere_is_dropped_and_said(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    content = path.read_bytes()
    start = content.index(b"\n") + 1
    for end in range(start + 1, len(content)):
        path.write_bytes(content[:end])
        assert verified(path).lines == 1  # which is all that can be read of it
        log = ActionLog(tmp_path)
        log.append("ended")
        log.close()
        assert [line["event"] for line in read_actions(path)] == ["round", "torn", "ended"]
        assert list(read_actions(path))[1]["bytes"] == end - start


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 14])
def test_a_log_is_taken_up_by_its_last_line_alone(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is: a system reads 2 GiB at once at most, and what was not read must not count as torn."""
    monkeypatch.setattr("cvfl.runs.journal.BLOCK", block)
    path = written(tmp_path, 20)
    content, pread = path.read_bytes(), os.pread
    longest = max(map(len, content.splitlines(keepends=True)))
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, max(longest, block)), at))
    for torn in (b"", b"x", b'{"n": 20, "text": "' + b"x" * 500):
        path.write_bytes(content + torn)
        log = ActionLog(tmp_path)
        log.append("ended")
        log.close()
        assert path.read_bytes().startswith(content)
        assert [line["event"] for line in read_actions(path)][20:] == [*(["torn"] if torn else []), "ended"]
        assert verified(path).lines == (22 if torn else 21)


def test_a_log_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, 3)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read as a whole"))
    assert verified(path).lines == len(list(read_actions(path))) == 3


def test_a_last_line_that_is_none_stays_and_is_said(tmp_path: Path) -> None:
    path = written(tmp_path)
    for last in (b"{}\n", b"[1]\n", bytes(40) + b"\n", b'{"n":"4"}\n'):
        content = path.read_bytes() + last
        path.write_bytes(content)
        with pytest.raises(DataError, match="its last line is no line of a log; keep it elsewhere, and a new one"):
            ActionLog(tmp_path)
        assert path.read_bytes() == content


def test_kill_9_while_lines_are_written(tmp_path: Path) -> None:
    code = f"from cvfl.runs.actions import *; log = ActionLog(Path({str(tmp_path)!r}))\n"
    code += "while True: log.append('round', text='x' * 5000)"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        until = time.monotonic() + 60
        while not (tmp_path / NAME).exists() or (tmp_path / NAME).stat().st_size < 200_000:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    ActionLog(tmp_path).append("ended")
    assert verified(tmp_path / NAME).lines > 20


def test_one_process_at_a_time(tmp_path: Path) -> None:
    log = ActionLog(tmp_path)
    with pytest.raises(ConfigError, match="is in use by another process; every role needs a --state of its own"):
        ActionLog(tmp_path)
    log.close()
    ActionLog(tmp_path).append("started")


@pytest.mark.parametrize("whole", [False, True])
def test_ctrl_c_in_the_middle_of_a_line(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ActionLog(tmp_path)
    log.append("started")
    write = os.write

    def interrupted(file: int, data: memoryview) -> int:
        write(file, data if whole else data[:10])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append("served")
    log.append("ended")
    events = [line["event"] for line in read_actions(log.path)]
    assert events == ["started", "served", "ended"] if whole else ["started", "torn", "ended"]


def test_the_command(tmp_path: Path) -> None:
    path = written(tmp_path / "bank")
    run = CliRunner()
    shown = run.invoke(app, ["log", "show", str(path.parent)])
    assert shown.exit_code == 0
    assert "round round 0 sent bank: 1 Broadcast 100 B" in shown.stdout
    lines = run.invoke(app, ["log", "show", str(path), "--json"]).stdout.splitlines()
    assert [json.loads(line)["n"] for line in lines] == [0, 1, 2, 3]
    well = run.invoke(app, ["log", "verify", str(path.parent)])
    assert well.stdout.strip().endswith(f"4 lines, the chain is whole; the last one is {verified(path).sha256}")
    path.write_text(path.read_text().replace("[1,101]", "[1,100]"))  # not a digit of a time or a hash
    ill = run.invoke(app, ["log", "verify", str(path.parent)])
    assert ill.exit_code == 2
    assert "line 3: does not follow from the one before" in ill.output
    missing = run.invoke(app, ["log", "verify", str(tmp_path)])
    assert "give the folder of a role's state" in missing.output


def forged(path: Path) -> None:
    """Another number of bytes in the second line, and all hashes computed anew."""
    head, lines = Head(), path.read_bytes().replace(b"[1,101]", b"[1,999]").splitlines(keepends=True)
    for n, text in enumerate(lines):
        lines[n] = text.replace(json.loads(text)["before"].encode(), head.sha256.encode())
        head = Head(n + 1, hashlib.sha256(lines[n]).hexdigest())
    path.write_bytes(b"".join(lines))


def test_a_chain_that_was_computed_anew_shows_against_what_was_noted(tmp_path: Path) -> None:
    path, run = written(tmp_path), CliRunner()
    noted = verified(path)

    def verify(*option: str) -> tuple[int, str]:
        told = run.invoke(app, ["log", "verify", str(tmp_path), *option])
        return told.exit_code, told.output

    option = ("--noted", f"{noted.lines}:{noted.sha256}")
    for more in range(2):  # the log may have grown since
        code, told = verify(*option)
        assert (code, "the chain is whole and goes on from the 4 that were noted" in told) == (0, True)
        whole = path.read_bytes()
        forged(path)
        assert verify()[0] == 0
        code, told = verify(*option)
        assert (code, "its first 4 lines are not those that were noted" in told) == (2, True)
        path.write_bytes(whole)
        if not more:
            log = ActionLog(tmp_path)
            log.append("ended")
            log.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert verify()[0] == 0
    code, told = verify(*option)
    assert (code, "3 lines, and 4 were noted: those at the end were removed" in told) == (2, True)
    for wrong in ("4", "4:77e0", f":{noted.sha256}", f"x:{noted.sha256}"):
        assert "give the number of lines and the whole hash" in verify("--noted", wrong)[1].replace("\n", " ")


def test_a_log_of_strange_lines_is_no_traceback(tmp_path: Path) -> None:
    for content in (b"[]\n", b"1\n", b'{"n": 0}\n', b"\xff\n", b"{" * 5000 + b"\n"):
        (tmp_path / NAME).write_bytes(content)
        result = CliRunner().invoke(app, ["log", "verify", str(tmp_path)])
        assert (result.exit_code, "line 1" in result.output) == (2, True), result.output
    assert verified(written(tmp_path / "empty", 0)) == Head()


def test_what_roles_log_of_a_run(tmp_path: Path) -> None:
    """Two runs by gRPC: the same bits as without, and of rounds the same lines; the bytes are those of the record."""
    config = settings()
    found: list[dict[str, list[dict[str, Any]]]] = []
    for name in ("one", "two"):
        with threads(config, tmp_path / name) as federation:
            federation.start_all()
            same(federation.outcome(), in_process(config))
        state = tmp_path / name / "state"
        found.append({role: told(state / role / NAME) for role in (SERVER, "bank", "hospital")})
    for role in found[0]:
        rounds = [[line for line in run[role] if line["event"] == "round"] for run in found]
        strip = [[{k: v for k, v in line.items() if k != "n"} for line in lines] for lines in rounds]
        assert strip[0] == strip[1]
        assert [line["round"] for line in rounds[0]] == list(range(6))
        events = [line["event"] for line in found[0][role]]
        assert (events[0], events[-1]) == ("started", "ended")
        assert {"joined", "handshake"} <= set(events)
    summary = json.loads((tmp_path / "one" / "run" / "summary.json").read_text())
    server = found[0][SERVER]
    for name, sent in summary["bytes"]["by_party"].items():
        ways = {"down": "sent", "up": "received"}
        for way, key in ways.items():
            of_training = (
                size
                for line in server
                if line["event"] == "round"
                for kind, (_, size) in line[key].get(name, {}).items()
                if kind != "Evaluation"
            )
            assert sum(of_training) == sent[way]
    own = [line for line in found[0]["bank"] if line["event"] == "round"]
    theirs = [line for line in server if line["event"] == "round"]
    for one, other in zip(own, theirs, strict=True):
        assert one["sent"].get("server", {}) == other["received"].get("bank", {})
        assert one["received"].get("server", {}) == other["sent"].get("bank", {})


def test_a_frame_that_is_none_is_no_line(tmp_path: Path) -> None:
    recorder = Recorder(ActionLog(tmp_path), "server", ["bank"])
    for frame in (b"", b"cvfl", bytes(9), b"\x21", b"\x21\xff\xff\xff\xff\xff\xff\xff\xff\xff"):
        recorder.frame(1, Direction.UP, frame)
    recorder.flush()
    assert told(tmp_path / NAME) == []


def ask(rows: int, m: int = 1, run: str = "ab") -> bytes:
    return encode(Ask(0, m, run, bytes(PSEUDONYM * rows)))


def test_rows_that_are_asked_for_are_counted_once_in_one_line(tmp_path: Path) -> None:
    """The server hears them from the door and passes them on to every party."""
    recorder = ServingRecorder(ActionLog(tmp_path), "server", ["bank", "shop", "club"])
    found = encode(Found(0, 2, 8, b"\xff", b"packet"))
    for rows, run in ((3, "ab"), (500, "cd"), (4, "ab")):
        recorder.frame(1, Direction.UP, ask(rows, run=run))
        for m in (2, 3):
            recorder.frame(m, Direction.DOWN, ask(rows, 0, run))
        recorder.frame(2, Direction.UP, found)
    recorder.frame(2, Direction.UP, b"\x2f\xff")  # cut off
    recorder.close()
    served, ended = told(tmp_path / NAME)
    sizes = [len(ask(rows)) for rows in (3, 500, 4)]
    below = [len(ask(rows, 0)) for rows in (3, 500, 4)]
    assert served == {
        "n": 0,
        "event": "served",
        "rows": {"ab": 7, "cd": 500},
        "sent": {name: {"Serving": [3, sum(below)]} for name in ("club", "shop")},
        "received": {"bank": {"Serving": [3, sum(sizes)]}, "shop": {"Serving": [4, 3 * len(found) + 2]}},
    }
    assert ended["event"] == "ended"


def test_a_line_of_serving_is_written_when_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cvfl.runs.witness.EVERY", 0.2)
    recorder = ServingRecorder(ActionLog(tmp_path), "shop", ["bank", "shop"])
    began = time.monotonic()
    asked = 0
    while time.monotonic() - began < 0.9:
        recorder.frame(0, Direction.DOWN, ask(2, 0))
        asked += 2
        time.sleep(0.001)
    until = time.monotonic() + 30
    while sum(line["rows"]["ab"] for line in read_actions(tmp_path / NAME)) < asked:  # nobody asks any more
        assert time.monotonic() < until
        time.sleep(0.01)
    lines = told(tmp_path / NAME)
    assert {line["event"] for line in lines} == {"served"}
    assert 1 < len(lines) <= 6
    recorder.close()
    assert verified(tmp_path / NAME).lines == len(lines) + 1


def full(*_: Any) -> int:
    raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_stops_the_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on when it can be, also if no frame comes; what was counted before is not lost."""
    monkeypatch.setattr("cvfl.runs.witness.EVERY", 0.01)
    recorder, told_why = ServingRecorder(ActionLog(tmp_path), "shop", ["bank", "shop"]), list[str]()
    recorder.tell = told_why.append

    def until(what: Callable[[], Any]) -> None:
        end = time.monotonic() + 30
        while not what():
            assert time.monotonic() < end
            time.sleep(0.005)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        recorder.frame(0, Direction.DOWN, ask(2, 0))
        until(lambda: recorder.failed)
        for _ in range(2):
            with pytest.raises(OutputError, match="cannot be written: No space left"):
                recorder.frame(0, Direction.DOWN, ask(2, 0))
        with pytest.raises(OutputError, match="cannot be written: No space left"):
            recorder.again()
    until(lambda: not recorder.failed)
    assert told_why == [f"{tmp_path / NAME}: cannot be written: No space left on device"]
    recorder.frame(0, Direction.DOWN, ask(5, 0))
    recorder.again()
    lines = told(tmp_path / NAME)
    assert [line["event"] for line in lines] == ["served", "served", "again"]
    assert [line["rows"]["ab"] for line in lines[:2]] == [2, 5]


def test_a_session_of_a_prediction_is_a_line(tmp_path: Path) -> None:
    recorder = PredictionRecorder(ActionLog(tmp_path), "bank", ["bank", "shop"], "ab", lambda: 40_000)
    frames = [encode(Prediction(t0, 1, bytes(100 + t0))) for t0 in range(3)]
    recorder.here(0, True)
    for frame in frames:
        recorder.frame(0, Direction.UP, frame)
    recorder.here(0, False)
    recorder.close()
    joined, predicted, left, stopped = told(tmp_path / NAME)
    assert (joined["event"], left["event"], stopped["event"]) == ("joined", "left", "stopped")
    sent = {"server": {"Prediction": [3, sum(map(len, frames))]}}
    assert predicted == {"n": 1, "event": "predicted", "rows": {"ab": 40_000}, "sent": sent, "received": {}}


@pytest.mark.parametrize("how", ["recorder", "closed twice", "ended", "full"])
def test_what_was_sent_before_a_role_stopped_is_there(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C and SIGTERM close a role; only kill -9 may cost lines, and looks like it."""
    recorder = Recorder(ActionLog(tmp_path), "bank", ["bank"])
    for t0 in range(3):
        recorder.frame(0, Direction.UP, encode(Prediction(t0, 1, bytes(10))))
    assert told(tmp_path / NAME) == []
    if how == "full":
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(OutputError):
                recorder.close()
        ActionLog(tmp_path).close()  # another process can have it
        return
    if how == "ended":
        recorder.ended(rounds=3)
    recorder.close()
    if how == "closed twice":
        recorder.close()
    events = [line["event"] for line in read_actions(tmp_path / NAME)]
    assert events == ["round"] * 3 + ["ended" if how == "ended" else "stopped"]


def test_roles_that_are_closed_have_logged_what_they_sent(tmp_path: Path) -> None:
    config = settings()
    server = ServerRun(config, "test", tmp_path / SERVER)
    with ExitStack() as stack:
        bank = PartyRun(config, "bank", tmp_path / "bank", stack)
        server.end.join(bank.end.hello())
    server.close()
    sent = {"sent": {"server": {"Control": [1, ANY]}}, "received": {}}
    handshake = [line for line in told(tmp_path / "bank" / NAME) if line["event"] == "handshake"]
    assert handshake == [{"n": 1, "event": "handshake"} | sent]
    for role, events in (("bank", ["started", "handshake"]), (SERVER, ["started", "joined", "handshake"])):
        lines = told(tmp_path / role / NAME)
        assert [line["event"] for line in lines] == [*events, "stopped"]
    PartyRun(config, "bank", tmp_path / "bank", ExitStack()).close()  # nothing of it is in use any more
