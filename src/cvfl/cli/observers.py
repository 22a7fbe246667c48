"""What an operator sees of a run: a live line in the terminal, JSON lines, TensorBoard. Never data, ids or labels."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from cvfl.cli.display import RunBar, StepDisplay, run_bars
from cvfl.cli.errors import extra
from cvfl.errors import plain
from cvfl.report.format import MB
from cvfl.runs.progress import Progress, progress_of, progress_values


class Observer:
    """Hears of a run, and passes rounds on to its `listeners`; others show more."""

    listeners: tuple[Callable[[Progress], None], ...] = ()

    def step(self, step: str, done: int, total: int) -> None:
        """Something before the first round goes on."""

    def wait(self, who: str, seconds: float) -> None:
        """Somebody or something is waited for."""

    def event(self, event: str, **values: Any) -> None:
        """Something happened that an operator wants to know."""

    def pause(self) -> None:
        """Somebody is asked something now: show nothing that moves until there is news."""

    def round(self, progress: Progress) -> None:
        """A round is over."""
        for tell in self.listeners:
            tell(progress)


class _Board:
    """TensorBoard's scalars of a round."""

    def __init__(self, folder: Path) -> None:
        with extra("tensorboard", "--tensorboard"):
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra
        self._writer = SummaryWriter(str(folder))
        self.close = self._writer.close

    def __call__(self, progress: Progress) -> None:
        for name, value in scalars(progress).items():
            self._writer.add_scalar(name, value, progress.report.t0)


def scalars(progress: Progress) -> dict[str, float]:
    """The figures of a round, as TensorBoard and MLflow name them."""
    report, sent = progress.report, progress.sent
    found = {"loss": report.loss, "MB/total": sent.total / MB, "seconds": report.seconds}
    # A run that trains sends no prediction.
    found |= {f"MB/{part}": value / MB for part, value in vars(sent).items() if part != "prediction"}
    for part in ("train", "validation", "test") if report.evaluation else ():
        found |= {f"{part}/{name}": value for name, value in getattr(report.evaluation, part).items()}
    return found


class _JsonLines(Observer):
    """One JSON object a line on standard output, for other programs."""

    def step(self, step: str, done: int, total: int) -> None:
        if done == 0:  # only the start of a step is worth a line
            self.event("step", step=step)

    def wait(self, who: str, seconds: float) -> None:
        self.event("wait", who=who, seconds=round(seconds, 1))

    def event(self, event: str, **values: Any) -> None:
        typer.echo(json.dumps({"time": round(time.time(), 3), "event": event, **values}))

    def round(self, progress: Progress) -> None:
        super().round(progress)
        self.event("round", **progress_values(progress))


class _Terminal(Observer):
    """Live lines of Rich: the step that goes on, who is waited for, and the rounds; an event is a line that stays."""

    def __init__(self, console: Console, name: str, stack: ExitStack) -> None:
        self._console, self._name, self._stack = console, name, stack
        self._steps: StepDisplay | None = stack.enter_context(StepDisplay(console))
        self._rounds: RunBar | None = None

    def step(self, step: str, done: int, total: int) -> None:
        if self._steps is None:
            self._rounds = None
            self._steps = self._stack.enter_context(StepDisplay(self._console))
        self._steps(step, done, total)

    def wait(self, who: str, seconds: float) -> None:
        if self._rounds is None:
            self.step(f"waiting for {plain(who)}", int(seconds), 0)
        else:
            self._rounds.note(f"waiting for {plain(who)}, {seconds:.0f} s")

    def event(self, event: str, **values: Any) -> None:
        text = " ".join(f"{key} {plain(str(value))}" for key, value in values.items())
        self._console.print(f"{event} {text}".strip(), markup=False)

    def pause(self) -> None:
        if self._steps is not None:
            self._steps.stop()
            self._steps = None

    def round(self, progress: Progress) -> None:
        super().round(progress)
        if self._rounds is None:
            self.pause()
            self._rounds = RunBar(self._stack.enter_context(run_bars(self._console)), self._name)
        self._rounds(progress)
        if progress.note:
            self.event(progress.note)


@contextmanager
def observed(console: Console, name: str, log_json: bool, tensorboard: Path | None) -> Iterator[Observer]:
    """The observer that the options ask for."""
    with ExitStack() as stack:
        seen: Observer = _JsonLines() if log_json else _Terminal(console, name, stack)
        if tensorboard is not None:
            board = _Board(tensorboard)
            stack.callback(board.close)
            seen.listeners += (board,)
        yield seen


def replay(seen: Observer, event: Mapping[str, Any]) -> None:
    """Show an event that another process printed as a JSON line as if it had happened here."""
    match event["event"]:
        case "round":
            seen.round(progress_of(event))
        case "wait":
            seen.wait(event["who"], event["seconds"])
        case "step":
            seen.step(event["step"], 0, 0)
