"""Curves: every round where there are few, windows where there are many, in whole or in part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from board.made import finished, text
from cvfl.board import curves as module
from cvfl.board.curves import AXES, curves
from cvfl.report.series import to_series
from cvfl.runs.columns import Columns
from cvfl.runs.read import read_run


@pytest.fixture
def columns(tmp_path: Path) -> Columns:
    (tmp_path / "metrics.jsonl").write_text(text(100))
    found = Columns(tmp_path / "metrics.jsonl")
    found.refresh()
    return found


def test_few_rounds_are_drawn_as_they_are(columns: Columns) -> None:
    found = curves(columns, "epoch")
    assert found["loss"]["x"] == pytest.approx([(t0 + 1) / 10 for t0 in range(100)])
    assert found["loss"]["y"] == pytest.approx([1 / (t0 + 1) for t0 in range(100)], rel=1e-5)
    assert "low" not in found["loss"]
    assert found["metrics"]["test"]["accuracy"]["x"] == pytest.approx([0.5 * n for n in range(1, 21)])
    assert found["errors"]["bank"]["bound"]["y"] == [3.0] * 20
    assert found["rounds"] == 100


def test_every_axis_has_the_same_heights(columns: Columns) -> None:
    found = {axis: curves(columns, axis) for axis in AXES}
    assert len({json.dumps(one["loss"]["y"]) for one in found.values()}) == 1
    assert found["round"]["loss"]["x"] == list(range(1, 101))
    assert found["seconds"]["loss"]["x"] == pytest.approx([0.01 * n for n in range(1, 101)])
    assert found["bytes"]["loss"]["x"][-1] == pytest.approx(columns["bytes"][-1] / 1e6, rel=1e-5)
    assert found["round"]["metrics"]["test"]["loss"]["x"] == list(range(5, 101, 5))


def test_many_rounds_are_averaged_as_in_a_report(
    tmp_path: Path, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POINTS", 120)
    long = finished(tmp_path / "long", rounds=1000)
    found = Columns(long / "metrics.jsonl")
    found.refresh()
    drawn = curves(found, "epoch")["loss"]
    (series,) = to_series([read_run(long)])
    expected = series.curve(lambda line: line.epoch, lambda line: line.loss)
    assert drawn["x"] == pytest.approx(list(expected.x), rel=1e-5)
    assert drawn["y"] == pytest.approx(list(expected.y), rel=1e-5)
    assert all(low <= mean <= high for low, mean, high in zip(drawn["low"], drawn["y"], drawn["high"], strict=True))
    assert drawn["high"][0] == 1.0


def test_a_part_of_the_axis_has_more_points_of_it(columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS", 10)
    whole, part = curves(columns, "round"), curves(columns, "round", (50, 57))
    assert len(whole["loss"]["x"]) == 10
    assert part["loss"]["x"] == list(range(49, 59))  # and one on each side
    assert part["metrics"]["test"]["loss"]["x"] == [45, 50, 55, 60]
    assert curves(columns, "round", (1000, 2000))["loss"]["x"] == [100]


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(text(3).replace('"loss": 0.5', '"loss": NaN').replace("0.01", "NaN"))
    found = Columns(tmp_path / "metrics.jsonl")
    found.refresh()
    drawn = curves(found, "seconds")
    assert drawn["loss"]["y"] == [1.0, None, pytest.approx(0.333333)]
    assert drawn["loss"]["x"] == [0.0, 0.0, 0.0]
    json.dumps(drawn, allow_nan=False)
    assert np.isnan(found["loss"][1])


def test_nothing_yet(tmp_path: Path) -> None:
    found = Columns(tmp_path / "metrics.jsonl")
    for axis in AXES:
        assert curves(found, axis)["loss"] == {"x": [], "y": []}
