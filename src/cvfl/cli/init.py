"""`cvfl init`: from the user's own files to a configuration that trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.prompt import Prompt

from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import one_line
from cvfl.config.draft import configuration, party_text, told
from cvfl.config.examine import Choices, Draft, check_choices, check_id, common_columns, examine, likely_id
from cvfl.config.files import load_config
from cvfl.data.tables.ids import Duplicates
from cvfl.data.tables.kinds import DEFAULT_MISSING
from cvfl.data.tables.label import Label
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.spellings import listed
from cvfl.errors import ConfigError, DataError, suggest, writing

SHOWN = 5
"""Columns that are left out and of which the reason is printed; the file has all."""


def init(
    out: Annotated[Path, typer.Argument(help="Configuration file to write (TOML).")],
    party: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TABLE", help="A party and its table: CSV, Parquet, Excel or a database URL."),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SQL", help="The query of a party whose table is a database URL.")
    ] = None,
    id: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="[NAME=]COLUMN",
            help="The column that names a person, in every table or at one party; or several: a,b.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="[PARTY.]COLUMN", help="What is to be predicted, and who holds it.")
    ] = None,
    duplicates: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]WHICH", help="Of rows with the same id the first or the last counts."),
    ] = None,
    missing: Annotated[
        list[str] | None, typer.Option(metavar="NAME=WORD", help="A word that means a missing value at this party.")
    ] = None,
    terms: Annotated[
        Path, typer.Option(help="With one --party: the file of terms, which `cvfl terms` makes for all roles.")
    ] = Path("terms.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented configuration for your own tables; in a terminal it asks for what is missing.

    With one --party the others are elsewhere: the file has what this party alone decides, and names the file of terms
    that all roles read. A party without the label gives no --label.

    Example: cvfl init federation.toml --party bank=bank.csv --party shop=shop.parquet --id ID --label bank.y
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack:
        if out.exists() and not force:
            raise ConfigError(f"{out} exists already; choose another name or use --force")
        sources = _with_words(_sources(party or _ask_parties(console), query or []), missing or [])
        with StepDisplay(console) as steps:
            drafts = []
            for source in sources:
                table = stack.enter_context(open_table(source, lambda name, rows: steps(f"{name}: reading", rows, 0)))
                words = source.missing[len(DEFAULT_MISSING) :]
                drafts.append(replace(examine(source, table, steps), words=words))
        drafts = _with_duplicates(drafts, duplicates or [])
        ids = _ids(drafts, id or [], console)
        if len(drafts) > 1:
            lines = _whole(out, drafts, _choices(drafts, ids, label, console))
        else:
            lines = _alone(out, drafts[0], _own_choices(drafts[0], ids, label), terms)
        for line in lines:
            console.print(line, soft_wrap=True)


def _whole(out: Path, drafts: Sequence[Draft], choices: Choices) -> list[str]:
    """Write the configuration of a federation whose tables are all here; what there is to say of it."""
    with _with_options():
        found, drafts = check_choices(drafts, choices)
    _write(out, configuration(drafts, choices, found, out.parent))
    load_config(out)
    tables = (line for draft in drafts for line in _table_lines(draft, choices))
    return [
        f"{out}: {len(drafts)} parties, label {choices.holder}.{choices.label} ({found.loss})",
        *(f"  {line}" for line in (*_label_lines(found), *tables)),
        f"next: cvfl train {out}",
    ]


def _alone(out: Path, draft: Draft, choices: Choices, terms: Path) -> list[str]:
    """Write the file of one party whose partners are elsewhere; what there is to say of it."""
    label = None
    with _with_options():
        if choices.holder:
            label, (draft,) = check_choices([draft], choices)
        else:
            check_id(draft, choices)
    _write(out, party_text(draft, choices, label, out.parent, terms))
    there = terms.exists()
    if there:
        load_config(out)
    said = f"label {choices.label} ({label.loss})" if label else "no label"
    return [
        f"{out}: what {draft.name} alone decides, {said}; the other parties are elsewhere",
        *(f"  {line}" for line in (*(_label_lines(label) if label else ()), *_table_lines(draft, choices))),
        *(() if there else (f"next: {terms}, one file for all roles, which `cvfl terms` makes and one of you sends",)),
        f"{'next' if there else 'then'}: cvfl party {out} --name {draft.name}",
    ]


@contextmanager
def _with_options() -> Iterator[None]:
    """What is to be set in a file that is not there yet, as options of this command."""
    try:
        yield
    except DataError as error:
        text = str(error)
        name, options = (
            text.partition(":")[0],
            {"set duplicates =": "--duplicates {}=first", "`missing`": "--missing {}=WORD"},
        )
        said = [f"; here: {option.format(name)}" for key, option in options.items() if key in text]
        raise DataError("".join([text, *said])) from error


def _write(out: Path, text: str) -> None:
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")


def _label_lines(label: Label) -> list[str]:
    """What the label was taken for, how many rows each class has, and which rows are left out."""
    counts = ", ".join(f"{name} {rows:,}" for name, rows in list(label.counts.items())[:20])
    rows = [f"rows of each class: {counts}"] if counts else []
    without = [f"{label.without:,} rows without a label are left out"] if label.without else []
    return [f"label {label.column}: {told(label)}", *rows, *without, *label.notes]


def _table_lines(draft: Draft, choices: Choices) -> list[str]:
    """How large a table is, what of it is not used, and how it was read where that is not the usual way."""
    aside = choices.aside(draft.name)
    left_out = [name for name in draft.unusable if name not in aside]
    reasons = [f"{draft.table.name}: {name}: {draft.unusable[name]}" for name in left_out[:SHOWN]]
    rare = [f"{draft.table.name}: {line}" for line in draft.mostly_rare(aside)]
    note = f"; left out: {listed(left_out)}" if left_out else ""
    missing = [f"{draft.table.name}: {word} counts as missing: {listed(c)}" for word, c in draft.missing.items()]
    return [
        f"{draft.table.name}: {draft.table.rows:,} rows, {len(draft.columns)} columns{note}",
        *reasons,
        *missing,
        *rare,
        *draft.notes,
        *draft.table.notes,
    ]


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


def _with_words(sources: Sequence[Source], given: Sequence[str]) -> list[Source]:
    """The sources, each with the words that mean a missing value in it."""
    words: dict[str, list[str]] = {source.party: [] for source in sources}
    for name, word in (_pair(text, "--missing") for text in given):
        if name not in words:
            raise ConfigError(f"--missing {name}: there is no such party{suggest(name, words)}")
        words[name].append(word)
    return [replace(source, missing=(*source.missing, *words[source.party])) for source in sources]


def _with_duplicates(drafts: Sequence[Draft], given: Sequence[str]) -> list[Draft]:
    """The drafts, each with which of rows with the same id counts: what was said of it, or of all."""
    chosen: dict[str, Duplicates] = {}
    for text in given:
        name, equals, which = text.rpartition("=")
        if which not in ("first", "last") or (equals and name not in [draft.name for draft in drafts]):
            raise ConfigError(f"--duplicates takes first or last, or NAME=first for a party, not {text!r}")
        chosen[name] = "first" if which == "first" else "last"
    return [replace(draft, duplicates=chosen.get(draft.name, chosen.get("", "error"))) for draft in drafts]


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"{option} takes NAME=..., not {text!r}")
    return name, value


def _own_choices(draft: Draft, ids: Mapping[str, tuple[str, ...]], label: str | None) -> Choices:
    """Those of one party: its label, if it holds it, with or without its name before it."""
    if label is None:
        return Choices(ids)
    holder, dot, column = label.partition(".")
    return Choices(ids, holder, column) if dot and label not in draft.table.columns else Choices(ids, draft.name, label)


def _choices(
    drafts: Sequence[Draft], ids: Mapping[str, tuple[str, ...]], label: str | None, console: Console
) -> Choices:
    if label is None:
        columns = [
            f"{draft.name}.{column.name}"
            for draft in drafts
            for column in draft.columns
            if column.name not in ids[draft.name]
        ]
        label = _ask(console, f"what to predict, as PARTY.COLUMN ({', '.join(columns)})", None, "--label")
    holder, dot, column = label.partition(".")
    if not dot:
        raise ConfigError(f"--label takes PARTY.COLUMN, not {label!r}")
    return Choices(ids, holder, column)


def _ids(drafts: Sequence[Draft], given: Sequence[str], console: Console) -> dict[str, tuple[str, ...]]:
    """Each party's id: its own, as NAME=COLUMN, or that of all."""
    names = [draft.name for draft in drafts]
    own = dict(text.split("=", 1) for text in given if text.partition("=")[0] in names and "=" in text)
    for_all = [text for text in given if text.partition("=")[0] not in own]
    if len(for_all) > 1:
        raise ConfigError(f"--id takes one column for all, or NAME=COLUMN for a party, not {' and '.join(for_all)}")
    if not for_all and len(own) < len(drafts):
        others = [draft for draft in drafts if draft.name not in own]
        shared = common_columns(others)
        where = "in every table" if not own else f"at {' and '.join(draft.name for draft in others)}"
        each = " ".join(f"--id {draft.name}={likely_id(draft)}" for draft in others)
        question = f"id column ({where}: {', '.join(shared) or f'none; name that of each: {each}'})"
        for_all = [_ask(console, question, shared[0] if shared else None, "--id")]
    return {draft.name: _columns_of(draft, own.get(draft.name, *for_all)) for draft in drafts}


def _columns_of(draft: Draft, text: str) -> tuple[str, ...]:
    names = (text,) if text in draft.table.columns else tuple(name.strip() for name in text.split(","))
    if missing := [name for name in names if name not in draft.table.columns]:
        near = suggest(missing[0], draft.table.columns)
        remedy = f"a name of its own is given as --id {draft.name}={likely_id(draft)}"
        raise ConfigError(f"id: {draft.table.name} has no column {missing[0]!r}{near} ({remedy})")
    return names


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
