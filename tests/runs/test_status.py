"""What a run tells of itself while it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cvfl.runs.status import NAME, StatusFile, read_status, status_path

pytestmark = pytest.mark.usefixtures("no_pages")


def test_a_run_under_way_says_so_and_takes_its_status_along(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "one"
    file = StatusFile(target, {"seed": 1})
    file.tell("training", rounds=9, round=3, metric="accuracy")
    found = read_status(status_path(target))
    assert found is not None
    assert (found.phase, found.rounds, found.round, found.alive) == ("training", 9, 3, True)
    target.mkdir()
    file.close("finished")
    assert [path.name for path in target.iterdir()] == [NAME]
    assert list(target.parent.iterdir()) == [target]
    over = read_status(target / NAME)
    assert over is not None
    assert (over.phase, over.alive) == ("finished", False)


def test_where_nothing_is_left_no_status_is(tmp_path: Path) -> None:
    StatusFile(tmp_path / "one", {}).close("failed")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_killed_is_not_there(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from cvfl.runs.status import StatusFile\n"
    code += "StatusFile(Path(sys.argv[1]), {}); print('here', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "one"], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        found = read_status(status_path(tmp_path / "one"))
        assert found is not None
        assert found.alive
        child.kill()
        time.sleep(0.2)
        assert not found.alive  # even before anybody has asked for its exit code
    assert not found.alive
    reused = found.model_copy(update={"pid": os.getpid()})  # the number is another process's now
    assert not reused.alive


def test_parties_come_owe_leave_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("cvfl.runs.status.time.time", lambda: clock[0])
    file = StatusFile(tmp_path / "one", {})

    def look(missing: list[str], awaited: dict[str, int]) -> dict[str, tuple[bool, float, int, float | None]]:
        clock[0] += 10
        file.look(("shop", "bank"), missing, awaited)
        file.tell("waiting" if missing else "training")
        monkeypatch.setattr(file, "_written", 0.0)
        found = read_status(status_path(tmp_path / "one"))
        assert found is not None
        return {name: (one.here, one.since, one.visits, one.owes_since) for name, one in found.parties.items()}

    look(["shop", "bank"], {})
    assert look(["bank"], {"shop": 3})["shop"] == (True, 1020.0, 1, 1020.0)
    assert look([], {"shop": 3, "bank": 0})["shop"] == (True, 1020.0, 1, 1020.0)
    assert look([], {"shop": 4})["shop"] == (True, 1020.0, 1, 1040.0)  # it has answered, and owes the next one
    assert look([], {})["shop"] == (True, 1020.0, 1, None)
    assert look(["shop"], {})["shop"] == (False, 1060.0, 1, None)
    assert look([], {})["shop"] == (True, 1070.0, 2, None)
    again = StatusFile(tmp_path / "one", {})  # the server was started again
    again.look(("shop", "bank"), [], {})
    found = read_status(status_path(tmp_path / "one"))
    assert found is not None
    assert (found.starts, found.parties["shop"].visits) == (2, 2)


def test_a_status_that_cannot_be_written_or_read_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    StatusFile(tmp_path / "file" / "one", {}).close("finished")
    (tmp_path / NAME).write_text(json.dumps({"phase": "training"}))
    assert read_status(tmp_path / NAME) is None
    assert read_status(tmp_path / "nothing") is None
