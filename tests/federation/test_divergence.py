"""A run that diverges says so, in one line with what to change, wherever its labels are; others say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss

from conformance.loop import Loop
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.errors import CvflError
from cvfl.federation.train import train
from cvfl.federation.watch.divergence import loss_of_the_mean
from cvfl.protocol import Loss
from cvfl.report.report import write_report
from cvfl.runs.progress import Progress, progress_of, progress_values

pytestmark = pytest.mark.usefixtures("no_pages")


def config(eta: float, **changes: Any) -> RunConfig:
    values = {
        "data": {"name": "wine", "parties": 2},
        "rounds": 12,
        "batch_size": 32,
        "evaluate_every": 2,
        "optimizer": {"name": "adam"},
        "compressor": "identity",
        "server_compressor": "identity",
        "step_size": {"eta": eta},
    }
    return parse_config(values | changes)


def test_a_run_that_diverges_says_so_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    found = train(config(30.0), out=tmp_path / "run", on_round=seen.append)
    notes = [progress.note for progress in seen if progress.note]
    assert notes == [found.summary["warning"]]
    assert "training diverges, or learns rows by heart; lower step_size.eta (30), or set optimizer.clip = 1" in notes[0]
    assert notes[0].startswith("round 5: ")  # the third evaluation
    told = next(progress for progress in seen if progress.note)
    assert progress_of(json.loads(json.dumps(progress_values(told)))).note == notes[0]
    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "training diverges" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "\n" not in notes[0]


def test_the_server_of_other_roles_says_the_same(tmp_path: Path) -> None:
    settings = config(30.0)
    Loop(settings, tmp_path / "loop").run()
    summary = json.loads((tmp_path / "loop" / "run" / "summary.json").read_text())
    assert summary["warning"] == train(settings).summary["warning"]


def test_a_run_that_learns_says_nothing() -> None:
    seen: list[Progress] = []
    assert "warning" not in train(config(0.01), on_round=seen.append).summary
    assert not any(progress.note for progress in seen)


def test_a_loss_that_is_no_number_ends_the_run_with_a_line() -> None:
    wild = config(1e30, optimizer={"name": "sgd"}, party_model={"name": "linear", "width": 4})
    with pytest.raises(CvflError, match=r"lower step_size\.eta"):
        train(wild)


def test_the_loss_of_the_mean_is_that_of_saying_it() -> None:
    y = torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert loss_of_the_mean(Loss.BINARY, y) == pytest.approx(log_loss(y, [0.75] * 4))
    many = torch.tensor([0, 1, 2, 2])
    assert loss_of_the_mean(Loss.MULTICLASS, many) == pytest.approx(log_loss(many, [[0.25, 0.25, 0.5]] * 4))
    assert loss_of_the_mean(Loss.SQUARED, y) == pytest.approx(0.1875)
