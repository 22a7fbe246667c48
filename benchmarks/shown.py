"""How benchmarks show what they find: a JSON line a result as it comes, or a table at the end; progress meanwhile."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cvfl.cli.errors import one_line

_FILE_WIDTH = 120  # of a table that goes to a file


def options(doc: str | None) -> argparse.ArgumentParser:
    """The options of a script, with the one that all have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a JSON line a result, as it comes, instead of a table")
    return parser


def turns(repeats: int | None, seconds: float = 10.0) -> Iterator[int]:
    """As many turns as asked for; when nobody asks, up to 15 within some seconds, and at least three."""
    end = time.perf_counter() + seconds
    for turn in range(repeats or 15):
        if repeats is None and turn >= 3 and time.perf_counter() > end:
            return
        yield turn


class Steps:
    """Says on standard error what is being measured: a bar in a terminal, a line a step elsewhere."""

    def __init__(self, count: int) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=8), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task, self._count, self._at = self._bars.add_task("", total=count), count, 0

    @contextmanager
    def shown(self) -> Iterator[Steps]:
        """Show them while it lasts."""
        with self._bars:
            yield self

    def next(self, what: str) -> None:
        """The next one begins."""
        self._at += 1
        self._bars.update(self._task, description=what, completed=self._at - 1)
        if self._bars.disable:
            print(f"{self._at} of {self._count}: {what}", file=sys.stderr, flush=True)


def show(
    as_json: bool, count: int, measure: Callable[[Steps], Iterable[Any]], columns: Mapping[str, Callable[[Any], str]]
) -> None:
    """Measure step by step, and print the results, which are dataclasses, by themselves or as rows of a table."""
    with one_line():
        results = []
        with Steps(count).shown() as steps:
            for result in measure(steps):
                results.append(result)
                if as_json:
                    print(json.dumps(asdict(result)), flush=True)
        if not as_json:
            console = Console()
            console.print(_table(results, columns), width=None if console.is_terminal else _FILE_WIDTH)


def _table(results: Sequence[Any], columns: Mapping[str, Callable[[Any], str]]) -> Table:
    table = Table()
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=not place)
    for result in results:
        table.add_row(*(cell(result) for cell in columns.values()))
    return table
