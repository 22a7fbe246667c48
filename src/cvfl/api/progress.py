"""A progress bar for people: in a notebook as HTML, in a terminal as a line, elsewhere none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from cvfl.runs.progress import Progress

Show = Callable[[Progress], None]


@contextmanager
def shown(name: str, wanted: bool | None) -> Iterator[Show]:
    """What to call with each round's progress; `wanted` None shows it where somebody may look."""
    if wanted is False:
        yield lambda at: None
    elif _in_notebook():
        yield _notebook(name)
    elif wanted or sys.stderr.isatty():
        with Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=Console(stderr=True),
        ) as bars:
            task = bars.add_task(name, total=None, status="")
            yield lambda at: bars.update(task, total=at.rounds, completed=at.report.t0 + 1, status=_status(at))
    else:
        yield lambda at: None


def _status(at: Progress) -> str:
    return f"loss {at.report.loss:.3f}, {at.sent.total / 1e6:.2f} MB"


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def _notebook(name: str) -> Show:
    from IPython.display import HTML, display  # noqa: PLC0415  there, in a notebook

    handle = display(HTML(f"{escape(name)}: starting"), display_id=True)

    def show(at: Progress) -> None:
        done, text = at.report.t0 + 1, f"{at.report.t0 + 1} of {at.rounds} rounds, {_status(at)}"
        if (
            at.rounds < 200 or done % (at.rounds // 100) == 0 or done == at.rounds
        ):  # a hundred updates are smooth enough
            bar = f'<progress value="{done}" max="{at.rounds}"></progress>'
            handle.update(HTML(f"{escape(name)} {bar} {escape(text)}"))

    return show
