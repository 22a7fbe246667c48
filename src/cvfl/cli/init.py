"""`cvfl init`: from the user's own files to a configuration that trains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.prompt import Prompt

from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import one_line
from cvfl.config.draft import Choices, Draft, check_choices, common_columns, configuration, examine
from cvfl.config.files import load_config
from cvfl.data.tables.sources import Source, open_table
from cvfl.errors import ConfigError, writing


def init(
    out: Annotated[Path, typer.Argument(help="Configuration file to write (TOML).")],
    party: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TABLE", help="A party and its table: CSV, Parquet or a database URL."),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SQL", help="The query of a party whose table is a database URL.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The column that names a person, in every table; or several: a,b.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="PARTY.COLUMN", help="What is to be predicted, and who holds it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented configuration for your own tables; in a terminal it asks for what is missing.

    Example: cvfl init federation.toml --party bank=bank.csv --party shop=shop.parquet --id ID --label bank.y
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack:
        if out.exists() and not force:
            raise ConfigError(f"{out} exists already; choose another name or use --force")
        sources = _sources(party or _ask_parties(console), query or [])
        with StepDisplay(console) as steps:
            drafts = []
            for source in sources:
                table = stack.enter_context(open_table(source, lambda name, rows: steps(f"{name}: reading", rows, 0)))
                drafts.append(examine(source, table, steps))
        choices = _choices(drafts, id, label, console)
        found = check_choices(drafts, choices)
        text = configuration(drafts, choices, found, out.parent)
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        load_config(out)
        console.print(f"{out}: {len(drafts)} parties, label {choices.holder}.{choices.label} ({found.loss})")
        for draft in drafts:
            left_out = [name for name in draft.unusable if name not in (*choices.id, choices.label)]
            note = f"; left out: {', '.join(left_out)}" if left_out else ""
            console.print(f"  {draft.table.name}: {draft.table.rows:,} rows, {len(draft.columns)} columns{note}")
        console.print(f"next: cvfl train {out}")


def _sources(parties: Sequence[str], queries: Sequence[str]) -> list[Source]:
    asked = dict(_pair(text, "--query") for text in queries)
    sources = []
    for name, where in (_pair(text, "--party") for text in parties):
        if "://" in where:
            if name not in asked:
                raise ConfigError(f"--party {name}: a database needs a query; add --query {name}='select ...'")
            sources.append(Source(name, url=where, query=asked.pop(name)))
        else:
            sources.append(Source(name, path=Path(where)))
    names = [source.party for source in sources]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"--party {twice.pop()} is given twice")
    if asked:
        raise ConfigError(f"--query {next(iter(asked))}: no such party has a database URL")
    return sources


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"{option} takes NAME=..., not {text!r}")
    return name, value


def _choices(drafts: Sequence[Draft], id_column: str | None, label: str | None, console: Console) -> Choices:
    if id_column is None:
        shared = common_columns(drafts)
        listed = ", ".join(shared) or "none"
        id_column = _ask(console, f"id column (in every table: {listed})", shared[0] if shared else None, "--id")
    one = all(id_column in draft.table.columns for draft in drafts)
    ids = (id_column,) if one else tuple(name.strip() for name in id_column.split(","))
    if label is None:
        columns = [
            f"{draft.name}.{column.name}" for draft in drafts for column in draft.columns if column.name not in ids
        ]
        label = _ask(console, f"what to predict, as PARTY.COLUMN ({', '.join(columns)})", None, "--label")
    holder, dot, column = label.partition(".")
    if not dot:
        raise ConfigError(f"--label takes PARTY.COLUMN, not {label!r}")
    return Choices(ids, holder, column)


def _ask_parties(console: Console) -> list[str]:
    parties = [_ask(console, "a party and its table, as NAME=TABLE", None, "--party")]
    while more := _ask(console, "another party and its table, as NAME=TABLE (enter: no more)", "", "--party"):
        parties.append(more)
    return parties


def _ask(console: Console, question: str, default: str | None, option: str) -> str:
    """Ask in a terminal; elsewhere the option is required."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing: {question}")
    while True:
        answer = Prompt.ask(question, console=console, default=default, show_default=bool(default))
        if answer is not None:
            return answer.strip()
