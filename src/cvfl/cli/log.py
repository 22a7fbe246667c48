"""`cvfl log`: what a role did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cvfl.cli.errors import one_line
from cvfl.errors import plain
from cvfl.runs.actions import log_in, read_actions, verified

log = typer.Typer(no_args_is_help=True, add_completion=False)
Place = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a role's state, or the log itself.")]


@log.callback()
def commands() -> None:
    """Look at what a role did: who joined, what was sent and when, by which terms; and check that nobody changed it."""


@log.command()
def show(
    place: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as they are.")] = False,
) -> None:
    """Show the log of a role, checking its chain on the way.

    Example: cvfl log show state/federation/bank
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    with one_line():
        for line in read_actions(log_in(place)):
            if as_json:
                typer.echo(json.dumps(line, separators=(",", ":")))
            else:
                console.print(_told(line))


@log.command()
def verify(place: Place) -> None:
    """Check that no line of a role's log was changed, removed or put in; the last hash is for noting down elsewhere.

    Lines that are removed at the end leave a whole chain: compare the number of lines and the hash with an earlier one.

    Example: cvfl log verify state/federation/bank
    """
    with one_line():
        path = log_in(place)
        head = verified(path)
        typer.echo(f"{path}: {head.lines:,} lines, nothing changed; the last one is {head.sha256}")


def _told(line: dict[str, Any]) -> str:
    """A line for people."""
    known = {"n", "time", "before", "event", "sent", "received"}
    about = " ".join(f"{key} {_said(value)}" for key, value in line.items() if key not in known)
    moved = "; ".join(f"{way} {_counted(line[way])}" for way in ("sent", "received") if line.get(way))
    return f"{plain(str(line.get('time')))} {plain(str(line.get('event')))} {about} {moved}".rstrip().replace("  ", " ")


def _said(value: Any) -> str:
    """A value, or numbers of rows by the run whose models were used."""
    if isinstance(value, dict):
        return ", ".join(f"{count:,} by run {plain(run)}" for run, count in value.items())
    return plain(str(value))


def _counted(by_role: dict[str, dict[str, list[int]]]) -> str:
    """Kinds of messages, how many and how many bytes, by role."""
    return ", ".join(
        f"{plain(role)}: {' '.join(f'{count} {kind} {size:,} B' for kind, (count, size) in kinds.items())}"
        for role, kinds in by_role.items()
    )
