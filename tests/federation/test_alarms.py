"""Embeddings that change at once are seen, and the party is named; honest runs raise no alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.cases import settings
from conformance.loop import Loop
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.federation.train import train
from cvfl.protocol import Loss, Party
from cvfl.protocol.watch import Watch
from cvfl.report.report import write_report
from cvfl.runs.alarms import FEWEST, Alarms

pytestmark = pytest.mark.usefixtures("no_pages")
FROM = 30
"""The first round in which a party lies."""


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "data": {"name": "digits", "parties": 4},
        "step_size": {"eta": 0.05},
        "batch_size": 128,
        "rounds": 42,
        "evaluate_every": 6,
        "local_iterations": 2,
    }
    return parse_config(values | changes)


def poison(monkeypatch: pytest.MonkeyPatch, change: Any, first: int = FROM) -> None:
    """Have party 2 send something else from a round on."""
    leaving = Party._leaving

    def poisoned(self: Party) -> Tensor:
        h = leaving(self)
        return change(h) if self.m == 2 and self.t0 >= first else h

    monkeypatch.setattr(Party, "_leaving", poisoned)


ATTACKS = {
    "ten times as large": lambda h: 10 * h,
    "nothing": torch.zeros_like,
    "the opposite": lambda h: -h,
    "the same for all": lambda h: torch.full_like(h, 0.1),
    "a few rows that are large": lambda h: torch.cat([50 * h[:2], h[2:]]),
    "other numbers": lambda h: torch.rand(h.shape, generator=torch.Generator().manual_seed(1)) * h.abs().max(),
}


@pytest.mark.parametrize("compressor", ["identity", pytest.param("auto", marks=pytest.mark.slow)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_party_that_sends_something_else_is_named(
    attack: str, compressor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, ATTACKS[attack])
    notes: list[str] = []
    found = train(config(compressor=compressor), on_round=lambda progress: notes.append(progress.note))
    alarms = [line for line in found.summary["warning"].split(" · ") if "ask whether its data" in line]
    assert alarms
    assert all(line.startswith("bank, round ") for line in alarms)
    assert min(int(line.split()[2].rstrip(":")) for line in alarms) <= FROM + 12
    assert any(alarms[0] in note for note in notes)


def credit_like() -> VerticalData:
    """Amounts with long tails, months that go together, and a label that a quarter has, at four parties."""
    draw = np.random.default_rng(0)
    worth = draw.normal(size=(1500, 1))
    drawn = [np.log1p(np.exp(worth + draw.normal(size=(1500, 5)) * 2)) ** 2 for _ in range(4)]
    rows = torch.from_numpy(np.concatenate(drawn, axis=1)).float()
    labels = torch.from_numpy((worth[:, 0] + draw.normal(size=1500) < -1).astype(np.float32))
    parts = ((rows - rows.mean(0)) / rows.std(0)).split(5, dim=1)
    return VerticalData(
        ("bank", "bureau", "shop", "registry"),
        tuple(part[:1200] for part in parts),
        tuple(part[1200:] for part in parts),
        labels[:1200],
        labels[1200:],
        Loss.BINARY,
    )


HONEST: dict[str, dict[str, Any]] = {
    "auto": {},
    "identity": {"compressor": "identity", "server_compressor": "identity"},
    "adam": {"optimizer": {"name": "adam"}, "step_size": {"eta": 0.005}},
    "algorithm 2": {"algorithm": 2, "compressor": "scalar:bits=4"},
    "evaluated often": {"evaluate_every": 2},
}


@pytest.mark.parametrize("data", ["digits", "credit"])
@pytest.mark.parametrize("case", ["auto", *(pytest.param(case, marks=pytest.mark.slow) for case in [*HONEST][1:])])
def test_an_honest_run_raises_no_alarm(case: str, data: str) -> None:
    if data == "digits":
        found = train(config(**HONEST[case]))
    else:
        found = train(config(**HONEST[case], party_model={"width": 8}), data=credit_like())
    assert "warning" not in found.summary
    assert any("embeddings" in line for line in found.history)


@pytest.mark.parametrize(
    "changes",
    [
        {"server_model": {"name": "sum"}, "privacy": {"aggregation": "secure"}},
        {"privacy": {"labels": "bank"}, "local_iterations": 1},
    ],
)
def test_where_the_server_reads_no_embedding_it_has_no_figures(changes: dict[str, Any]) -> None:
    found = train(settings(data={"name": "wine", "parties": 3}, compressor="auto", **changes))
    assert not any("embeddings" in line for line in found.history)


def test_a_server_that_is_killed_has_the_same_figures_and_alarms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also when rounds between two evaluations are before and after it."""
    poison(monkeypatch, ATTACKS["ten times as large"], 14)
    asked = settings(rounds=20, evaluate_every=3, every=2, compressor="identity")
    expected = train(asked)
    loop = Loop(asked, tmp_path)
    for kill in (25, 60, 90):
        while loop.delivered < kill and not loop.over:
            loop.step()
        loop.kill_all()
    assert [line.get("embeddings") for line in loop.run().history] == [
        line.get("embeddings") for line in expected.history
    ]
    assert "bank, round " in expected.summary["warning"]


def test_figures_are_what_they_say() -> None:
    watch = Watch()
    watch.see([torch.tensor([[3.0, 4.0], [3.0, 4.0]]).repeat(20, 1), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])], True)
    first = watch.take()
    assert first[1] == pytest.approx({"norm": 5.0, "largest": 5.0, "spread": 0.0}, abs=1e-6)
    assert first[2] == {"norm": 1.0, "largest": 1.0, "spread": 1.0}
    watch.see([torch.tensor([[-4.0, 3.0]]).repeat(40, 1), torch.tensor([[1.0, 0.0]])], True)
    second = watch.take()
    assert second[1]["turn"] == pytest.approx(1.0)
    assert "turn" not in second[2]  # the mean before was nothing
    assert watch.largest == {"embedding": 5.0}
    assert watch.take() == {}


def test_an_alarm_is_raised_once_and_only_with_a_history() -> None:
    def line(t0: int, norm: float) -> dict[str, Any]:
        return {"round": t0, "embeddings": {"bank": {"norm": norm, "largest": 1.0}}}

    alarms = Alarms()
    for t0 in range(FEWEST):
        assert alarms.see(line(t0, 10.0**t0)) == ""  # as much as they like
    assert alarms.see(line(7, 299.0)) == ""
    said = alarms.see(line(8, 898.0))
    assert said.startswith("bank, round 8: the mean norm of a row of its embeddings is 898, after 1 to 299 before")
    assert alarms.see(line(9, 9000.0)) == ""
    assert len(alarms.lines) == 1


def test_the_report_has_the_figures(tmp_path: Path) -> None:
    write_report([train(settings(), out=tmp_path / "run").path], tmp_path / "report.html")  # type: ignore[list-item]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Largest turn" in page
    assert "Largest norms" in page


def test_a_line_is_no_more_work_late_in_a_run() -> None:
    compared = [0]

    class Figure(float):
        def __lt__(self, other: float) -> bool:
            compared[0] += 1
            return float(self) < other

        def __gt__(self, other: float) -> bool:
            compared[0] += 1
            return float(self) > other

    alarms = Alarms()
    for t0 in range(2000):
        compared[0] = 0
        assert not alarms.see({"round": t0, "embeddings": {"bank": {"norm": Figure(1 + t0 % 5)}}})
        assert compared[0] < 20
    said = alarms.see({"round": 2000, "embeddings": {"bank": {"norm": 99.0}}})
    assert "of its embeddings is 99, after 1 to 5 before" in said
