"""The figures that people quote: cards and the table of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from statistics import fmean

from cvfl.protocol.learning.metrics import BETTER_LOW
from cvfl.report.colours import colour
from cvfl.report.format import (
    NOTHING,
    Form,
    amount,
    change,
    fixed,
    megabytes,
    metric_label,
    score,
    scores,
    shares,
    times,
)
from cvfl.report.html import Card, Details, Section
from cvfl.report.labels import ESTIMATE, ESTIMATES, metric_note
from cvfl.report.leakage import HEADLINES, leakage_column
from cvfl.report.noise import noise_card, what_epsilon_is
from cvfl.report.series import Series, Spread
from cvfl.report.table import Cell, Table, Text, Value, column
from cvfl.runs.record import Run, Sent

_AS_LAST_SEEN = (
    "Training rows are scored as they were last seen in training, each by the models of that round: the figure lags "
    "behind, and is not to be compared with that of test rows to the last digit."
)


@dataclass(frozen=True)
class Comparison:
    """All series of a report, and what they are compared by."""

    series: tuple[Series, ...]

    @cached_property
    def baseline(self) -> Series | None:
        """The first series without compression that ran to its end, if another is there to compare with it."""
        found = (one for one in self.series if one.completed and not one.first.compressed)
        return next(found, None) if len(self.series) > 1 else None

    @cached_property
    def metric(self) -> str | None:
        """The headline metric, if the series agree on one."""
        named = {one.first.metric for one in self.series}
        return named.pop() if len(named) == 1 else None

    def elsewhere(self, one: Series) -> bool:
        """Whether the runs were tested on other rows than those of the first series that says on which."""
        known = next((other.splits for other in self.series if other.splits), one.splits)
        return not one.splits <= known

    def reduction(self, one: Series) -> float | None:
        """How many times fewer bytes than the baseline; a run that stopped early has no such figure."""
        return self._factor(one, lambda sent: sent.total)

    def training_reduction(self, one: Series) -> float | None:
        """The same of training frames only."""
        return self._factor(one, lambda sent: sent.training)

    def _factor(self, one: Series, figure: Callable[[Sent], float]) -> float | None:
        own = figure(one.sent())
        return figure(self.baseline.sent()) / own if self.baseline and one.completed and own else None


BYTES = {
    "up": "Up MB",
    "down": "Down MB",
    "evaluation": "Evaluation MB",
    "alignment": "Alignment MB",
    "setup": "Set-up MB",
    "total": "Total MB",
}
"""Bytes by what they were for, as tables head them."""


def headline(compared: Comparison) -> list[Card]:
    """What to see first."""
    return _many(compared) if len(compared.series) > 1 else _one(compared.series[0])


def _one(one: Series) -> list[Card]:
    sent, test, train = one.sent(), _scores(one, "test"), _scores(one, "train")
    mb = megabytes([sent.up, sent.down])
    seconds = [run.seconds for run in one.runs]
    noise = [noise_card(one.first.account)] if one.first.account else []
    return [
        Card(
            f"Test {metric_label(one.first.metric)}",
            score(test.mean) if test else NOTHING,
            metric_note(one.first)
            or (f"training rows, as last seen: {score(train.mean)}" if train else "not evaluated"),
        ),
        Card("Sent in all", f"{mb(sent.total)} MB", shares(sent.purposes)),
        Card("Sent in training", f"{mb(sent.training)} MB", f"{mb(sent.up)} up, {mb(sent.down)} down"),
        Card(
            "Rounds",
            f"{one.first.rounds:,}",
            f"{'' if one.completed else 'interrupted; '}{fixed(seconds, 1)(fmean(seconds))} seconds",
        ),
        *noise,
    ]


def _many(compared: Comparison) -> list[Card]:
    complete = [one for one in compared.series if one.completed and one.sent().total > 0]
    known = [one for one in complete if not one.estimated] or complete  # an estimate is better than nothing alone
    reached = {one.label: s.mean for one in known if (s := _scores(one, "test")) and not math.isnan(s.mean)}
    name, cards = metric_label(compared.metric), []
    if reached and compared.metric:
        best = _better(compared.metric)(reached.values())
        winners = [label for label, value in reached.items() if score(value) == score(best)]
        estimate = f"; {ESTIMATE}" * all(one.estimated for one in known)
        cards.append(Card(f"Best test {name}", score(best), f"{', '.join(winners)}{estimate}"))
    if not complete:
        return cards
    least = _cheapest(complete, reached, compared.metric)
    sent = least.sent()
    told = f"{least.label}: {shares(sent.purposes)}"
    cards.append(Card("Fewest bytes in all", f"{megabytes([sent.total])(sent.total)} MB", told))
    if compared.baseline and compared.baseline is not least:
        price = f"{least.label} against {compared.baseline.label}"
        if compared.metric and {least.label, compared.baseline.label} <= reached.keys():
            price += f"; test {name} {change(reached[least.label] - reached[compared.baseline.label])}"
        only = f"training frames only: {times(compared.training_reduction(least) or 1)}"
        cards.append(Card("Largest reduction", times(compared.reduction(least) or 1), f"{price}; {only}"))
    return cards


def _cheapest(series: Sequence[Series], reached: Mapping[str, float], metric: str | None) -> Series:
    """The series with the fewest bytes; of those within half a percent the one that learnt best."""
    fewest = min(one.sent().total for one in series)
    near = [one for one in series if one.sent().total <= 1.005 * fewest]
    known = [reached[one.label] for one in near if one.label in reached]
    best = _better(metric)(known) if metric and known else None
    return next((one for one in near if best is not None and reached.get(one.label) == best), near[0])


def results_section(compared: Comparison) -> Section:
    """The table of results with its explanation, and every seed where there are several."""
    many, seeds = len(compared.series) > 1, any(len(one.runs) > 1 for one in compared.series)
    about = ["1 MB is 1,000,000 bytes, counted where frames leave a process. " + _AS_LAST_SEEN]
    if many:
        about.append("Bold is the best of a column.")
    if compared.baseline:
        about.append(f"Reduction compares bytes with those of “{compared.baseline.label}”.")
    if not all(one.sent().whole for one in compared.series):
        about.append("Where alignment and set-up were not recorded, the total is without them.")
    if any(one.first.account for one in compared.series):
        about.append(what_epsilon_is(compared.series))
    if any(one.first.audit for one in compared.series):
        about.append("What a server or a party could learn of columns and labels is under Leakage.")
    if any(one.randomised for one in compared.series):
        about.append(ESTIMATES)
    if seeds:
        about.append("Runs that differ in nothing but their seed are shown as mean ± standard deviation.")
    if any(compared.elsewhere(one) for one in compared.series):
        about.append(
            "Runs with other test rows were tested on other rows than the first: their metrics do not compare."
        )
    if not all(one.completed for one in compared.series):
        about.append("An interrupted run stopped before its last round and takes no part in the comparison.")
    columns = _columns(compared, compared.series, range(len(compared.series)), many)
    whole = Table.of(columns, "Results", " ".join(about))
    if not seeds:
        return Section("Results", [whole])
    each = [(Series(one.label, (run,)), n) for n, one in enumerate(compared.series) for run in one.runs]
    columns = _columns(compared, [one for one, _ in each], [n for _, n in each], False)
    return Section("Results", [whole, Details(Table.of(columns, "Results of every seed"))])


def _columns(
    compared: Comparison, series: Sequence[Series], colours: Iterable[int], bold: bool
) -> dict[str, Sequence[Cell]]:
    fair = [one.completed and bold and not compared.elsewhere(one) for one in series]
    name = metric_label(compared.metric)
    columns: dict[str, Sequence[Cell]] = {
        "Run": [
            Text(one.label, colour=colour(n), about=f"{_seeds(one)}{'; other test rows' * compared.elsewhere(one)}")
            for one, n in zip(series, colours, strict=True)
        ],
        f"Test {name}": _score_column(compared, series, "test", fair),
        "Training, as last seen": _score_column(compared, series, "train", fair),
        "Rounds": [f"{one.first.rounds:,}" for one in series],
    }
    if any(one.first.account for one in series):
        columns["ε"] = _column([one.spread(_epsilon) for one in series], amount)
    columns["Total MB"] = _bytes_column(series, fair)
    if compared.baseline:
        columns["Reduction"] = _reduction_column(compared, series, fair)
    if any(one.first.audit for one in series):
        columns |= {name: leakage_column(series, name) for name in HEADLINES}
    seconds = [one.spread(attrgetter("seconds")) for one in series]
    columns["Seconds"] = _column(seconds, fixed([s.mean for s in seconds if s], 1), min, fair)
    return columns


def _bytes_column(series: Sequence[Series], fair: Sequence[bool]) -> list[Cell]:
    """All bytes, and below them those of training."""
    values = [one.spread(attrgetter("sent.total")) for one in series]
    form = megabytes(value.mean for value in values if value)
    training = megabytes(one.sent().training for one in series)
    about = [f"training {training(one.sent().training)}" for one in series]
    return _with(_column(values, form, min, fair), about)


def _reduction_column(compared: Comparison, series: Sequence[Series], fair: Sequence[bool]) -> list[Cell]:
    """How many times fewer bytes than the baseline's, and below that the same of training frames only."""
    all_frames, training = (
        [None if (found := factor(one)) is None else Spread(found) for one in series]
        for factor in (compared.reduction, compared.training_reduction)
    )
    about = [f"training {times(one.mean)}" if one else "" for one in training]
    return _with(_column(all_frames, times, max, fair), about)


