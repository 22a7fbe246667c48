"""From a configuration to the rows of a federation: a named data set, or the parties' own tables, aligned.

    open tables ──▶ ids ──private alignment──▶ common ids ──keyed hash──▶ order and split ──▶ columns prepared

What happens here for all parties in one process, each party does alone on its own machine; only ids travel, blinded.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex

import numpy as np
import torch
from numpy.typing import NDArray

from cvfl.config.schema import RunConfig, check_tables
from cvfl.config.sections import DataConfig, id_columns
from cvfl.data import VerticalData
from cvfl.data.sets.catalogue import load_named
from cvfl.data.tables.ids import check_case
from cvfl.data.tables.kinds import DEFAULT_MISSING
from cvfl.data.tables.organisation import NOT_HELD, Assembled, Organisation, PartyTable, assemble
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.split import LEFT_OUT, Shares, hashed, hashed_rows, latest_first, seed_key, stratified, together
from cvfl.errors import DataError, LocalProtocolError
from cvfl.federation.rows.keeping import PartyKeeper, ServerKeeper
from cvfl.federation.start import Start
from cvfl.federation.told_labels.randomise import Held, held_of, randomise_data, randomise_table
from cvfl.privacy import Aligned
from cvfl.privacy.blinding import OPEN
from cvfl.privacy.keys import session_secrets
from cvfl.privacy.sealing import Sealing
from cvfl.privacy.wanted import Wanted
from cvfl.protocol import Loss
from cvfl.runtime import Meter
from cvfl.runtime.align import align
from cvfl.types import SERVER, OnStep
from cvfl.wire.control import How

LONGEST_KEY = 64
"""Bytes of a key of the hash that orders rows."""


@dataclass(frozen=True)
class Found:
    """How the shared rows were found: with which earlier alignment, since which so many ids came, and what was sent."""

    how: How = "as-is"
    earlier: str = ""
    kept: tuple[str, ...] = ()
    """The alignment that each party had kept."""
    came: tuple[int, ...] = ()
    traffic: Meter = field(default_factory=Meter)


@dataclass(frozen=True)
class Loaded:
    """Rows ready for training, and how they came about."""

    assembled: Assembled
    aligned: Aligned | None = None
    found: Found = field(default_factory=Found)
    notes: tuple[str, ...] = ()
    """What was done to ids and other columns of the tables."""
    told: bytes = b""
    """What each shared row is for, as the party with the label tells it; nothing if there are no tables."""
    label: str = ""
    """Which class of the parties' own label is the positive one, in a line."""
    held: Held | None = None
    """The true labels, where those of the rows are randomised ones: their holder's alone."""

    @property
    def data(self) -> VerticalData:
        """The rows, with the labels that are told."""
        return self.assembled.data

    @property
    def truth(self) -> VerticalData:
        """The same with the labels as their holder has them."""
        if self.held is None:
            return self.data
        own = self.held.labels
        labels = {"train_labels": own.train, "validation_labels": own.validation, "test_labels": own.test}
        return replace(self.data, **labels)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Rows:
    """The shared rows in their common order: for each party their places in its table, or NOT_HELD."""

    places: tuple[NDArray[np.int64], ...]
    fractions: NDArray[np.float64]
    used: NDArray[np.bool_]
    """Which there were before those without a label were left out, in the same order."""
    aligned: Aligned | None = None
    found: Found = field(default_factory=Found)


def load_data(
    config: RunConfig, on_step: OnStep = lambda *_: None, kept: Path | None = None, start: Start | None = None
) -> Loaded:
    """The data that a configuration names; `kept` is a folder for alignments, which the next call goes on with.

    With `start` columns become numbers as they did in that run.
    """
    dtype = getattr(torch, config.precision)
    if config.data.name is None:
        with ExitStack() as stack:
            tables = open_tables(config, stack, on_step)
            for table in tables:
                randomise_table(config, table)
            if start:
                start.take(tables)
            unseen = tuple(line for table in tables for line in start.unseen(table)) if start else ()
            loaded = _load_tables(config, tables, shared_rows(tables, config, on_step, kept), dtype, on_step)
            return replace(loaded, notes=loaded.notes + unseen)
    section = config.data
    on_progress = lambda done, total: on_step(f"reading {section.name}", done, total)  # noqa: E731
    return with_told_labels(config, Loaded(load_named(section, dtype, on_progress)))


def federation_names(config: RunConfig) -> tuple[str, ...]:
    """The parties of a federation in their order."""
    return tuple(config.party) if config.data.name is None else load_data(config).data.names


