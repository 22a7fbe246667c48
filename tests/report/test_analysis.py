"""The part of a report that says how good a run is: which figures, which words, and what they never show."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cvfl.analysis.quantity import quantity
from cvfl.analysis.two import two_classes
from cvfl.protocol import Loss
from cvfl.report import figures
from cvfl.report.analysis import analysis_sections, write_analysis_page
from cvfl.report.html import Figures
from cvfl.report.series import to_series
from cvfl.runs.analysis import Analysis, Brought, Chosen, Estimate, Parties, read_analysis, write_analysis
from cvfl.runs.read import read_run
from report.test_report import make_run

DRAW = np.random.default_rng(0)
Z = DRAW.normal(size=80)
CHOSEN = Chosen(rule="cost", threshold=0.9, calibration="isotonic", temperature=1.0, fitted=True)
EACH = tuple(
    Brought(party=name, without=Estimate(value=0.7, low=0.6, high=0.8), shapley=value)
    for name, value in (("bank", 0.2), ("<b>shop</b>", -0.05))
)
TWO = Analysis(
    loss=Loss.BINARY,
    validation=40,
    test=80,
    decision=CHOSEN,
    two=two_classes((Z > 0).astype(float), 1 / (1 + np.exp(-Z)), 0.9, 0),
    parties=Parties(metric="roc_auc", together=0.85, each=EACH),
)
INCOME = Analysis(
    loss=Loss.SQUARED,
    validation=0,
    test=80,
    decision=CHOSEN.model_copy(update={"threshold": None}),
    quantity=quantity(3000 + 900 * Z, 3000 + 800 * Z, 0),
)


def drawn(analysis: Analysis) -> list[str]:
    sections = analysis_sections(analysis, (f"figure-{n}" for n in count(1)))
    return [
        one.title for section in sections for part in section.parts if isinstance(part, Figures) for one in part.drawn
    ]


def test_which_figures_there_are() -> None:
    assert drawn(TWO) == ["ROC curve", "Precision and recall", "Calibration", "Gain", "What each party brings"]
    assert drawn(INCOME) == ["Residuals", "Actual by predicted"]


def test_the_words_of_a_page(tmp_path: Path) -> None:
    write_analysis_page(TWO, "bank, shop", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for said in ("from a probability of 0.9 on, the cheapest on validation rows", "isotonic regression", "&lt;5"):
        assert said in text
    assert "<b>shop" not in text
    write_analysis_page(INCOME, "bank, shop", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "own units" in text
    assert "cannot be told" in text


@pytest.mark.parametrize("analysis", [TWO, INCOME], ids=["two classes", "a quantity"])
def test_the_file_is_read_as_it_was_written(analysis: Analysis, tmp_path: Path) -> None:
    assert read_analysis(tmp_path) is None
    write_analysis(analysis, tmp_path)
    assert read_analysis(tmp_path) == analysis


def test_an_axis_ends_where_a_metric_does(tmp_path: Path) -> None:
    series = to_series([read_run(make_run(tmp_path / "a", "a", "identity", 1.0))])
    svg = figures.metric_by_epoch(series, "accuracy", "test accuracy", "one", target=1.0)
    ticks = [float(text) for text in re.findall(r">(\d\.\d+)<", svg.partition("axis_2")[2])]
    assert max(ticks) == 1.0
