"""Progress of a run: bars that move in a terminal, lines where none can, such as a file."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cvfl.report.format import MB
from cvfl.runs.progress import Progress as RunProgress


class Pace:
    """When the next line is due: every two seconds at first, later more rarely, so that a long run has a short log."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time; if so, the time to the next one begins."""
        now = time.monotonic()
        if now - self._last < max(2.0, (now - self._began) / 20):
            return False
        self._last = now
        return True


def print_line(console: Console, text: str) -> None:
    """One line at once, however long: a file has no width, and somebody may be following it."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.file.flush()


def run_bars(console: Console) -> Progress:
    """Where the bars of runs are shown; without a terminal there are none."""
    return Progress(
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )


class RunBar:
    """The bar of one run: rounds, loss, metric, all megabytes so far and how much of them is training.

    Without a terminal it is now and then a line with the same.
    """

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars, self._name, self._pace = bars, name, Pace()
        self._task = bars.add_task(name, total=None, status="starting")
        self._metric = ""  # of the newest evaluation

    def __call__(self, progress: RunProgress) -> None:
        """Move on to this round; the last one always has a line."""
        report, sent, done = progress.report, progress.sent, progress.report.t0 + 1
        if report.evaluation:
            held_out = report.evaluation.test or report.evaluation.validation
            self._metric = f"{progress.metric} {held_out[progress.metric]:.3f} " if progress.metric in held_out else ""
        part = f", {sent.training / sent.total:.0%} train" if sent.total else ""
        status = f"loss {report.loss:.3f} {self._metric}{sent.total / MB:.2f} MB{part}"
        self._bars.update(self._task, total=progress.rounds, completed=done, status=status)
        self._line(f"{done}/{progress.rounds} {status}", done == progress.rounds)

    def note(self, text: str) -> None:
        """Say something instead of the round's figures, until the next round."""
        self._bars.update(self._task, status=text)
        self._line(text)

    def _line(self, text: str, last: bool = False) -> None:
        if self._bars.disable and (self._pace.due() or last):
            print_line(self._bars.console, f"{self._name:<11} {text}")


class StepDisplay(Progress):
    """What goes on before the first round: a bar a step while it lasts; without a terminal a line now and then."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._pace, self._step = Pace(), ""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show how far a step is; a total of 0 is not known."""
        if step != self._step:
            for task in self.task_ids:
                self.remove_task(task)
            self.add_task(step, total=total or None, count="")
            self._step = step
        count = f"{done / total:.0%}" if total else f"{done:,}" if done else ""
        self.update(self.task_ids[0], total=total or None, completed=done, count=count)
        if self.disable and self._pace.due():
            print_line(self.console, f"{step} {count}".strip())
