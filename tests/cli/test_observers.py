"""What operators see: JSON lines that can be shown again elsewhere, and scalars for TensorBoard."""

import io
import itertools
import json
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.cli.observers import Observer, observed, replay
from cvfl.protocol import Evaluated
from cvfl.runs.progress import Progress
from cvfl.runtime import RoundReport, Traffic

pytestmark = pytest.mark.usefixtures("no_pages")
EVALUATED = Evaluated(3, {"loss": 0.5, "accuracy": 0.7}, {}, {"loss": 0.6, "accuracy": 0.6})
PROGRESS = Progress(RoundReport(3, 0.5, 0.01, EVALUATED), 10, Traffic(5_000_000, 7, 3), "accuracy")
PLAIN = Progress(RoundReport(4, 0.4, 0.01), 10, Traffic(6_000_000, 8, 3), "accuracy")


class Heard(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.rounds: list[Progress] = []
        self.waits: list[tuple[str, float]] = []

    def round(self, progress: Progress) -> None:
        self.rounds.append(progress)

    def wait(self, who: str, seconds: float) -> None:
        self.waits.append((who, seconds))


def test_json_lines_are_shown_again_as_they_were(capsys):
    with observed(Console(), "run", True, None) as seen:
        seen.round(PROGRESS)
        seen.round(PLAIN)
        seen.wait("bank", 2.0)
        seen.event("finished", rounds=10)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["round", "round", "wait", "finished"]
    heard = Heard()
    for line in lines:
        replay(heard, line)
    assert heard.rounds == [PROGRESS, PLAIN]
    assert heard.waits == [("bank", 2.0)]


def shown(*actions) -> str:
    console = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    with observed(console, "fed", False, None) as seen:
        for action, *arguments in actions:
            getattr(seen, action)(*arguments)
    return console.export_text()


def test_the_terminal_shows_the_round():
    text = shown(("step", "bank: reading", 5, 0), ("round", PROGRESS))
    assert "4/10 loss 0.500 accuracy 0.600 5.00 MB, 100% train" in text


def test_the_terminal_shows_who_is_waited_for():
    assert "waiting for shop, 12 s" in shown(("round", PROGRESS), ("wait", "shop", 12.0))
    assert "waiting for shop" in shown(("wait", "shop", 12.0))


def test_after_a_pause_the_terminal_shows_steps_again():
    console = Console(force_terminal=True, width=120, file=(file := io.StringIO()))
    with observed(console, "fed", False, None) as seen:
        seen.step("bank: reading", 5, 0)
        seen.pause()
        before = file.tell()
        time.sleep(0.3)  # in which a display paints
        assert file.tell() == before
        seen.wait("shop", 12.0)
        time.sleep(0.3)
    assert "waiting for shop" in file.getvalue()[before:]


def test_without_a_terminal_rounds_are_lines_two_seconds_apart_then_ever_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("cvfl.cli.display.time.monotonic", lambda: clock[0])
    console = Console(file=(file := io.StringIO()), width=40)
    with observed(console, "fed", False, None) as seen:
        for t0 in range(200):  # a second each
            seen.round(Progress(RoundReport(t0, 0.5, 1.0, EVALUATED), 200, Traffic(5_000_000, 7, 3), "accuracy"))
            clock[0] += 1.0
    lines = file.getvalue().splitlines()
    assert lines[0] == "fed         3/200 loss 0.500 accuracy 0.600 5.00 MB, 100% train"
    assert lines[1].split()[1] == "5/200"
    assert lines[-1].split()[1] == "200/200"
    at = [int(line.split()[1].split("/")[0]) for line in lines]
    gaps = [after - before for before, after in itertools.pairwise(at)]
    assert max(gaps) == 10
    assert len(lines) < 60


def test_a_run_that_is_soon_over_is_one_line() -> None:
    console = Console(file=(file := io.StringIO()), width=40)
    with observed(console, "fed", False, None) as seen:
        seen.step("bank: reading", 5, 0)
        seen.round(PROGRESS)
        seen.round(Progress(RoundReport(9, 0.4, 0.01), 10, Traffic(6_000_000, 8, 3), "accuracy"))
    assert file.getvalue() == "fed         10/10 loss 0.400 accuracy 0.600 6.00 MB, 100% train\n"


def test_a_long_step_and_a_wait_are_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("cvfl.cli.display.time.monotonic", lambda: clock[0])
    console = Console(file=(file := io.StringIO()))
    with observed(console, "fed", False, None) as seen:
        seen.step("bank: reading", 0, 4)
        clock[0] += 3.0
        seen.step("bank: reading", 1, 4)
        seen.round(PROGRESS)
        clock[0] += 3.0
        seen.wait("shop", 12.0)
    assert file.getvalue().splitlines() == ["bank: reading 25%", "fed         waiting for shop, 12 s"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "wine.toml"
    path.write_text('rounds = 4\nbatch_size = 32\nevaluate_every = 2\n[data]\nname = "wine"\n[step_size]\neta = 0.1\n')
    return path


def test_train_prints_json_lines(config, tmp_path):
    result = CliRunner().invoke(app, ["train", str(config), "--out", str(tmp_path / "run"), "--log-json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    assert ["test" in line for line in rounds] == [False, True, False, True]


def test_tensorboard_gets_the_scalars(config, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra cvfl[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    board = tmp_path / "board"
    arguments = ["train", str(config), "--out", str(tmp_path / "run"), "--tensorboard", str(board)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    events = EventAccumulator(str(board)).Reload()
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([line["loss"] for line in history], rel=1e-6)
    tested = [line["test"]["accuracy"] for line in history if "test" in line]
    assert [event.value for event in events.Scalars("test/accuracy")] == pytest.approx(tested, rel=1e-6)
    megabytes = {f"MB/{part}" for part in ("total", "up", "down", "evaluation", "alignment", "setup")}
    assert {*megabytes, "seconds"} <= set(events.Tags()["scalars"])
