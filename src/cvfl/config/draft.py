"""A first configuration for the user's own tables: looked at, commented, and ready to train."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import tomlkit

from cvfl.config.examine import Choices, Draft
from cvfl.data.tables.describe import Column
from cvfl.data.tables.kinds import Kind
from cvfl.data.tables.label import Label
from cvfl.data.tables.sources import Source
from cvfl.data.tables.spellings import listed
from cvfl.errors import DataError

_MANY = 100
"""Columns, of all parties, from which on most are expected to help little."""
_FINE = (20_000, 40_000)
"""Rows from which on the scale of a number is cut into more pieces."""
_PLENTY = 8_000
"""Rows from which on columns need to prove their worth less: noise falls with the square root of the rows."""


def configuration(drafts: Sequence[Draft], choices: Choices, label: Label, folder: Path) -> str:
    """The TOML text; files are named as seen from `folder`."""
    rows = min(draft.table.rows for draft in drafts)
    lines = [
        f"# One model across {', '.join(draft.name for draft in drafts)}. Train it with: cvfl train THIS-FILE",
        "",
        *_length(rows),
        "",
        "[data]",
        *_shared_id(choices),
        *_split(bool(label.classes)),
        "",
        "[data.prepare]",
        *_PREPARE,
        "",
        *_training(rows, sum(len(_features(draft, choices)) for draft in drafts)),
        "",
        "[party_model]",
        _line('name = "tabular"', "of every party; [party.NAME.model] gives one its own"),
        *_model(rows),
        "",
        *_SERVER_MODEL,
        "",
        "[analysis]",
        _line("columns = true", "say what each column brings, when the run is over"),
    ]
    for draft in drafts:
        lines += ["", *_party(draft, choices, label, folder)]
    return "\n".join(lines) + "\n"


def terms_text(parties: Sequence[str], holder: str, rows: int) -> str:
    """Terms for these parties, of which `holder` has the label, and for about so many shared rows."""
    lines = [
        f"# What {', '.join(parties)} and the server agree on. Every role reads this file; its own file names it.",
        "# After a change it is to be signed again: cvfl terms THIS-FILE --as ROLE",
        "",
        *_length(rows),
        "",
        "[data]",
        _line(f"label_holder = {_text(holder)}", "the party whose table has the label"),
        *_split(classes=True),
        "",
        *_training(rows),
        "",
        *_SERVER_MODEL,
        "",
        "# The parties in their order; `fingerprint` of its certificate is all that may be said of one here",
        *(f"[party.{name}]" for name in parties),
    ]
    return "\n".join(lines) + "\n"


def party_text(draft: Draft, choices: Choices, label: Label | None, folder: Path, terms: Path) -> str:
    """One party's own file: what it alone decides. It names the file of terms."""
    name = draft.name
    lines = [
        f"# What {name} decides for itself. Take part with: cvfl party THIS-FILE --name {name}",
        "",
        _line(f"terms = {_text(os.path.relpath(terms, folder))}", "what all roles have alike: cvfl terms makes it"),
        "",
        "[network]",
        _line('address = "127.0.0.1:8443"', "where the server is"),
        _line('certificates = "certs"', f"folder with ca.crt, {name}.crt and {name}.key: cvfl certs makes them"),
        "",
        *_party(draft, choices, label, folder, own_id=True),
        "",
        f"[party.{name}.prepare]",
        *_PREPARE,
        "",
        f"[party.{name}.model]",
        'name = "tabular"',
        *_model(draft.table.rows),
    ]
    return "\n".join(lines) + "\n"


def _line(setting: str, comment: str) -> str:
    return f"{setting:<36}# {comment}"


_PREPARE = (
    _line('categories = "one-hot"', 'or "embedding", for categories with many values'),
    _line("rare = 0.01", "values rarer than this share go into one bucket"),
    _line('impute = "median"', 'or "mean" or "zero"; a gap is also marked as one'),
    _line('scale = "quantile"', 'normal scores by rank; or "standard": mean 0, deviation 1'),
)


def _model(rows: int) -> list[str]:
    """The model of a party whose table has so many rows."""
    pieces = 8 if rows < _FINE[0] else 16 if rows < _FINE[1] else 32
    return [
        _line("width = 64", "numbers a row, of which `auto` sends what matters"),
        "hidden = [64]",
        _line("dropout = 0.4", "share of hidden units left out at a step"),
        _line(f"pieces = {pieces}", "of the scale of a number, in each of which it may count otherwise"),
    ]


_SERVER_MODEL = (
    "[server_model]",
    _line('name = "wide_deep"', 'sees parties together; "linear" adds them up, and needs fewer bytes'),
    "hidden = [64]",
)


