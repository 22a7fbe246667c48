"""The command line: one file a verb, loaded when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cvfl import __version__

COMMANDS = {
    "Start": {
        "demo": "Train four organisations together: without compression, with the paper's three compressors, and with "
        "`auto`.",
        "init": "Write a commented configuration for your own tables; in a terminal it asks for what is missing.",
        "train": "Train a federation on this machine and write its run directory; every runtime gives the same result.",
        "board": "Show runs in the browser: follow those under way, compare any of them.",
        "report": "Write report, tables and figures of recorded runs, without training.",
    },
    "Data": {
        "data": "Look at a party's table, or get a public data set.",
        "align": "Find the rows that all parties share by private set intersection, anew; `cvfl train` does it by "
        "itself.",
    },
    "Run a federation": {
        "certs": "Make certificates: by request, so that nobody's key travels, or all at once on one machine.",
        "doctor": "Check before a run: versions, certificates, the network, the table, disk and memory of a role.",
        "terms": "Write, change and sign the terms that all roles of a federation read; with the file alone, show and "
        "check them.",
        "server": "Run the server of a federation: wait for all parties, train, write the run directory.",
        "party": "Run one party of a federation: it needs its own section, its own table, the server's address and a "
        "certificate.",
        "log": "Look at what a role did: who joined, what was sent and when, by which terms; and check that nobody "
        "changed it.",
        "nvflare-job": "Write a job that a provisioned NVIDIA FLARE federation accepts; its sites have the parties' "
        "names.",
        "nvflare-site": "Let a provisioned FLARE site or server run cvfl's jobs: FLARE builds only the classes that a "
        "site lists.",
    },
    "Use a model": {
        "predict": "Score new rows: those that every party holds, with a probability and a class, or a value in the "
        "label's units.",
        "serve": "Answer requests for scores over HTTP, at the party that had the label.",
        "model": "Look at trained models, or write them for other systems.",
    },
    "Choose settings": {
        "plan": "Recommend compressor and local iterations (Q) for your network, with the bytes and the time to "
        "expect.",
        "tune": "Search model sizes, step size, Q, batch size, weight decay and compressor by the validation metric.",
    },
    "Research": {
        "audit": "Measure what messages give away: columns and labels, by attacks on the frames of a run.",
        "reproduce": "Run a study: every compressor, several seeds; leave tables, figures and a report.",
        "theory": "Show compression errors, bytes and parameter choices for your numbers.",
        "bench": "Measure speed and memory on this machine; keep it quiet meanwhile.",
    },
}
"""Names of the commands and what they do, by what they are for; a command itself says the same and more."""
FILES = {"report": "reproduce", "nvflare-site": "nvflare_job"}
"""Files of commands that are called otherwise."""
_FIRST = """\
cvfl demo     four organisations, real data: about a minute
cvfl init     your own tables: writes a configuration that `cvfl train` trains
cvfl --help   all commands"""


class Commands(TyperGroup):
    """The commands; the file of one is loaded when it is called, and none for the list of all."""

    _listing = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.commands: Any = dict.fromkeys(self.list_commands(None))  # by which a name that is nearly right is found

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return [name for commands in COMMANDS.values() for name in commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, or a group of them."""
        for panel, commands in COMMANDS.items():
            if cmd_name in commands:
                if self._listing:
                    return TyperCommand(cmd_name, help=commands[cmd_name], rich_help_panel=panel)
                return loaded(cmd_name)
        return None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """All commands, each in a line or two."""
        self._listing = True
        super().format_help(ctx, formatter)
        self._listing = False


def loaded(name: str) -> Any:
    """A command from its file."""
    file = FILES.get(name, name.replace("-", "_"))
    found: typer.Typer | Callable[..., None] = getattr(import_module(f"cvfl.cli.{file}"), name.replace("-", "_"))
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        found = alone
    command = get_command(found)
    command.name = name
    return command


app = typer.Typer(
    name="cvfl",
    cls=Commands,
    epilog="Example: cvfl demo",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cvfl {__version__}")
        raise typer.Exit


@app.callback()
def cvfl(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one model across organisations that hold different columns about the same people."""
    if context.invoked_subcommand is None:
        typer.echo(_FIRST)


def main() -> None:
    """Entry point of the `cvfl` command; what it writes is for its user alone."""
    os.umask(0o077)
    app()
