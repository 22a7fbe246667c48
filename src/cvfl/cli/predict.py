"""`cvfl predict`: scores of new rows with the models of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.display import StepDisplay, print_line
from cvfl.cli.errors import one_line
from cvfl.errors import ConfigError
from cvfl.serving.bundles import read_bundles
from cvfl.serving.predict import Predictor
from cvfl.serving.write import check_new, write_scores


def predict(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directory; or the folders of all roles' models, which are of one run.")
    ],
    party: Annotated[
        list[str],
        typer.Option(metavar="NAME=TABLE", help="A party's new rows: a CSV, Parquet or Excel file, or a database URL."),
    ],
    out: Annotated[Path, typer.Option(help="Where scores go: a .csv or .parquet file.")],
    query: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SQL", help="The query that gives the rows of a party with a URL.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Score new rows: those that every party holds, with a probability and a class, or a value in the label's units.

    Tables have the columns of training, and no label is needed. A model that learned to do without some parties
    (`absence.rate`, or `data.alignment = "outer"`) does with the tables of the others, scores everybody whom one of
    them holds, and says by whom in the column `parties`.

    All tables are on this machine; roles that are apart predict with `cvfl server --predict` and `cvfl party
    --predict`.

    Example: cvfl predict runs/federation-0 --party bank=new_bank.csv --party shop=new_shop.parquet --out scores.csv
    """
    console = Console(highlight=False)
    with one_line():
        check_new(out, force)
        tables = _tables(party, query or [])
        predictor = Predictor(read_bundles(runs))
        with StepDisplay(console) as steps:
            rows = write_scores(predictor.of_tables(tables, steps), out)
        for note in predictor.notes:
            print_line(console, note)
        print_line(console, f"{out}: scores of {rows:,} rows")


def _tables(party: Iterable[str], query: Iterable[str]) -> dict[str, Path | tuple[str, str]]:
    """What each party brings: a file, or a URL and its query."""
    places, queries = _pairs("--party", party), _pairs("--query", query)
    if strange := [name for name in queries if "://" not in places.get(name, "")]:
        raise ConfigError(f"--query {strange[0]}: it needs --party {strange[0]}=URL, the address of its database")
    if missing := [name for name, place in places.items() if "://" in place and name not in queries]:
        raise ConfigError(f"--party {missing[0]}: a database needs a query, --query {missing[0]}=SQL")
    return {name: (place, queries[name]) if name in queries else Path(place) for name, place in places.items()}


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"{option} takes NAME=..., not {text!r}")
        if name in pairs:
            raise ConfigError(f"{option}: {name} is named twice")
        pairs[name] = value
    return pairs
