"""A run that was stopped is taken up again where it was, and ends in the same bits, lines and bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cvfl.data import VerticalData
from cvfl.errors import ConfigError
from cvfl.federation.train import train
from cvfl.runs.journal import Journal, read_lines
from federations import config, data

pytestmark = pytest.mark.usefixtures("no_pages")


class PowerError(Exception):
    """A power cut."""


def interrupted(settings, table: VerticalData, folder, at: int, seconds: float = 0.0) -> None:
    def stop(progress) -> None:
        if progress.report.t0 == at:
            raise PowerError

    with pytest.raises(PowerError):
        train(settings, table, folder, on_round=stop, resume=True, keep_seconds=seconds, workers=1)


def lines_of(history):
    return [{key: value for key, value in line.items() if key not in ("seconds", "time")} for line in history]


@pytest.mark.parametrize(
    "method", [{"algorithm": 1, "local_iterations": 3}, {"algorithm": 2}, {"privacy": {"labels": "org2"}}]
)
@pytest.mark.parametrize("compressor", ["topk:bits=8", "feedback(lattice:bits=3)", "auto"])
def test_a_run_is_taken_up_again(tmp_path, method, compressor):
    settings = config(
        **method,
        rounds=20,
        compressor=compressor,
        server_compressor="auto" if compressor == "auto" else "identity",
        optimizer={"name": "adam"},
        evaluate_every=3,
    )
    table = data()
    whole = train(settings, table, workers=1)
    for at in (0, 6, 7, 15):
        interrupted(settings, table, tmp_path / "run", at)
        assert (tmp_path / "run" / "state").is_dir()
    result = train(settings, table, tmp_path / "run", resume=True, workers=1)
    assert result.summary["parameters"] == whole.summary["parameters"]
    assert result.summary["bytes"] == whole.summary["bytes"]
    assert lines_of(result.history) == lines_of(whole.history)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 20
    assert not (tmp_path / "run" / "state").exists()


def test_without_a_state_it_starts_again(tmp_path):
    settings, table = config(rounds=8), data()
    interrupted(settings, table, tmp_path / "run", 5, seconds=1e9)
    assert not (tmp_path / "run").exists()
    result = train(settings, table, tmp_path / "run", resume=True, workers=1)
    assert [line["round"] for line in result.history] == list(range(8))


def test_a_state_whose_lines_are_lost_is_not_used(tmp_path):
    settings, table = config(rounds=8), data()
    interrupted(settings, table, tmp_path / "run", 5)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    result = train(settings, table, tmp_path / "run", resume=True, workers=1)
    assert [line["round"] for line in result.history] == list(range(8))


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    journal = Journal(path)
    assert [line["round"] for line in journal.lines] == [0, 1]
    journal.back(1)
    journal.append({"round": 1, "again": True})
    assert path.read_text() == '{"round": 0}\n{"round": 1, "again": true}\n'


def test_ctrl_c_leaves_a_record_and_what_is_needed_to_go_on(tmp_path):
    settings, table = config(rounds=8, evaluate_every=2), data()

    def stop(progress) -> None:
        if progress.report.t0 == 4:
            raise KeyboardInterrupt

    stopped = train(settings, table, tmp_path / "run", on_round=stop, keep_seconds=0.0, workers=1)
    assert (stopped.summary["completed"], stopped.summary["rounds"]) == (False, 5)
    with pytest.raises(ConfigError, match=r"exists already; .*; --resume goes on with it"):
        train(settings, table, tmp_path / "run")
    result = train(settings, table, tmp_path / "run", resume=True, workers=1)
    assert result.summary["parameters"] == train(settings, table, workers=1).summary["parameters"]
    assert result.summary["completed"]
    assert not (tmp_path / "run" / "state").exists()
    with pytest.raises(ConfigError, match=r"exists already; choose another --out or remove it$"):
        train(settings, table, tmp_path / "run", resume=True)


def test_a_run_of_another_configuration_is_not_gone_on_with(tmp_path):
    interrupted(config(rounds=8), data(), tmp_path / "run", 5)
    with pytest.raises(ConfigError, match="was begun with another configuration: seed differs"):
        train(config(rounds=8, seed=4), data(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "state").is_dir()


def test_a_run_that_fails_before_anything_is_kept_leaves_nothing(tmp_path):
    with pytest.raises(PowerError):
        train(config(), data(), tmp_path / "run", on_round=lambda progress: (_ for _ in ()).throw(PowerError))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("memory_mb", "kills"), [(0, [50]), *(pytest.param(mb, [20, 90], marks=pytest.mark.slow) for mb in (0, 256))]
)
def test_a_run_that_is_killed_is_taken_up_again(tmp_path, memory_mb, kills):
    """kill -9 of a real process, at any moment; with what is known of rows in memory or on disk, in the same bits."""
    changes = {"rounds": 200, "precision": "float32", "compressor": "feedback(scalar:bits=3)"}
    settings, table = config(**changes), data(dtype=torch.float32)
    whole = train(settings, table, workers=1)
    settings = config(**changes, network={"memory_mb": memory_mb})
    script = (
        "from federations import config, data; import torch, pathlib, sys; from cvfl.federation.train import train; "
        f"train(config(**{changes}, network={{'memory_mb': {memory_mb}}}), data(dtype=torch.float32), "
        "pathlib.Path(sys.argv[1]), resume=True, keep_seconds=0.05, workers=1)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    for lines in kills:
        child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], env=environment)
        deadline = time.monotonic() + 60
        while child.poll() is None and len(read_lines(tmp_path / "run" / "metrics.jsonl")) < lines:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        assert bool(list((tmp_path / "run" / "state").rglob("*.rows"))) == (memory_mb == 0)
    result = train(settings, table, tmp_path / "run", resume=True, workers=1)
    assert result.summary["parameters"] == whole.summary["parameters"]
    assert result.summary["bytes"] == whole.summary["bytes"]
    assert lines_of(result.history) == lines_of(whole.history)
