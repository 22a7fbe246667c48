"""`cvfl log`: what a role did."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cvfl.cli.errors import one_line
from cvfl.errors import ConfigError, plain
from cvfl.runs.actions import Head, log_in, read_actions, verified

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
def verify(
    place: Place,
    noted: Annotated[
        str | None,
        typer.Option(
            metavar="LINES:SHA256", help="What this told earlier, noted elsewhere: the log must go on from it."
        ),
    ] = None,
) -> None:
    """Check that the chain of a role's log is whole: each line has the hash of the one before.

    Whoever can write the log can compute a whole chain anew, or remove lines at the end. What this tells, noted where
    they cannot write and given later as --noted, shows it.

    Example: cvfl log verify state/federation/bank
    Example: cvfl log verify state/federation/bank --noted 184:$SHA256
    """
    with one_line():
        path = log_in(place)
        head = verified(path, earlier := _noted(noted))
        goes_on = f" and goes on from the {earlier.lines:,} that were noted" if earlier else ""
        typer.echo(f"{path}: {head.lines:,} lines, the chain is whole{goes_on}; the last one is {head.sha256}")


def _noted(text: str | None) -> Head | None:
    """The end of a log as somebody noted it."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"([0-9][0-9,]*):([0-9a-fA-F]{64})", text.strip())):
        raise ConfigError(
            f"--noted {text!r}: give the number of lines and the whole hash of the last one, as 184:77e0..."
        )
    return Head(int(found[1].replace(",", "")), found[2].lower())


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