def with_told_labels(config: RunConfig, loaded: Loaded) -> Loaded:
    """Rows that are not of tables with the labels that are told in this run, unless they have them already."""
    if loaded.held is not None or config.privacy.randomised is None:
        return loaded
    if loaded.told:
        raise LocalProtocolError("tables that were loaded without privacy.label_epsilon have their true labels")
    data, held = randomise_data(config, loaded.data)
    return replace(loaded, assembled=replace(loaded.assembled, data=data), held=held)


def open_tables(config: RunConfig, stack: ExitStack, on_step: OnStep = lambda *_: None) -> list[PartyTable]:
    """Every party's table, open until the stack is closed."""
    check_tables(config)
    return [open_party(config, name, stack, on_step) for name in config.party]


def open_party(config: RunConfig, name: str, stack: ExitStack, on_step: OnStep = lambda *_: None) -> PartyTable:
    """One party's table, as its section says."""
    section = config.party[name]
    source = Source(
        name,
        path=section.table,
        url=section.url,
        query=section.query,
        delimiter=section.delimiter,
        encoding=section.encoding,
        missing=DEFAULT_MISSING + section.missing,
        types=section.types,
    )
    party = Organisation(
        name=name,
        id=id_columns(section.id or config.data.id),
        duplicates=section.duplicates,
        id_type=section.id_type,
        features=section.features,
        exclude=section.exclude,
        label=section.label,
        labels_elsewhere=tuple(other.label for at, other in config.party.items() if at != name and other.label),
        positive=section.positive,
        split_by=config.data.split_by if section.label else None,
        split_groups=config.data.split_groups if section.label else None,
        settings=section.prepare or config.data.prepare,
    )
    table = stack.enter_context(open_table(source, lambda what, rows: on_step(f"{what}: reading", rows, 0)))
    return PartyTable(party, table, config.loss)


def shared_rows(
    tables: list[PartyTable],
    config: RunConfig,
    on_step: OnStep = lambda *_: None,
    kept: Path | None = None,
    blinding: bytes | None = OPEN,
) -> Rows:
    """The rows of the people whom all parties hold, in an order that belongs to the key of the rows.

    In an outer alignment they are those of the label holder, some of which others may not hold. All parties are here,
    so ids are not blinded; what is sent has the same size. With `blinding` None they are.
    """
    key = row_key(config)
    if config.data.alignment == "aligned":
        return _rows_as_they_are(tables, key)
    places = {table.party.name: table.ids() for table in tables}
    outer = _row_holder(tables) if config.data.alignment == "outer" else SERVER
    for compared in _compared(places, outer):
        check_case(compared)
    own = {name: list(ids) for name, ids in places.items()}
    common, aligned, found = _aligned(own, on_step, kept, blinding, outer)
    ids, fractions = in_order(common, key)
    rows = tuple(np.array([party.get(text, NOT_HELD) for text in ids], dtype=np.int64) for party in places.values())
    return Rows(rows, fractions, np.ones(len(ids), dtype=np.bool_), aligned, found)


def _row_holder(tables: list[PartyTable]) -> int:
    """The party with the label."""
    return [table.label is not None for table in tables].index(True) + 1


def _compared(ids: dict[str, dict[str, int]], outer: int) -> list[dict[str, dict[str, int]]]:
    """Ids that should have some in common: those of all parties, or those of each and of the label holder."""
    if not outer:
        return [ids]
    holder = list(ids)[outer - 1]
    return [{holder: ids[holder], name: own} for name, own in ids.items()]


def _aligned(
    ids: dict[str, list[str]], on_step: OnStep, kept: Path | None, blinding: bytes | None, outer: int
) -> tuple[frozenset[str], Aligned, Found]:
    """Align as the roles of a federation do, each with what it kept in a folder of its own.

    With `outer` the ids that are found are those of this party, the label holder.
    """
    names, sizes, traffic = list(ids), [len(own) for own in ids.values()], Meter()
    others, who = Wanted.LABELLED if outer else Wanted.ALL, max(outer - 1, 0)
    wanted = [Wanted.EACH if m == outer else others for m in range(1, len(names) + 1)]
    server = ServerKeeper(kept and kept / "server", names)
    keepers = [PartyKeeper(kept and kept / name, names, blinding, w) for name, w in zip(names, wanted, strict=True)]
    numbers, came = zip(*(keeper.has(own) for keeper, own in zip(keepers, ids.values(), strict=True)), strict=True)
    how, number = server.agree(numbers, sizes, came, outer)
    found = Found(how, number, numbers, came, traffic)
    if how == "kept":
        return keepers[who].found(who + 1).common, server.aligned(), found
    secrets, matching = session_secrets(len(names)), server.begin(sizes, number, came, outer)
    parties = [
        keeper.begin(m, own, sizes, Sealing(secrets[m], names, "rows"), number, came)
        for m, (keeper, own) in enumerate(zip(keepers, ids.values(), strict=True), start=1)
    ]
    aligned = align(matching, parties, traffic, lambda done, total: on_step("aligning", done, total))
    name = token_hex(8)
    server.keep(matching, name)
    for keeper, party in zip(keepers, parties, strict=True):
        keeper.keep(party, name)
    common = parties[who].common
    assert common is not None
    return common, aligned, found


