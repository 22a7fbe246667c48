"""A first configuration for the user's own tables: looked at, commented, and ready to train."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from cvfl.data.tables.describe import Column, describe
from cvfl.data.tables.ids import read_ids
from cvfl.data.tables.kinds import Kind
from cvfl.data.tables.label import Label, read_label
from cvfl.data.tables.sources import Source
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, DataError, suggest
from cvfl.types import OnStep

MOSTLY_DIFFERENT = 0.5
"""A category with more different values than this share of the rows is a name or a text, not a category."""


@dataclass(frozen=True)
class Draft:
    """One party's table as `cvfl init` found it: what it is, and which columns cannot be used, and why."""

    source: Source
    table: Table
    columns: tuple[Column, ...]
    unusable: Mapping[str, str]

    @property
    def name(self) -> str:
        """The party."""
        return self.source.party

    @property
    def features(self) -> list[Column]:
        """Columns that a model can use."""
        return [column for column in self.columns if column.name not in self.unusable]


@dataclass(frozen=True)
class Choices:
    """What the user said: the columns that are the id, and the label as party and column."""

    id: tuple[str, ...]
    holder: str
    label: str


def examine(source: Source, table: Table, on_step: OnStep = lambda *_: None) -> Draft:
    """Look at every column of a table."""
    columns: list[Column] = []
    unusable: dict[str, str] = {}
    for done, column in enumerate(table.columns):
        on_step(f"{source.party}: looking at columns", done, len(table.columns))
        try:
            columns.append(describe(table, column))
        except DataError as error:
            unusable[column] = str(error).removeprefix(f"{table.name}: ")
            continue
        if reason := _unusable(columns[-1]):
            unusable[column] = reason
    return Draft(source, table, tuple(columns), unusable)


def _unusable(column: Column) -> str | None:
    if column.distinct == 0:
        return "has no value"
    if column.distinct == 1 and not column.missing:
        return "is constant"
    if column.kind is Kind.CATEGORY and column.distinct > max(2, MOSTLY_DIFFERENT * column.rows):
        return f"has {column.distinct:,} different values in {column.rows:,} rows"
    return None


def common_columns(drafts: Sequence[Draft]) -> list[str]:
    """Columns that every table has: where an id may be; the most telling first."""
    shared = set.intersection(*({column.name for column in draft.columns} for draft in drafts))
    different = {c.name: c.distinct / max(c.rows, 1) for draft in drafts for c in draft.columns if c.name in shared}
    return sorted(shared, key=lambda name: (-different[name], name))


def check_choices(drafts: Sequence[Draft], choices: Choices) -> Label:
    """Whether the id is in every table and the label at its holder; the label as it will be read."""
    for draft in drafts:
        for column in choices.id:
            if column not in draft.table.columns:
                raise ConfigError(
                    f"id: {draft.table.name} has no column {column!r}{suggest(column, draft.table.columns)}"
                )
        read_ids(draft.table, choices.id)
    by_name = {draft.name: draft for draft in drafts}
    if choices.holder not in by_name:
        raise ConfigError(f"label: there is no party {choices.holder!r}{suggest(choices.holder, by_name)}")
    table = by_name[choices.holder].table
    if choices.label not in table.columns:
        raise ConfigError(f"label: {table.name} has no column {choices.label!r}{suggest(choices.label, table.columns)}")
    return read_label(table, choices.label)


def configuration(drafts: Sequence[Draft], choices: Choices, label: Label, folder: Path) -> str:
    """The TOML text; files are named as seen from `folder`."""
    rows = min(draft.table.rows for draft in drafts)
    lines = [
        f"# One model across {', '.join(draft.name for draft in drafts)}. Train it with: cvfl train THIS-FILE",
        "",
        "epochs = 10",
        f"batch_size = {_batch(rows)}",
        _line("local_iterations = 5", "steps that everyone takes between two messages"),
        _line('compressor = "auto"', 'of the embeddings; "identity" sends them as they are'),
        _line('server_compressor = "auto"', "of what the server sends"),
        _line("seed = 0", "of all randomness: the same seed gives the same result"),
        "",
        "[data]",
        _line(f"id = {_columns(choices.id)}", "what names a person, in every table"),
        _line('alignment = "private"', 'or "aligned": row i is the same person everywhere'),
        "test_share = 0.2",
        _line("validation_share = 0.0", "rows to choose a round or a setting by, apart from the test rows"),
        *([_line("stratify = true", "every class has the same share of test rows")] if label.classes else []),
        "",
        "[data.prepare]",
        _line('categories = "one-hot"', 'or "embedding", for categories with many values'),
        _line("rare = 0.01", "values rarer than this share go into one bucket"),
        _line('impute = "median"', 'or "mean" or "zero"; a gap is also marked as one'),
        "",
        "[step_size]",
        "eta = 0.001",
        "",
        "[optimizer]",
        _line('name = "adam"', 'or "sgd", as in the paper'),
        "",
        "[server_model]",
        _line('name = "linear"', 'over all embeddings; or "mlp" with hidden = [32]'),
    ]
    for draft in drafts:
        lines += ["", *_party(draft, choices, label, folder)]
    return "\n".join(lines) + "\n"


def _party(draft: Draft, choices: Choices, label: Label, folder: Path) -> list[str]:
    held = choices.label if draft.name == choices.holder else None
    features = [column for column in draft.features if column.name not in (*choices.id, held)]
    if not features:
        raise DataError(f"{draft.table.name}: no column is left to learn from beside id and label")
    lines = [f"[party.{draft.name}]", f"# {draft.table.rows:,} rows; to learn from: {_counted(features)}"]
    lines += _source(draft.source, folder)
    if held is not None:
        classes = f"{len(label.classes)} classes: {_shortened(label.classes)}" if label.classes else "a quantity"
        lines.append(_line(f"label = {_text(held)}", classes))
    unusable = {name: why for name, why in draft.unusable.items() if name not in (*choices.id, held)}
    if unusable:
        lines += [f"# {name}: {why}" for name, why in unusable.items()]
        lines.append(f"exclude = [{', '.join(_text(name) for name in unusable)}]")
    width = max(8, min(32, 1 << (len(features) - 1).bit_length()))
    return [
        *lines,
        "",
        f"[party.{draft.name}.model]",
        'name = "mlp"',
        _line(f"width = {width}", "numbers a row that are sent"),
        "hidden = [32]",
    ]


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 5 else [*names[:3], "...", names[-1]])


def _counted(columns: Sequence[Column]) -> str:
    kinds = [column.kind for column in columns]
    words = {
        Kind.NUMBER: ("number", "numbers"),
        Kind.CATEGORY: ("category", "categories"),
        Kind.DATE: ("date", "dates"),
    }
    return ", ".join(f"{n} {words[kind][n > 1]}" for kind in Kind if (n := kinds.count(kind)))


def _source(source: Source, folder: Path) -> list[str]:
    if source.path is None:
        return [f"url = {_text(source.url or '')}", f"query = {_text(source.query or '')}"]
    return [f"table = {_text(os.path.relpath(source.path, folder))}"]


def _batch(rows: int) -> int:
    """A power of two, about fifty batches an epoch; in smaller ones most bytes would be frames and bases."""
    return max(32, min(512, 1 << max(rows // 50, 1).bit_length() - 1))


def _line(setting: str, comment: str) -> str:
    return f"{setting:<36}# {comment}"


def _columns(names: Sequence[str]) -> str:
    return _text(names[0]) if len(names) == 1 else f"[{', '.join(map(_text, names))}]"


def _text(value: str) -> str:
    return tomlkit.string(value).as_string()
