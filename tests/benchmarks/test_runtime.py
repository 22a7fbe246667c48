"""The runtime's benchmark measures what it says: real processes, real TLS, the same bytes both ways."""

import json
import sys

import pytest
from typer.testing import CliRunner

from cvfl.bench import bench_runtime
from cvfl.bench.bench_runtime import bench_grpc, compared
from cvfl.cli import app


@pytest.mark.slow
def test_both_ways_run_all_rounds():
    speed = bench_grpc(20_000, rounds=15)
    assert speed.runtime == "grpc"
    assert 0 < speed.median_ms <= speed.p95_ms
    assert speed.ratio == speed.median_ms / speed.bare_ms


def test_the_figures_of_known_rounds():
    speed = compared("grpc", 7, [0.001 * i for i in range(1, 101)], [0.025, 0.025, 0.5])
    assert (speed.median_ms, speed.bare_ms) == (50.5, 25.0)
    assert speed.p95_ms == 95.0
    assert speed.ratio == 2.02


def test_the_list_that_other_programs_read(monkeypatch):
    command = sys.modules["cvfl.cli.bench"]
    monkeypatch.setattr(command, "PAYLOADS", (1000,))
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "bench_grpc", lambda payload, rounds: compared("grpc", payload, [0.1], [0.1]))
    result = CliRunner().invoke(app, ["bench", "runtime", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert set(row) == {"runtime", "payload", "median_ms", "p95_ms", "bare_ms", "ratio"}
    assert bench_runtime.PAYLOADS == (20_000, 200_000, 1_000_000)