def row_key(config: RunConfig) -> bytes:
    """By what rows are ordered and split when all are here: the secret in a file of the first party, or the split seed.

    Parties that are apart agree on a secret instead, which the server does not have.
    """
    return row_secret(config, next(iter(config.party))) or seed_key(config.data.split_seed)


def row_secret(config: RunConfig, name: str) -> bytes | None:
    """The secret that a party's file has, if it names one: that of an earlier run, to repeat it."""
    path = config.party[name].row_secret
    if path is None:
        return None
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise DataError(f"party.{name}.row_secret: {path}: {error.strerror}") from None
    if not 1 <= len(secret) <= LONGEST_KEY:
        raise DataError(f"party.{name}.row_secret: {path} has {len(secret)} bytes; a secret has 1 to {LONGEST_KEY}")
    return secret


def in_order(common: Collection[str], key: bytes) -> tuple[list[str], NDArray[np.float64]]:
    """The shared ids in the order that belongs to the key, and the number by which each is split."""
    ids = sorted(common)
    keys, fractions = hashed(ids, key)
    order = np.argsort(keys, kind="stable")
    return [ids[i] for i in order], fractions[order]


def _rows_as_they_are(tables: list[PartyTable], key: bytes) -> Rows:
    """Row i is the same person in every table; rows without a label are left out."""
    sizes = {table.party.name: table.table.rows for table in tables}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {rows:,}" for name, rows in sizes.items())
        raise DataError(f'data.alignment = "aligned" needs tables of the same length ({counts} rows)')
    (label,) = (table.label for table in tables if table.label)
    places, fractions = numbered_in_order(len(label.known), key)
    used = label.known[places]
    return Rows((places[used],) * len(tables), fractions[used], used)


def numbered_in_order(rows: int, key: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The same for rows without ids: their places."""
    keys, fractions = hashed_rows(rows, key)
    order = np.argsort(keys, kind="stable")
    return order, fractions[order]


def parts_of(
    table: PartyTable, places: NDArray[np.int64], fractions: NDArray[np.float64], data: DataConfig
) -> NDArray[np.int8]:
    """What each shared row is for, as the label holder decides."""
    shares, label = Shares(data.test_share, data.validation_share), table.label
    assert label is not None  # since it holds the labels
    if table.moments is not None:
        return shares.of(latest_first(table.moments[places], fractions))
    if table.groups is not None:
        return shares.of(together(table.groups[places], fractions))
    if data.stratify and label.loss is not Loss.SQUARED:
        return stratified(shares, fractions, label.values[places].astype(np.int64))
    return shares.of(fractions)


def _load_tables(
    config: RunConfig, tables: list[PartyTable], rows: Rows, dtype: torch.dtype, on_step: OnStep
) -> Loaded:
    at, holder = next((places, table) for places, table in zip(rows.places, tables, strict=True) if table.label)
    parts = parts_of(holder, at, rows.fractions, config.data)
    on_party = lambda table: on_step(f"{table.party.name}: preparing", 0, 0)  # noqa: E731
    prepared = assemble(tables, rows.places, parts, dtype, on_party, config.data.alignment == "outer")
    data, notes = prepared.data, tuple(note for table in tables for note in table.notes)
    told = np.full(len(rows.used), LEFT_OUT, dtype=np.int8)
    told[rows.used] = parts
    sizes = [len(data.train_labels), len(data.validation_labels), len(data.test_labels)]
    held = held_of(holder, at[np.argsort(parts, kind="stable")], sizes, data.units, dtype)
    return Loaded(
        prepared, rows.aligned, rows.found, notes, told.tobytes(), holder.label.said if holder.label else "", held
    )
