"""How good the models of a run are, as RUN/analysis.json keeps it: figures of test rows, made where the labels are.

No point of a curve, no bucket and no cell rests on fewer than `FEW` people: what would is merged with its neighbour,
and a cell that cannot be merged is None.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cvfl.protocol import Loss
from cvfl.runs.beside import Finite, read_beside, write_beside
from cvfl.types import Section

NAME = "analysis.json"
FEW = 5
"""Fewest people that a figure is shown of."""
Confusion = tuple[tuple[int | None, ...], ...]
"""People by their class, a row, and the class that was decided, a column; None stands for fewer than `FEW`.

The other cells are rounded to multiples of `FEW` then, and figures of decisions for a class are computed from that.
"""


class Estimate(Section):
    """A figure, and the interval that 95 of 100 repetitions fall into."""

    value: Finite
    low: Finite
    high: Finite


class Points(Section):
    """A curve, and the interval of y at each x."""

    x: tuple[Finite, ...]
    y: tuple[Finite, ...]
    low: tuple[Finite, ...]
    high: tuple[Finite, ...]


class Bucket(Section):
    """People who were predicted about the same: the mean prediction, and the mean of what is true."""

    people: int
    predicted: Finite
    actual: Finite


class Tenth(Section):
    """A tenth of all people, by score from above: how many positives are found up to here, and how often here.

    `gain` is the share of all positives up to this tenth, `lift` the share of positives in it by that of all.
    """

    people: int
    gain: Finite
    lift: Finite


class Bar(Section):
    """People whose residual, what is true less the prediction, is from `start` to `end`."""

    start: Finite
    end: Finite
    people: int


class TwoClasses(Section):
    """Figures of two classes; those of decisions are at the threshold."""

    positives: int
    roc_auc: Estimate
    average_precision: Estimate
    f1: Estimate
    accuracy: Finite
    precision: Finite
    recall: Finite
    ks: Finite
    log_loss: Finite
    brier: Finite
    confusion: Confusion
    roc: Points
    precision_recall: Points
    calibration: tuple[Bucket, ...]
    tenths: tuple[Tenth, ...]


class OneClass(Section):
    """A class against all others; of one with fewer than `FEW` people there are no figures."""

    people: int | None
    roc_auc: Finite | None = None
    average_precision: Finite | None = None
    precision: Finite | None = None
    recall: Finite | None = None
    f1: Finite | None = None


class ManyClasses(Section):
    """Figures of several classes; F1 is the mean over classes."""

    accuracy: Estimate
    f1: Finite
    log_loss: Finite
    brier: Finite
    confusion: Confusion
    classes: tuple[OneClass, ...]


class Quantity(Section):
    """Figures of a quantity, in the label's own units."""

    rmse: Estimate
    mae: Estimate
    r2: Estimate
    residuals: tuple[Bar, ...]
    fit: tuple[Bucket, ...]


class Brought(Section):
    """What a party brings: the metric when its rows are dealt out anew, and its Shapley value, above 0 if it helps."""

    party: str
    without: Estimate
    shapley: Finite | None = None


class Parties(Section):
    """What each party brings to the metric, of which `together` is that of all."""

    metric: str
    together: Finite
    each: tuple[Brought, ...]


class OneColumn(Section):
    """What a column brings: the metric when its values are dealt out anew."""

    column: str
    without: Estimate


class Columns(Section):
    """What each column of a party brings to the metric, the most telling first; `together` is with all as they are."""

    party: str
    metric: str
    rows: Literal["test", "training"] = "test"
    """Of which rows; a quantity of training rows is in deviations of the label."""
    together: Finite
    each: tuple[OneColumn, ...]


class Chosen(Section):
    """How outputs became probabilities and decisions; `fitted` if there were validation rows to choose by."""

    rule: str
    threshold: Finite | None
    calibration: str
    temperature: Finite
    fitted: bool


class Analysis(Section):
    """The figures of the kind that the label has, and what the parties bring, where that can be told."""

    loss: Loss
    validation: int
    test: int
    decision: Chosen
    two: TwoClasses | None = None
    many: ManyClasses | None = None
    quantity: Quantity | None = None
    names: tuple[str, ...] = ()
    """What classes are called, by their numbers, where that is known."""
    parties: Parties | None = None
    columns: tuple[Columns, ...] = ()
    """Of the parties whose columns are where the labels are, if `analysis.columns` asks for it."""


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Write analysis.json into a folder."""
    write_beside(analysis, folder / NAME, indent=1)


def write_columns(columns: Columns, folder: Path) -> Path:
    """Write PARTY.columns.json into a folder: what a party's own columns bring, as it knows it itself."""
    path = folder / f"{columns.party}.columns.json"
    write_beside(columns, path, indent=1)
    return path


def read_analysis(folder: Path) -> Analysis | None:
    """The analysis of a run, if there is one."""
    return read_beside(Analysis, folder / NAME)
