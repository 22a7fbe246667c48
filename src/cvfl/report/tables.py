"""Tables that a report and the board have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cvfl.report.colours import colour
from cvfl.report.format import NOT_RECORDED, NOTHING, Form, megabytes
from cvfl.report.results import BYTES
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.runs.record import Sent

ALL = "all parties"


def bytes_table(series: Sequence[Series]) -> Table:
    """MB of every party of every series by what they were for, and of all parties."""
    parties = [sent for one in series for sent in one.by_party().values()]
    mb = megabytes([value for sent in parties for value in (sent.up, sent.down, sent.evaluation)])
    groups = [
        (named(one, n), [_bytes_row(name, sent, mb) for name, sent in [*one.by_party().items(), (ALL, one.sent())]])
        for n, one in enumerate(series)
    ]
    return Table("Bytes by party", ("Party", *BYTES.values()), groups=groups)


def _bytes_row(name: str, sent: Sent, mb: Form) -> Row:
    values = [getattr(sent, part) for part in BYTES]
    return name, *(NOT_RECORDED if value is None else mb(value) for value in values)


def matrix(columns: Sequence[Mapping[str, str]]) -> list[Row]:
    """A row a key, a column a run; where the runs differ the values are bold."""
    rows: list[Row] = []
    for key in dict.fromkeys(key for found in columns for key in found):
        values = [found.get(key, NOTHING) for found in columns]
        rows.append((key, *(Text(value, bold=len(set(values)) > 1) for value in values)))
    return rows


def named(one: Series, n: int, about: str = "") -> Text:
    """The name of a series in the colour that it has in figures."""
    return Text(one.label, colour=colour(n), about=about)
