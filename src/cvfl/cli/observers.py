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

from cvfl.cli.display import MB, RunDisplay, StepDisplay
from cvfl.errors import ConfigError, plain
from cvfl.runs.progress import Progress, progress_of, progress_values


class Observer:
    """Hears of a run and shows nothing; others show."""

    def step(self, step: str, done: int, total: int) -> None:
        """Something before the first round goes on."""

    def wait(self, who: str, seconds: float) -> None:
        """Somebody or something is waited for."""

    def event(self, event: str, **values: Any) -> None:
        """Something happened that an operator wants to know."""

    def round(self, progress: Progress) -> None:
        """A round is over."""


class JsonLines(Observer):
    """One JSON object a line on standard output, for other programs."""

    def step(self, step: str, done: int, total: int) -> None:
        """Only the start of a step is worth a line."""
        if done == 0:
            self.event("step", step=step)

    def wait(self, who: str, seconds: float) -> None:
        """Who is waited for."""
        self.event("wait", who=who, seconds=round(seconds, 1))

    def event(self, event: str, **values: Any) -> None:
        """The line itself."""
        typer.echo(json.dumps({"time": round(time.time(), 3), "event": event, **values}))

    def round(self, progress: Progress) -> None:
        """A line a round."""
        self.event("round", **progress_values(progress))


class Terminal(Observer):
    """Live lines of Rich: the step that goes on, who is waited for, and the rounds."""

    def __init__(self, console: Console, name: str, stack: ExitStack) -> None:
        self._console, self._name, self._stack = console, name, stack
        self._steps: StepDisplay | None = stack.enter_context(StepDisplay(console))
        self._rounds: Any = None

    def step(self, step: str, done: int, total: int) -> None:
        """Show the step."""
        if self._steps is None:
            self._rounds = None
            self._steps = self._stack.enter_context(StepDisplay(self._console))
        self._steps(step, done, total)

    def wait(self, who: str, seconds: float) -> None:
        """Show a timer."""
        if self._rounds is None:
            self.step(f"waiting for {plain(who)}", int(seconds), 0)
        else:
            self._rounds.note(f"waiting for {plain(who)}, {seconds:.0f} s")

    def event(self, event: str, **values: Any) -> None:
        """A line that stays."""
        text = " ".join(f"{key} {plain(str(value))}" for key, value in values.items())
        self._console.print(f"{event} {text}".strip(), highlight=False, markup=False)

    def round(self, progress: Progress) -> None:
        """Show the round."""
        if self._rounds is None:
            if self._steps is not None:
                self._steps.__exit__()
                self._steps = None
            self._rounds = self._stack.enter_context(RunDisplay(self._console).shown()).bar(self._name)
        self._rounds(progress)


class TensorBoard(Observer):
    """Scalars for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra
        except ImportError:
            raise ConfigError("--tensorboard needs: pip install 'cvfl[tensorboard]'") from None
        self.writer = SummaryWriter(str(folder))

    def round(self, progress: Progress) -> None:
        """Loss, megabytes and metrics by round."""
        report, sent = progress.report, progress.sent
        scalars = {"loss": report.loss, "MB/up": sent.up / MB, "MB/down": sent.down / MB, "seconds": report.seconds}
        for part in ("train", "validation", "test") if report.evaluation else ():
            metrics = getattr(report.evaluation, part)
            scalars |= {f"{part}/{name}": value for name, value in metrics.items()}
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, report.t0)


class Several(Observer):
    """Passes everything on to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def step(self, step: str, done: int, total: int) -> None:
        """To all."""
        for observer in self.observers:
            observer.step(step, done, total)

    def wait(self, who: str, seconds: float) -> None:
        """To all."""
        for observer in self.observers:
            observer.wait(who, seconds)

    def event(self, event: str, **values: Any) -> None:
        """To all."""
        for observer in self.observers:
            observer.event(event, **values)

    def round(self, progress: Progress) -> None:
        """To all."""
        for observer in self.observers:
            observer.round(progress)


@contextmanager
def observed(console: Console, name: str, log_json: bool, tensorboard: Path | None) -> Iterator[Observer]:
    """The observers that the options ask for, as one."""
    with ExitStack() as stack:
        shown: Observer = JsonLines() if log_json else Terminal(console, name, stack)
        if tensorboard is None:
            yield shown
            return
        board = TensorBoard(tensorboard)
        stack.callback(board.writer.close)
        yield Several(shown, board)


def replay(seen: Observer) -> Callable[[Mapping[str, Any]], None]:
    """Show the events that another process printed as JSON lines as if they had happened here."""

    def pass_on(event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "round":
                seen.round(progress_of(event))
            case "wait":
                seen.wait(event["who"], event["seconds"])
            case "step":
                seen.step(event["step"], 0, 0)

    return pass_on
