"""`cvfl data`: look at a party's table, and get public data sets."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import one_line
from cvfl.config.files import load_config
from cvfl.data.sets.builtin import BUILTIN
from cvfl.data.sets.fetch import DATASETS, fetch_dataset
from cvfl.data.tables import describe as look
from cvfl.data.tables.describe import Column
from cvfl.data.tables.organisation import PartyTable
from cvfl.errors import ConfigError, suggest
from cvfl.federation.rows.load import open_party

data = typer.Typer(help="Look at a party's table, or get a public data set.", no_args_is_help=True)


@data.command()
def describe(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML) with a table for every party.")],
    name: Annotated[str, typer.Option(help="The party whose table is shown.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show a party's columns: what they hold, what is missing, how many different values, and what training uses.

    Example: cvfl data describe federation.toml --name bank
    """
    with one_line(), ExitStack() as stack:
        settings = load_config(config)
        if name not in settings.party:
            raise ConfigError(f"{config}: there is no party {name!r}{suggest(name, settings.party)}")
        console = Console(highlight=False)
        with StepDisplay(console) as steps:
            table = open_party(settings, name, stack, steps)
            columns: list[Column] = []
            for done, column in enumerate(table.table.columns):
                steps(f"{name}: looking at columns", done, len(table.table.columns))
                columns.append(look.describe(table.table, column))
    if as_json:
        found = [asdict(column) | {"use": use(table, column.name)} for column in columns]
        typer.echo(json.dumps(found, indent=2))
        return
    console.print(f"{table.table.name}: {table.table.rows:,} rows, {len(columns)} columns")
    console.print(columns_table(table, columns))


def columns_table(table: PartyTable, columns: list[Column]) -> Table:
    """A line a column."""
    shown = Table("column", "type", "use")
    for heading in ("missing", "different"):
        shown.add_column(heading, justify="right")
    shown.add_column("values")
    for column in columns:
        missing = f"{column.missing_share:.1%}" if column.missing else "-"
        shown.add_row(
            column.name, column.kind, use(table, column.name), missing, f"{column.distinct:,}", column.example
        )
    return shown


def use(table: PartyTable, name: str) -> str:
    """What training does with a column."""
    if name in table.party.id:
        return "id"
    return "label" if name == table.party.label else "feature" if name in table.features else "-"


@data.command("list")
def list_() -> None:
    """List the data sets that a configuration can name.

    Example: cvfl data list
    """
    shown = Table("data.name", "what", "from")
    for name in BUILTIN:
        shown.add_row(name, "ships with scikit-learn", "built in")
    for name, dataset in DATASETS.items():
        shown.add_row(name, dataset.title, "needs a login" if any(d.login for d in dataset.downloads) else "download")
    Console(highlight=False).print(shown)


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of a data set; `cvfl data list` shows them.")],
    folder: Annotated[Path, typer.Argument(help="Folder for data sets; files go to FOLDER/NAME.")] = Path("data"),
) -> None:
    """Get a public data set from its publisher, or say exactly which file to put where.

    Example: cvfl data fetch adult data
    """
    console = Console(highlight=False)
    with one_line():
        with StepDisplay(console) as steps:
            files = fetch_dataset(name, folder, lambda done, total: steps(f"{name}: bytes", done, total))
        dataset = DATASETS[name]
        for file in files:
            console.print(f"{file.path}  {file.checksum or 'the publisher gives no checksum'}")
        console.print(f"{dataset.title}; {dataset.terms}")
        console.print(f'use it with: data.name = "{name}", data.path = "{folder / name}"')