def _with(cells: Sequence[Cell], about: Sequence[str]) -> list[Cell]:
    """Cells with a line below each."""
    both = zip(cells, about, strict=True)
    return [replace(cell, about=[line]) if isinstance(cell, Value) and line else cell for cell, line in both]


def _score_column(compared: Comparison, series: Sequence[Series], part: str, fair: Sequence[bool]) -> list[Cell]:
    """Runs of different tasks have nothing to compare, and each value needs its name."""
    values = [_scores(one, part) for one in series]
    form = scores(value.mean for value in values if value)
    better = _better(compared.metric) if compared.metric else None
    guessed = [one.estimated if part == "test" else one.randomised for one in series]
    known = [is_fair and not guess for is_fair, guess in zip(fair, guessed, strict=True)]
    cells = _with(_column(values, form, better, known), ["estimate" * guess for guess in guessed])
    names = ["" if compared.metric else metric_label(one.first.metric) for one in series]
    both = zip(cells, names, strict=True)
    return [replace(cell, unit=name) if isinstance(cell, Value) else cell for cell, name in both]


def _column(
    values: Sequence[Spread | None],
    form: Form,
    better: Callable[[Sequence[float]], float] | None = None,
    fair: Sequence[bool] | None = None,
    missing: str = NOTHING,
) -> list[Cell]:
    """A column without the deviations that would be written as zero: what all seeds send is the same."""
    shown = [
        Spread(one.mean) if one and one.deviation is not None and form(one.deviation) == form(0) else one
        for one in values
    ]
    return column(shown, form, better, fair, missing)


def _scores(one: Series, part: str) -> Spread | None:
    return one.spread(lambda run: (run.tested if part == "test" else getattr(run.metrics, part)).get(run.metric or ""))


def _epsilon(run: Run) -> float | None:
    return run.account.training.one_party if run.account else None


def _better(metric: str) -> Callable[[Iterable[float]], float]:
    return min if metric in BETTER_LOW else max


def _seeds(one: Series) -> str:
    seeds = [str(run.seed) for run in one.runs]
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds: {', '.join(seeds)}"