def _length(rows: int) -> list[str]:
    """How long a run with so many rows is, and how it sends."""
    return [
        _line("epochs = 30", "passes over the training rows, at most: see [stopping]"),
        f"batch_size = {_batch(rows)}",
        _line("local_iterations = 5", "steps that everyone takes between two messages"),
        _line('compressor = "auto"', 'of the embeddings; "identity" sends them as they are'),
        _line('server_compressor = "auto"', "of what the server sends"),
        _line("quiet_messages = true", "send no dropout: the server draws noise like it"),
        _line("seed = 0", "of all randomness: the same seed gives the same result"),
    ]


def _training(rows: int, columns: int = 0) -> list[str]:
    """How models of so many rows and columns learn, and when that ends."""
    sparsity = (0.4 if columns > _MANY else 0.25) * min(1.0, (_PLENTY / rows) ** 0.5)
    return [
        "[stopping]",
        _line("patience = 5", "evaluations without improvement; then the best round is kept"),
        _line('metric = "loss"', "of validation rows; steadier than a metric of few rows"),
        "",
        "[step_size]",
        "eta = 0.001",
        "",
        "[optimizer]",
        _line('name = "adamw"', 'or "sgd", as in the paper'),
        _line("weight_decay = 0.3", "how strongly weights are pulled towards zero"),
        _line(f"sparsity = {sparsity:.2f}", "columns that do not help fade out; 0: never"),
        _line("average = 0.95", "evaluate and keep a mean of the weights over rounds"),
    ]


def _split(classes: bool) -> list[str]:
    """How the shared rows are found and held out."""
    return [
        _line('alignment = "private"', '"outer": all rows of the label holder; "aligned": row i is one person'),
        "test_share = 0.2",
        _line("validation_share = 0.15", "rows that choose the best round and the threshold, apart from the test rows"),
        *([_line("stratify = true", "every class has the same share of test rows")] if classes else []),
    ]


def _features(draft: Draft, choices: Choices) -> list[Column]:
    """The columns to learn from."""
    aside = choices.aside(draft.name)
    return [column for column in draft.features if column.name not in aside]


def _shared_id(choices: Choices) -> list[str]:
    """The id in all tables, if it has the same name there."""
    ids = set(choices.ids.values())
    return [_line(f"id = {_columns(ids.pop())}", "what names a person, in every table")] if len(ids) == 1 else []


def _party(draft: Draft, choices: Choices, label: Label | None, folder: Path, own_id: bool = False) -> list[str]:
    aside, features = choices.aside(draft.name), _features(draft, choices)
    unusable = {name: why for name, why in draft.unusable.items() if name not in aside}
    if not features:
        reasons = "; ".join(f"{name} {why}" for name, why in list(unusable.items())[:3]) or "there are no others"
        raise DataError(f"{draft.table.name}: no column is left to learn from beside id and label: {reasons}")
    lines = [f"[party.{draft.name}]", f"# {draft.table.rows:,} rows; to learn from: {_counted(features)}"]
    lines += _source(draft.source, folder)
    if own_id or len(set(choices.ids.values())) > 1:
        lines.append(_line(f"id = {_columns(choices.ids[draft.name])}", "what names a person"))
    if label is not None and draft.name == choices.holder:
        lines.append(_line(f"label = {_text(choices.label)}", told(label)))
    if draft.duplicates != "error":
        lines.append(_line(f"duplicates = {_text(draft.duplicates)}", "of rows with the same id, the one that counts"))
    lines += [f"# {word} seems to mean missing: {listed(names)}" for word, names in draft.missing.items()]
    if missing := [*draft.words, *draft.missing]:
        lines.append(_line(f"missing = {_list(missing)}", "in every column of this table"))
    lines += [f"# {line}" for line in draft.mostly_rare(aside)]
    if unusable:
        lines += [f"# {name}: {why}" for name, why in unusable.items()]
        lines.append(f"exclude = {_list(unusable)}")
    return lines


def told(label: Label) -> str:
    """What the label was taken for, and how to say otherwise."""
    key = f"types = {{ {tomlkit.key(label.column).as_string()} = "
    if not label.classes:
        return f'a quantity; for classes add {key}"category" }}'
    classes = f"{len(label.classes)} classes: {_shortened(label.classes)}"
    if label.positive is not None:
        return f"{classes}; {label.positive} is positive, unless you add positive = {_text(label.classes[0])}"
    numbered = all(name.lstrip("-").isdigit() for name in label.classes)
    return classes + (f'; for a quantity add {key}"number" }}' if numbered else "")


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


def _columns(names: Sequence[str]) -> str:
    return _text(names[0]) if len(names) == 1 else _list(names)


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, names))}]"


def _text(value: str) -> str:
    return tomlkit.string(value).as_string()
