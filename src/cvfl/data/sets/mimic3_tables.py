"""The tables of MIMIC-III as published: which stays belong to the task, and what was measured in their first 48 hours.

    ICUSTAYS, ADMISSIONS, PATIENTS  -->  stays
    D_ITEMS, D_LABITEMS             -->  items, found by label
    CHARTEVENTS, LABEVENTS          -->  measurements; read as streams, for the full CHARTEVENTS has 330 million rows

A table is NAME.csv or NAME.csv.gz; its columns may be in upper case, as in the release, or lower, as in the demo.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cvfl.data.sets import Progress
from cvfl.data.sets.mimic3_variables import CHANNELS, HIGH, LOW, Channel, Source
from cvfl.data.sets.timeseries import HOURS, Floats, Integers, Measurements, joined
from cvfl.data.tables.spill import one_line
from cvfl.errors import DataError

TABLES = ("PATIENTS", "ADMISSIONS", "ICUSTAYS", "D_ITEMS", "D_LABITEMS", "CHARTEVENTS", "LABEVENTS")
FILES = "https://physionet.org/files/mimiciii/1.4/"
HOME = "https://physionet.org/content/mimiciii/1.4/"
_NUMBER, _WORD, _TIME = pa.float64(), pa.string(), pa.timestamp("s")
_EVENT = {"HADM_ID": _NUMBER, "ITEMID": _NUMBER, "CHARTTIME": _TIME, "VALUENUM": _NUMBER}
_EVENTS = {"CHARTEVENTS": ("D_ITEMS", _EVENT | {"VALUE": _WORD, "ERROR": _NUMBER}), "LABEVENTS": ("D_LABITEMS", _EVENT)}
_SAME = (("FIRST_WARDID", "LAST_WARDID"), ("FIRST_CAREUNIT", "LAST_CAREUNIT"))
_YEAR = 365.25 * 24 * 3600
_BLOCK = 4 << 20  # bytes read at a time; pyarrow holds some dozens of blocks

Row = dict[str, Any]
Types = dict[str, pa.DataType]


@dataclass(frozen=True)
class Stay:
    """A stay in intensive care that belongs to the task; `start` is in seconds."""

    id: int
    subject: int
    admission: int
    start: int
    died: int


def read_stays(path: Path) -> list[Stay]:
    """Adults' stays of 48 hours or more without a transfer, in an admission with no other stay; in order of id.

    The public benchmark counts an admission's stays without those that had a transfer; here all of them count.
    """
    patients = _by_key(path, "PATIENTS", "SUBJECT_ID", {"DOB": _TIME})
    admissions = _by_key(path, "ADMISSIONS", "HADM_ID", {"HOSPITAL_EXPIRE_FLAG": _NUMBER})
    types = {"HADM_ID": _NUMBER, "SUBJECT_ID": _NUMBER, "INTIME": _TIME, "LOS": _NUMBER}
    types |= {column: _WORD for pair in _SAME for column in pair}
    rows = _by_key(path, "ICUSTAYS", "ICUSTAY_ID", types)
    in_admission = Counter(row["HADM_ID"] for row in rows.values())
    stays = []
    for number, row in sorted(rows.items()):
        patient = _owner(path, "PATIENTS", patients, "SUBJECT_ID", row)
        admission = _owner(path, "ADMISSIONS", admissions, "HADM_ID", row)
        alone = in_admission[row["HADM_ID"]] == 1 and all(row[first] == row[last] for first, last in _SAME)
        # An unknown length of stay, or age, is no reason to believe that it is long enough.
        long = row["LOS"] is not None and row["LOS"] * 24 >= HOURS
        times = (patient["DOB"], row["INTIME"])
        if alone and long and None not in times and times[1] - times[0] >= 18 * _YEAR:
            died = admission["HOSPITAL_EXPIRE_FLAG"]
            if died not in (0, 1):
                raise DataError(f"{_file(path, 'ADMISSIONS')}: HOSPITAL_EXPIRE_FLAG is {died}, not 0 or 1")
            stays.append(Stay(number, int(row["SUBJECT_ID"]), int(row["HADM_ID"]), row["INTIME"], int(died)))
    if not stays:
        raise DataError(f"{_file(path, 'ICUSTAYS')}: no adult's only stay of 48 hours or more among {len(rows)} stays")
    return stays


def read_measurements(path: Path, stays: Sequence[Stay], on_progress: Progress) -> Measurements:
    """All plausible values of the 17 channels in the first 48 hours; `row` is the place of the stay."""
    sizes = {table: _file(path, table).stat().st_size for table in _EVENTS}
    admissions, starts = pa.array([float(stay.admission) for stay in stays]), np.array([stay.start for stay in stays])
    parts, before = [], 0
    for table, (dictionary, types) in _EVENTS.items():
        items, file = _items(path, dictionary), _file(path, table)
        with _faults(file):
            for batch, position in _batches(file, types):
                parts.append(_measured(batch, items, admissions, starts))
                on_progress(before + position, sum(sizes.values()))
        before += sizes[table]
    return joined(parts)


Items = Mapping[float, tuple[int, Source]]


def _items(path: Path, table: str) -> Items:
    """Channel and source by item, found by their labels."""
    wanted = {
        _plain(label): (place, source)
        for place, channel in enumerate(CHANNELS)
        for source in channel.sources
        if source.table == table
        for label in source.labels
    }
    column, value = {"D_ITEMS": ("LINKSTO", "chartevents"), "D_LABITEMS": ("FLUID", "blood")}[table]
    rows = _by_key(path, table, "ITEMID", {"LABEL": _WORD, column: _WORD})
    items = {
        float(number): wanted[_plain(row["LABEL"])]
        for number, row in rows.items()
        if _plain(row["LABEL"]) in wanted and _plain(row[column]) == value
    }
    if not items:
        file = _file(path, table)
        raise DataError(f"{file}: no item has a label such as {next(iter(wanted))!r}; {_get(file)}")
    return items


def _plain(label: str | None) -> str:
    return " ".join((label or "").lower().split())


def _measured(batch: pa.RecordBatch, items: Items, admissions: pa.Array, starts: Integers) -> Measurements:
    """The plausible measurements among a batch of events."""
    wanted = pc.is_in(batch["ITEMID"], pa.array(list(items)))
    # An item is rarer than an admission, so it goes first; ERROR is set on values that were taken back.
    batch = batch.filter(wanted)
    wanted = pc.and_(pc.is_in(batch["HADM_ID"], admissions), pc.is_valid(batch["CHARTTIME"]))
    if "ERROR" in batch.schema.names:
        wanted = pc.and_(wanted, pc.not_equal(pc.fill_null(batch["ERROR"], 0), 1))
    batch = batch.filter(wanted)
    row = pc.index_in(batch["HADM_ID"], admissions).to_numpy().astype(np.int64)
    item = batch["ITEMID"].to_numpy()
    channel, value = np.zeros(len(row), dtype=np.int64), np.full(len(row), np.nan)
    for number in np.unique(item):
        chosen = item == number
        channel[chosen], source = items[number]
        value[chosen] = _values(CHANNELS[items[number][0]], source, batch.filter(pa.array(chosen)))
    hours = (_seconds(batch["CHARTTIME"]).to_numpy() - starts[row]) / 3600
    return Measurements(row, channel, hours, value).plausible(LOW, HIGH)


def _values(channel: Channel, source: Source, events: pa.RecordBatch) -> Floats:
    """Events of one item in the channel's unit, or as codes of its categories; NaN where it is neither."""
    numbers = events["VALUENUM"].to_numpy(zero_copy_only=False)
    if not channel.categories:
        return source.converted(numbers)
    # Some copies of the tables lost the word that looks like a gap, but not its score of 1.
    said = [
        channel.unsaid if word is None and number == 1 else (word or "").strip()
        for word, number in zip(events["VALUE"].to_pylist(), numbers, strict=True)
    ]
    return np.array([channel.codes.get(word, np.nan) for word in said])


