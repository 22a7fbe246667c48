"""Runs as a reader compares them: those that differ in nothing but their seed become one series.

Runs of "lattice b=2" with seeds 1, 2 and 3, the last of them stopped early, become two series: "lattice b=2" with
mean and deviation over two seeds, and "lattice b=2 (interrupted)".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from cvfl.runs.record import CompressionError, Round, Run, Sent
from cvfl.runs.tally import Tally

_SEEDS = ("seed", "data.split_seed")
POINTS = 120
"""Most points of a curve; longer histories are averaged in windows of equal length."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; a single run has no deviation."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Curve:
    """Points of a line, with a deviation over seeds at each of them where there are several."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    deviation: tuple[float, ...] | None


@dataclass(frozen=True)
class Series:
    """One line in every figure and one row in every table."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that speaks for what all of them share."""
        return self.runs[0]

    @property
    def splits(self) -> frozenset[str]:
        """Names of the held-out rows of the runs, as far as they were recorded."""
        return frozenset(run.split for run in self.runs if run.split)

    @cached_property
    def tally(self) -> Tally:
        """What adds up over the rounds of the first run."""
        return Tally.of(self.first.history)

    @property
    def completed(self) -> bool:
        """Whether the runs reached their last round; a series never mixes."""
        return self.first.completed

    @property
    def randomised(self) -> bool:
        """Whether metrics by told labels are estimates, in any of the runs."""
        return any(run.randomised for run in self.runs)

    @property
    def estimated(self) -> bool:
        """Whether metrics of test rows are estimates, in any of the runs."""
        return any(run.estimated for run in self.runs)

    @property
    def lossy(self) -> bool:
        """Whether theory allows an error in any recorded message."""
        return any(error.bound > 0 for error in self._errors())

    @property
    def over_bound(self) -> bool:
        """Whether any recorded message, or their sum, has an error that theory excludes."""
        sums = [run.error for run in self.runs if run.error]
        return any(error.measured > error.bound for error in [*sums, *self._errors()])

    def _errors(self) -> list[CompressionError]:
        return [error for run in self.runs for line in run.history for error in line.errors.values()]

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles with a measured compression error, in the order they were recorded."""
        return tuple(dict.fromkeys(role for run in self.runs for line in run.history for role in line.errors))

    def spread(self, figure: Callable[[Run], float | None]) -> Spread | None:
        """Mean and deviation of a figure, or None if a run does not have it."""
        values = [value for value in map(figure, self.runs) if value is not None]
        return spread(values) if len(values) == len(self.runs) else None

    def sent(self) -> Sent:
        """Mean bytes over the runs."""
        return _mean_sent([run.sent for run in self.runs])

    def by_party(self) -> dict[str, Sent]:
        """Mean bytes of every party over the runs that have it."""
        each = [run.sent.by_party for run in self.runs]
        names = dict.fromkeys(name for parties in each for name in parties)
        return {name: _mean_sent([parties[name] for parties in each if name in parties]) for name in names}

    def curve(self, x: Callable[[Round], float], y: Callable[[Round], float | None]) -> Curve:
        """The curve over evenly spaced rounds that have a value of y, the nth of each run beside that of the others.

        Seeds that split rows differently have epochs, and so evaluations, of slightly different lengths.
        """
        histories = [[line for line in run.history if y(line) is not None and not line.aside] for run in self.runs]
        xs, ys, deviations = [], [], []
        for part in windows(min(map(len, histories))):
            window = [lines[part] for lines in histories]
            point = spread([fmean([value for line in lines if (value := y(line)) is not None]) for lines in window])
            xs.append(fmean([x(line) for lines in window for line in lines]))
            ys.append(point.mean)
            deviations.append(point.deviation or 0.0)
        return Curve(tuple(xs), tuple(ys), tuple(deviations) if len(self.runs) > 1 else None)


def windows(count: int, most: int = POINTS) -> Iterator[slice]:
    """So many points in at most `most` windows of equal length, of which the last may be shorter."""
    size = max(1, math.ceil(count / most))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation; NaN in, NaN out."""
    mean = fmean(values)
    if len(values) < 2:
        return Spread(mean)
    return Spread(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))


def to_series(runs: Sequence[Run]) -> list[Series]:
    """Group the runs, in the order given, under labels that are all different."""
    groups: dict[object, list[Run]] = {}
    for n, run in enumerate(runs):
        # A run that stopped early has sent less and learnt less: averaging it with complete ones would flatter both.
        groups.setdefault(_setting(run) if run.completed else n, []).append(run)
    found: list[Series] = []
    for members in groups.values():
        distinct = len({run.seed for run in members}) == len(members)
        found += [Series(_name(part[0]), tuple(part)) for part in ([members] if distinct else [[m] for m in members])]
    return _labelled(found)


def _setting(run: Run) -> tuple[object, ...]:
    settings = tuple(sorted((key, value) for key, value in run.settings.items() if key not in _SEEDS))
    return run.name, run.metric, settings


def _name(run: Run) -> str:
    return run.name if run.completed else f"{run.name} (interrupted)"


def _labelled(series: Sequence[Series]) -> list[Series]:
    """Tell namesakes apart by the settings in which they differ, and where that is not enough by number."""
    count = Counter(one.label for one in series)
    labels = []
    for one in series:
        namesakes = [other.first.settings for other in series if other.label == one.label]
        keys = [key for key in one.first.settings if len({other.get(key) for other in namesakes}) > 1]
        told = [f"{key.rpartition('.')[2]}={one.first.settings[key]}" for key in keys[:3]]
        labels.append(", ".join([one.label, *told]) if count[one.label] > 1 else one.label)
    total, seen = Counter(labels), Counter[str]()
    result = []
    for one, label in zip(series, labels, strict=True):
        seen[label] += 1
        result.append(replace(one, label=f"{label} (#{seen[label]})" if total[label] > 1 else label))
    return result


def _mean_sent(sent: Sequence[Sent]) -> Sent:
    """The mean of every part that all have counted."""
    each = {part: [getattr(one, part) for one in sent] for part in Sent.model_fields}
    return Sent(**{part: fmean(values) for part, values in each.items() if None not in values})
