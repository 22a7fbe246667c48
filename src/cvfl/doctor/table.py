"""A party's table: whether it can be read, with its ids and its label, and how much room its rows take."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch

from cvfl.config.schema import RunConfig
from cvfl.config.sections import PartyConfig
from cvfl.doctor.finding import Finding, caught, fine, look, wrong
from cvfl.errors import suggest
from cvfl.federation.rows.load import load_data, open_party

FLOAT = 4
_BESIDE = 8


def table(config: RunConfig, name: str) -> tuple[list[Finding], float, float]:
    """What there is to say of a party's rows, the bytes of memory for them, and of disk for what is known of them."""
    findings: list[Finding] = []
    with caught("table", findings):
        if config.data.name is not None:
            data = load_data(config).data
            if name not in data.names:
                remedy = f"its parties are {', '.join(data.names)}"
                return [wrong("table", f"{name!r} is no party of {config.data.name}", remedy)], 0.0, 0.0
            rows, columns = len(data.train_labels), data.train[data.names.index(name)][torch.arange(1)].numel()
            return [fine("table", f"{config.data.name}: {rows:,} rows")], *_bytes(config, rows, columns)
        section = config.party.get(name)
        if section is None or not section.has_table:
            return [_missing(config.party, name)], 0.0, 0.0
        return _own(config, name, section)
    return findings, 0.0, 0.0


def _missing(parties: Mapping[str, PartyConfig], name: str) -> Finding:
    if name not in parties:
        return wrong("table", f"there is no section party.{name}", f"add it{suggest(name, parties)}")
    return wrong("table", f"party.{name} has no table", "give table, or url and query")


def _own(config: RunConfig, name: str, section: PartyConfig) -> tuple[list[Finding], float, float]:
    findings: list[Finding] = []
    with ExitStack() as stack:
        opened = open_party(config, name, stack)
        rows, columns = opened.table.rows, len(opened.features)
        findings.append(fine("table", f"{opened.table.name}: {rows:,} rows, {columns} columns are used"))
        if config.data.alignment != "aligned":
            with caught("ids", findings):
                findings.append(fine("ids", f"{', '.join(opened.party.id)}: {len(opened.ids()):,} different ones"))
        if opened.label is not None:
            classes = opened.label.classes
            findings.append(fine("label", f"{section.label}: {', '.join(classes[:5]) or 'a quantity'}"))
        findings += [look("table", note, "no run fails by it") for note in opened.notes]
    return findings, *_bytes(config, rows, columns)


def _bytes(config: RunConfig, rows: int, columns: int) -> tuple[float, float]:
    """Prepared columns in memory, and two epochs of embeddings of all parties on disk if memory_mb is too little."""
    widths = [config.model_of(party).width for party in config.party] or [config.party_model.width]
    return float(rows * columns * FLOAT), float(2 * rows * sum(FLOAT * width + _BESIDE for width in widths))