def _seconds(times: pa.Array) -> pa.Array:
    """Times such as 2164-10-23 21:09:00 or 2164-10-23T21:09:00Z as seconds."""
    return pc.utf8_slice_codeunits(times, 0, 19).cast(_TIME).cast(pa.int64())


def _owner(path: Path, table: str, rows: Mapping[int, Row], column: str, stay: Row) -> Row:
    """The patient or admission of a stay."""
    key = stay[column]
    if key is None or key not in rows:
        file = _file(path, table)
        raise DataError(f"{file}: no {column} {key or 0:.0f}, of which ICUSTAYS has a stay; {_get(file)}")
    return rows[int(key)]


def _by_key(path: Path, table: str, key: str, types: Types) -> dict[int, Row]:
    """A small table, row by row; times in seconds."""
    file, rows = _file(path, table), {}
    with _faults(file):
        for batch, _ in _batches(file, {key: _NUMBER} | types):
            columns = {
                name: (_seconds(batch[name]) if types.get(name) == _TIME else batch[name]).to_pylist()
                for name in batch.schema.names
            }
            for place, number in enumerate(columns[key]):
                if number is None:
                    raise DataError(f"{file}: a row has no {key}; {_get(file)}")
                rows[int(number)] = {name: column[place] for name, column in columns.items()}
    return rows


def _file(path: Path, table: str) -> Path:
    for file in (path / f"{table}.csv", path / f"{table}.csv.gz"):
        if file.is_file():
            return file
    raise DataError(f"{file}: no such file; {_get(file)}")


def _get(file: Path) -> str:
    """Where to get a table."""
    return f"get it from {FILES}{file.name.partition('.')[0]}.csv.gz, for which {HOME} asks a credentialed login"


@contextmanager
def _faults(file: Path) -> Iterator[None]:
    """What a library finds wrong with a table, as an error that names it."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file}: {one_line(error)}; {_get(file)}") from None


def _batches(file: Path, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Columns of a table, a batch of rows at a time, and how many bytes of the file are read by then."""
    names = _columns(file, types)
    options = pyarrow.csv.ConvertOptions(
        include_columns=list(names.values()),
        column_types={names[column]: _WORD if kind == _TIME else kind for column, kind in types.items()},
        null_values=[""],
        strings_can_be_null=True,
    )
    with file.open("rb") as raw:
        stream = pa.PythonFile(raw, mode="r")
        if file.suffix == ".gz":
            stream = pa.CompressedInputStream(stream, "gzip")
        for batch in pyarrow.csv.open_csv(stream, pyarrow.csv.ReadOptions(block_size=_BLOCK), convert_options=options):
            yield batch.rename_columns(list(names)), raw.tell()


def _columns(file: Path, types: Types) -> dict[str, str]:
    """How the file spells the columns."""
    with pa.input_stream(str(file)) as stream:
        header = stream.read(1 << 16).decode("utf-8-sig", errors="replace").partition("\n")[0]
    spelt = {name.strip().upper(): name for name in next(csv.reader([header.strip()]), [])}
    if missing := [column for column in types if column not in spelt]:
        raise DataError(f"{file}: column {missing[0]} is missing; {_get(file)}")
    return {column: spelt[column] for column in types}
