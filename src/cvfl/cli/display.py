"""Progress of a run in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cvfl.experiments.run import Progress as RunProgress

MB = 1e6


class RunDisplay:
    """One bar a run: rounds, loss, metric and megabytes."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )

    @contextmanager
    def shown(self) -> Iterator[RunDisplay]:
        """Show the bars while runs go on."""
        with self._bars:
            yield self

    def bar(self, name: str) -> RunBar:
        """A new bar."""
        return RunBar(self._bars, name)


class RunBar:
    """The bar of one run: call it with each round's progress."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars = bars
        self._task = bars.add_task(name, total=None, status="starting")
        self._metric = ""

    def __call__(self, progress: RunProgress) -> None:
        """Move on to this round."""
        report, traffic = progress.report, progress.meter.total()
        if report.evaluation:
            self._metric = f"{progress.metric} {report.evaluation.test[progress.metric]:.3f} "
        status = f"loss {report.loss:.3f} {self._metric}↑{traffic.up / MB:.2f} ↓{traffic.down / MB:.2f} MB"
        self._bars.update(self._task, total=progress.rounds, completed=report.t0 + 1, status=status)
