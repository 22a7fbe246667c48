"""Progress of a run in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from cvfl.federation.train import Progress as RunProgress

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
        report, traffic = progress.report, progress.sent
        if report.evaluation:
            held_out = report.evaluation.test or report.evaluation.validation
            self._metric = f"{progress.metric} {held_out[progress.metric]:.3f} " if progress.metric in held_out else ""
        status = f"loss {report.loss:.3f} {self._metric}↑{traffic.up / MB:.2f} ↓{traffic.down / MB:.2f} MB"
        self._bars.update(self._task, total=progress.rounds, completed=report.t0 + 1, status=status)

    def note(self, text: str) -> None:
        """Say something instead of the round's figures, until the next round."""
        self._bars.update(self._task, status=text)


class StepDisplay:
    """What goes on before the first round: one bar a step, shown while it lasts."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._step, self._task = "", TaskID(0)

    def __enter__(self) -> StepDisplay:
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show how far a step is; a total of 0 is not known."""
        if step != self._step:
            for task in self._bars.task_ids:
                self._bars.remove_task(task)
            self._step, self._task = step, self._bars.add_task(step, total=total or None, count="")
        count = f"{done / total:.0%}" if total else f"{done:,}" if done else ""
        self._bars.update(self._task, total=total or None, completed=done, count=count)
