"""`cvfl align`: find the people whom all parties hold, without showing an id."""

from __future__ import annotations

import csv
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import one_line
from cvfl.cli.tables import number_table
from cvfl.config.files import load_config
from cvfl.data.tables.ids import BETWEEN
from cvfl.data.tables.organisation import NOT_HELD, PartyTable
from cvfl.errors import ConfigError, writing
from cvfl.federation.rows.keeping import alignment_folder
from cvfl.federation.rows.load import Rows, open_tables, shared_rows
from cvfl.privacy import Aligned
from cvfl.report.format import MB


def align(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML) with a table for every party.")],
    out: Annotated[
        Path | None, typer.Option(help="Write OUT/PARTY.csv: each party's shared ids in the common order.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
) -> None:
    """Find the rows that all parties share by private set intersection, anew; `cvfl train` does it by itself.

    With data.alignment = "outer" rows are those of the label holder, and a party's file has those that it holds.

    Nobody learns an id that it does not hold. docs/alignment.md says what each role learns.

    The result is kept beside the configuration file: `cvfl train` goes on with it, and compares only ids that changed.

    Example: cvfl align federation.toml --out aligned
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack:
        settings = load_config(config, change or [])
        if settings.data.name is not None or settings.data.alignment == "aligned":
            raise ConfigError(f"{config}: the rows are aligned already; align takes parties with tables and ids")
        began = time.perf_counter()
        with StepDisplay(console) as steps:
            tables, kept = open_tables(settings, stack, steps), alignment_folder(config)
            shutil.rmtree(kept, ignore_errors=True)
            rows = shared_rows(tables, settings, steps, kept, blinding=None)
        assert rows.aligned is not None
        for note in (note for table in tables for note in table.notes):
            console.print(note)
        console.print(_table(rows, rows.aligned))
        console.print(alignment_line(rows.aligned))
        console.print(f"{time.perf_counter() - began:.1f} s")
        if out:
            _write(out, tables, rows)
            console.print(f"{out}: the shared ids of each party in the common order")


def alignment_line(aligned: Aligned) -> str:
    """What was found, in one line; one about an earlier alignment if there was one, and a warning if it is little."""
    lines = [
        _outer(aligned) if aligned.outer else f"{aligned.common:,} rows are shared by {' and '.join(aligned.names)}"
    ]
    if aligned.earlier:
        changed = f"went on: {aligned.came:,} ids came and {aligned.gone:,} went"
        lines.append(f"alignment of {aligned.earlier} {changed if aligned.changed else 'reused: ids have not changed'}")
    if aligned.warning:
        lines.append(f"warning: {aligned.warning}")
    return "\n".join(lines)


def _outer(aligned: Aligned) -> str:
    """Whose rows they are, and who else holds how many."""
    holder, held = aligned.names[aligned.holder - 1], zip(aligned.names, aligned.held, strict=True)
    others = [f"{name} {count:,}" for name, count in held if name != holder]
    told = ": " + ", ".join(others).replace(" ", " holds ", 1) if others else ""
    return f"{aligned.rows:,} rows of {holder}{told}" + (f"; all hold {aligned.common:,}" if len(others) > 1 else "")


def _table(rows: Rows, aligned: Aligned) -> Table:
    table = number_table("party", "ids", "shared", "share", "MB")
    shared = aligned.held or (aligned.common,) * len(aligned.names)
    for m, (name, size, held) in enumerate(zip(aligned.names, aligned.sizes, shared, strict=True), start=1):
        ids = (f"{size:,}", f"{held:,}", f"{held / size:.1%}")
        table.add_row(name, *ids, f"{rows.found.traffic.parties[m].alignment / MB:.2f}")
    return table


def _write(out: Path, tables: list[PartyTable], rows: Rows) -> None:
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for table, places in zip(tables, rows.places, strict=True):
            by_row = {row: text for text, row in table.ids().items()}
            with (out / f"{table.party.name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(table.party.id)
                more = len(table.party.id) - 1
                held = places[places != NOT_HELD].tolist()
                writer.writerows(by_row[row].split(BETWEEN, more) for row in held)
