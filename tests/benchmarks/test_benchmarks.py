"""The benchmarks measure what they say, and `cvfl bench` runs them from a checkout."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cvfl.cli import app

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of the folder, and forgets it again: tests/ has a `runtime` too."""
    monkeypatch.syspath_prepend(FOLDER)

    def import_(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        return module

    return import_


def test_the_figures_of_known_rounds(imported: Callable[[str], ModuleType]) -> None:
    runtime = imported("runtime")
    speed = runtime.compared("grpc", 7, [0.001 * i for i in range(1, 101)], [0.025, 0.025, 0.5])
    assert (speed.median_ms, speed.bare_ms) == (50.5, 25.0)
    assert speed.p95_ms == 95.0
    assert speed.ratio == 2.02
    assert runtime.PAYLOADS == (20_000, 200_000, 1_000_000)


def test_the_figures_of_known_requests(imported: Callable[[str], ModuleType]) -> None:
    serve = imported("serve")
    speed = serve.compared([0.001 * i for i in range(1, 102)], [0.017, 0.017, 0.5], 2500.0)
    assert (speed.requests, speed.ids_per_s) == (101, 2500.0)
    assert (speed.p50_ms, speed.p99_ms, speed.bare_p50_ms, speed.ratio) == pytest.approx((51.0, 100.0, 17.0, 3.0))
    assert all(len(frame) > 15 for frame in serve.frames())


@dataclass(frozen=True)
class Found:
    name: str
    ratio: float


@pytest.mark.parametrize("as_json", [True, False])
def test_results_come_one_by_one_and_what_goes_on_is_said(
    imported: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    heard = []

    def measure(steps: Any) -> Iterator[Found]:
        for name in ("first", "second"):
            steps.next(name)
            yield Found(name, 1.5)
            heard.append(capsys.readouterr())

    imported("shown").show(as_json, 2, measure, {"name": lambda found: found.name})
    assert [said.err for said in heard] == ["1 of 2: first\n", "2 of 2: second\n"]
    if as_json:
        assert [json.loads(said.out) for said in heard] == [
            {"name": "first", "ratio": 1.5},
            {"name": "second", "ratio": 1.5},
        ]
    else:
        table = capsys.readouterr().out
        assert "first" in table
        assert "second" in table


def test_turns_are_as_many_as_asked_for_or_as_time_allows(imported: Callable[[str], ModuleType]) -> None:
    turns = imported("shown").turns
    assert len(list(turns(20, 0.0))) == 20
    assert len(list(turns(None, 0.0))) == 3
    assert len(list(turns(None, 60.0))) == 15


def bench(*arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The lines that other programs read, and what is said meanwhile."""
    command = [sys.executable, "-m", "cvfl.cli", "bench", *arguments, "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in found.stdout.splitlines()], found.stderr


@pytest.mark.slow
def test_a_runtime_runs_all_rounds_beside_the_bare_echo() -> None:
    found, said = bench("runtime", "--rounds", "15")
    assert {row["runtime"] for row in found} >= {"grpc"}
    assert [row["payload"] for row in found if row["runtime"] == "grpc"] == [20_000, 200_000, 1_000_000]
    for row in found:
        assert set(row) == {"runtime", "payload", "median_ms", "p95_ms", "bare_ms", "ratio"}
        assert 0 < row["median_ms"] <= row["p95_ms"]
        assert row["ratio"] == pytest.approx(row["median_ms"] / row["bare_ms"])
    assert "2 of 3: the gRPC runtime" in said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("round", 3), ("secure", 6)])
def test_rounds_are_compared_in_turn(name: str, count: int) -> None:
    found, said = bench(name, "--repeats", "1")
    assert len(found) == count
    assert all(row["ratio"] > 0 for row in found)
    assert "1 of " in said


@pytest.mark.slow
def test_codecs_print_a_line_each_and_say_what_goes_on() -> None:
    found, said = bench("codec", "--seconds", "0.01")
    assert len(found) == len(said.splitlines()) == 39
    assert all(row["encode_gbps"] > 0 and row["decode_gbps"] > 0 for row in found)


def test_without_a_checkout_one_line_says_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.import_module("cvfl.cli.bench"), "FOLDER", tmp_path / "benchmarks")
    result = CliRunner().invoke(app, ["bench", "codec"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: benchmarks come with a checkout of the repository, not with the installed package"
    ]


@pytest.mark.slow
def test_memory_of_the_roles_of_a_small_federation(tmp_path: Path) -> None:
    """Checkpoints do not grow with the rows that are known: only what was added since the last one does."""
    command = [sys.executable, str(FOLDER / "memory.py"), "--rows", "100000", "--batch", "2000", "--memory-mb", "0"]
    command += ["--rounds", "6", "--out", str(tmp_path / "found.json")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(shown.stdout.splitlines()) == 2
    for found in json.loads((tmp_path / "found.json").read_text())["roles"].values():
        first, *some, _ = found["checkpoints"]
        assert first["on_disk"] > 4 * 100_000 * 72
        for one in some:
            assert one["bytes"] < 1e5
            assert (
                4 * 2000 * 72 <= one["added"] < 5 * 2000 * 72
            )  # four embeddings of a batch, and outputs at the server


def test_warm_start(imported: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """From the month before the first loss is lower, and the mark is reached sooner."""
    found = imported("warm_start").compared(0, tmp_path, rows=1000, rounds=12)
    assert found.warm_rounds is not None
    assert found.warm_rounds < found.cold_rounds <= 12
    assert found.last_loss < found.mark
    assert 0 < found.warm_mb < found.cold_mb


def test_the_largest_second_derivative_is_found(imported: Callable[[str], ModuleType]) -> None:
    """Of a quadratic with known ones, and of a block of its parameters."""
    theorem = imported("theorem")
    x, y = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in ([1.0, -2.0], [0.5]))

    def loss() -> torch.Tensor:
        return 3 * x[0] ** 2 - 0.5 * x[1] ** 2 + 0.25 * y[0] ** 2

    assert theorem.largest_eigenvalue(loss, [x, y]) == pytest.approx(6.0)
    assert theorem.largest_eigenvalue(loss, [y]) == pytest.approx(0.5)
