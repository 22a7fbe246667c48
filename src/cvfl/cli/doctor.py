"""`cvfl doctor`: what a role lacks, before a run finds out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cvfl.cli.errors import one_line
from cvfl.cli.role import Changes, Config, Insecure, State, state_of
from cvfl.doctor.examine import examine
from cvfl.doctor.finding import Finding, Health

_COLOURS = {Health.FINE: "green", Health.LOOK: "yellow", Health.WRONG: "red"}
ILL = 1
"""The exit code when something is wrong."""


def doctor(
    config: Config,
    name: Annotated[str, typer.Option(help="Which role this is: a party, by its name; else the server.")] = "server",
    state: State = None,
    change: Changes = None,
    insecure: Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check before a run: versions, certificates, the network, the table, disk and memory of a role.

    It takes no part in a run and disturbs none; the server notes one line, that a peer of version 0 was refused. The
    exit code is 1 if a run would fail.

    Example: cvfl doctor bank.toml --name bank
    """
    with one_line():
        findings = examine(config, change or [], name, state or state_of(config, name), insecure)
    well = not any(finding.health is Health.WRONG for finding in findings)
    if as_json:
        typer.echo(json.dumps({"role": name, "fine": well, "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        console = Console(highlight=False, markup=False)
        if name == "server":
            console.print("the server; a party is checked with --name NAME")
        console.print(_table(findings))
        console.print(f"{name} can take part" if well else f"{name} cannot take part yet")
    raise typer.Exit(0 if well else ILL)


def _table(findings: list[Finding]) -> Table:
    """A line a finding; what to do is there where something is to be done."""
    remedies = any(finding.remedy for finding in findings)
    shown = Table("", "", "what was found", *(["what to do"] if remedies else []))
    for one in findings:
        health = Text(one.health.value, style=_COLOURS[one.health])
        shown.add_row(one.what, health, one.found, *([one.remedy] if remedies else []))
    return shown
