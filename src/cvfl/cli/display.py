"""Progress of a run: bars that move in a terminal, lines where none can, such as a file."""

from __future__ import annotations

import time
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

from cvfl.runs.progress import Progress as RunProgress

MB = 1e6
_FIRST_LINE = 2.0


class Pace:
    """When the next line is due: every two seconds at first, later more rarely, so that a long run has a short log."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time; if so, the time to the next one begins."""
        now = time.monotonic()
        if now - self._last < max(_FIRST_LINE, (now - self._began) / 20):
            return False
        self._last = now
        return True


class RunDisplay:
    """One bar a run: rounds, loss, metric and megabytes; without a terminal lines with the same."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )

    @contextmanager
    def shown(self) -> Iterator[RunDisplay]:
        """Show the bars while runs go on."""
        with self._bars:
            yield self

    def bar(self, name: str) -> RunBar | RunLines:
        """A new bar, or new lines."""
        return RunBar(self._bars, name) if self._console.is_terminal else RunLines(self._console, name)


class _Figures:
    """A round's figures as text, with the metric of the newest evaluation."""

    def __init__(self) -> None:
        self._metric = ""

    def text(self, progress: RunProgress) -> str:
        """Loss, metric and megabytes."""
        report, traffic = progress.report, progress.sent
        if report.evaluation:
            held_out = report.evaluation.test or report.evaluation.validation
            self._metric = f"{progress.metric} {held_out[progress.metric]:.3f} " if progress.metric in held_out else ""
        return f"loss {report.loss:.3f} {self._metric}↑{traffic.up / MB:.2f} ↓{traffic.down / MB:.2f} MB"


class RunBar:
    """The bar of one run: call it with each round's progress."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars, self._figures = bars, _Figures()
        self._task = bars.add_task(name, total=None, status="starting")

    def __call__(self, progress: RunProgress) -> None:
        """Move on to this round."""
        status = self._figures.text(progress)
        self._bars.update(self._task, total=progress.rounds, completed=progress.report.t0 + 1, status=status)

    def note(self, text: str) -> None:
        """Say something instead of the round's figures, until the next round."""
        self._bars.update(self._task, status=text)


class RunLines:
    """The lines of one run: now and then a round, and the last one."""

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, name
        self._figures, self._pace = _Figures(), Pace()

    def __call__(self, progress: RunProgress) -> None:
        """A line when one is due."""
        done, status = progress.report.t0 + 1, self._figures.text(progress)
        if self._pace.due() or done == progress.rounds:
            print_line(self._console, f"{self._name:<11} {done}/{progress.rounds} {status}")

    def note(self, text: str) -> None:
        """Say something between rounds, when a line is due."""
        if self._pace.due():
            print_line(self._console, f"{self._name:<11} {text}")


def print_line(console: Console, text: str) -> None:
    """One line at once, however long: a file has no width, and somebody may be following it."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.file.flush()


class StepDisplay:
    """What goes on before the first round: a bar a step while it lasts; without a terminal a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console, self._pace = console, Pace()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
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
        if self._bars.disable and self._pace.due():
            print_line(self._console, f"{step} {count}".strip())
