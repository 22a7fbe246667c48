"""How good a run is, as a page shows it: figures of test rows, and what each party brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from cvfl.protocol import Loss
from cvfl.protocol.learning.metrics import BETTER_LOW
from cvfl.report import curves
from cvfl.report.format import NOTHING, Form, amount, metric_label, score, share
from cvfl.report.html import Figures, Heading, Page, Section, write_page
from cvfl.report.svg import Drawn
from cvfl.report.table import Row, Table
from cvfl.runs.analysis import (
    FEW,
    Analysis,
    Chosen,
    Columns,
    Confusion,
    Estimate,
    ManyClasses,
    Parties,
    Quantity,
    TwoClasses,
)

MOST_CLASSES = 12
"""Most classes that a confusion matrix is shown of."""
_RULES = {
    "f1": "the best for F1 on validation rows",
    "youden": "the best for Youden’s J on validation rows",
    "cost": "the cheapest on validation rows",
    "given": "as it was given",
    "default": "the usual one, since there are no validation rows to choose by",
}
ROUNDED = (
    f"Since a cell has fewer than {FEW} people, the others are rounded to multiples of {FEW}, and what is said here of "
    "decisions for one class is computed from that: exact figures would tell how many they are."
)
MOST_COLUMNS = 20
"""Most columns of a party that are shown; analysis.json has all."""
_UNFITTED = ", not calibrated, since there are no validation rows to do it by"
_WHOLE = (0.0, 1.0)
Part = str | Heading | Table | Figures


def analysis_sections(analysis: Analysis, idents: Iterator[str], classes: Sequence[str] = ()) -> list[Section]:
    """What a page shows of an analysis; classes have the names that it has, or else those that are given."""
    classes = analysis.names or classes
    parts: list[Part] = [_about(analysis)]
    if analysis.two:
        parts += _two(analysis.two, analysis.test, idents, classes)
    if analysis.many:
        parts += _many(analysis.many, classes)
    if analysis.quantity:
        parts += _quantity(analysis.quantity, idents)
    if len(parts) == 1:
        parts.append(
            f"One of the classes has fewer than {FEW} test rows: there are no figures that many would rest on."
        )
    columns = [_columns(analysis.columns)] if analysis.columns else []
    return [Section("Quality on test rows", parts), _parties(analysis.parties, idents), *columns]


def write_analysis_page(analysis: Analysis, parties: str, out: Path) -> None:
    """A page of an analysis alone, for the party that holds the labels."""
    sections = analysis_sections(analysis, (f"figure-{n}" for n in count(1)))
    write_page(Page(f"{parties}: quality of the models", "Made where the labels are.", sections), out)


def _about(analysis: Analysis) -> str:
    people = f"{analysis.test:,} test rows. Intervals are of 95%, by drawing these rows again."
    few = f"What rests on fewer than {FEW} people is merged with its neighbour, or shown as “<{FEW}”."
    return f"{people} {_decision(analysis.decision, analysis.loss)} {few}"


def _decision(chosen: Chosen, loss: Loss) -> str:
    if loss is Loss.SQUARED:
        return "Figures are in the label’s own units."
    how = {
        "temperature": f"Probabilities are calibrated on validation rows; the temperature is {chosen.temperature:.3g}.",
        "isotonic": "Probabilities are calibrated on validation rows, by isotonic regression.",
    }.get(chosen.calibration, f"Probabilities are those of the model{'' if chosen.fitted else _UNFITTED}.")
    if chosen.threshold is None:
        return how
    return f"A row is positive from a probability of {chosen.threshold:.3g} on, {_RULES[chosen.rule]}. {how}"


def _two(found: TwoClasses, people: int, idents: Iterator[str], classes: Sequence[str]) -> list[Part]:
    prevalence = found.positives / people
    drawn = [
        Drawn(
            "ROC curve", curves.curve(found.roc, ("false positive rate", "true positive rate"), _WHOLE, next(idents))
        ),
        Drawn(
            "Precision and recall",
            curves.curve(found.precision_recall, ("recall", "precision"), (prevalence, prevalence), next(idents)),
        ),
        Drawn("Calibration", curves.calibration(found.calibration, next(idents))),
        Drawn("Gain", curves.gain(found.tenths, next(idents))),
    ]
    rows = [
        *(_estimated(metric_label(name), getattr(found, name)) for name in ("roc_auc", "average_precision", "f1")),
        *((metric_label(name), score(getattr(found, name)), NOTHING) for name in ("precision", "recall", "accuracy")),
        ("KS", score(found.ks), NOTHING),
        *((metric_label(name), score(getattr(found, name)), NOTHING) for name in ("log_loss", "brier")),
    ]
    return [
        Table("Figures of test rows", ("Figure", "Value", "Interval"), rows),
        Figures(drawn),
        Heading("Confusion matrix"),
        _confusion(found.confusion, classes),
        Heading("Gain and lift"),
        _tenths(found),
    ]


def _tenths(found: TwoClasses) -> Table:
    rows = [
        (f"{n}", f"{one.people:,}", share(one.gain), f"{one.lift:.2f}") for n, one in enumerate(found.tenths, start=1)
    ]
    note = (
        "By score, the highest first. Gain: the share of all positives that is found up to here. Lift: how many times "
        "as often positives are here as among all."
    )
    return Table("Gain and lift", ("Tenth", "People", "Gain", "Lift"), rows, note)


def _confusion(confusion: Confusion, classes: Sequence[str]) -> Table:
    names = [_name(n, classes) for n in range(len(confusion))]
    rows = [
        (f"is {name}", *(f"<{FEW}" if n is None else f"{n:,}" for n in row))
        for name, row in zip(names, confusion, strict=True)
    ]
    note = ROUNDED if any(n is None for row in confusion for n in row) else ""
    return Table("Confusion matrix", ("People", *(f"decided {name}" for name in names)), rows, note)


def _name(n: int, classes: Sequence[str]) -> str:
    return classes[n] if n < len(classes) else f"{n}"


def _many(found: ManyClasses, classes: Sequence[str]) -> list[Part]:
    rows: list[Row] = [
        _estimated("accuracy", found.accuracy),
        ("F1, mean over classes", score(found.f1), NOTHING),
        ("log loss", score(found.log_loss), NOTHING),
        ("Brier score", score(found.brier), NOTHING),
    ]
    columns = ("roc_auc", "average_precision", "precision", "recall", "f1")
    each = [
        (
            _name(n, classes),
            f"<{FEW}" if one.people is None else f"{one.people:,}",
            *(NOTHING if (value := getattr(one, column)) is None else score(value) for column in columns),
        )
        for n, one in enumerate(found.classes)
    ]
    head = ("Class", "People", *(metric_label(column) for column in columns))
    small: list[Part] = (
        [Heading("Confusion matrix"), _confusion(found.confusion, classes)] if len(each) <= MOST_CLASSES else []
    )
    return [
        Table("Figures of test rows", ("Figure", "Value", "Interval"), rows),
        Heading("Each class against all others"),
        Table("Each class against all others", head, each),
        *small,
    ]


def _quantity(found: Quantity, idents: Iterator[str]) -> list[Part]:
    rows = [_estimated(metric_label(name), getattr(found, name), amount) for name in ("rmse", "mae", "r2")]
    drawn = [Drawn("Residuals", curves.residuals(found.residuals, next(idents)))] if found.residuals else []
    drawn.append(Drawn("Actual by predicted", curves.fit(found.fit, next(idents))))
    return [Table("Figures of test rows", ("Figure", "Value", "Interval"), rows), Figures(drawn)]


def _estimated(name: str, one: Estimate, form: Form = score) -> Row:
    return name, form(one.value), f"{form(one.low)} to {form(one.high)}"


def _parties(found: Parties | None, idents: Iterator[str]) -> Section:
    title = "What each party brings"
    if found is None:
        return Section(
            title, ["This cannot be told: only the sum of all embeddings is known here, or there is one party."]
        )
    label, form = metric_label(found.metric), amount if found.metric in BETTER_LOW else score
    text = (
        f"Test {label} is {form(found.together)}. “Without” is what it is when the embeddings of a party are dealt "
        "out anew among the rows, so that they tell nothing of a row: the mean and the interval of some deals. Shapley "
        "values share out what all have together above nobody, above 0 if a party helps; they need no more than "
        "six parties. Parties that tell the same can stand in for each other: each alone may seem to bring little."
    )
    rows = [
        (
            one.party,
            form(one.without.value),
            f"{form(one.without.low)} to {form(one.without.high)}",
            NOTHING if one.shapley is None else form(one.shapley),
        )
        for one in found.each
    ]
    drawn = Drawn(title, curves.brought(found, found.metric in BETTER_LOW, label, next(idents)))
    head = ("Party", f"{label} without", "Interval", "Shapley value")
    return Section(title, [text, Table(title, head, rows), Figures([drawn])])


def _columns(found: Sequence[Columns]) -> Section:
    text = (
        "“Without” a column: its values are dealt out anew among the test rows, the mean and the interval of some "
        "deals. A column that tells the same as another one may seem to bring little. Embeddings are taken as they "
        "are, without a compressor."
    )
    parts: list[Part] = [text]
    for one in found:
        label, form = metric_label(one.metric), amount if one.metric in BETTER_LOW else score
        rows = [
            (each.column, form(each.without.value), f"{form(each.without.low)} to {form(each.without.high)}")
            for each in one.each[:MOST_COLUMNS]
        ]
        more = len(one.each) - len(rows)
        note = f"With all columns {form(one.together)}." + (f" {more:,} more are in analysis.json." if more > 0 else "")
        title = f"Columns of {one.party}"
        parts += [Heading(title), Table(title, ("Column", f"{label} without", "Interval"), rows, note)]
    return Section("What each column brings", parts)
