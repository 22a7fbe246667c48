"""Where the time of a run's rounds went, as a report and the board show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cvfl.report.format import NOTHING, amount, share
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.report.tables import named
from cvfl.runs.tally import Tally

TIMES = (
    "Seconds of all rounds, of the roles whose clock is in the record. A role waits while others compute and while "
    "messages travel; a moment in which several are awaited is shared among them. In one process roles take turns or "
    "run side by side, and none waits."
)
_HEAD = ("Role", "Own work, s", "Coding, s", "Waiting, s", "Most for")


def is_timed(series: Sequence[Series]) -> bool:
    """Whether any run says where its time went."""
    return any(line.time for one in series for line in one.first.history)


def times_section(series: Sequence[Series]) -> Section:
    """Own work, coding and waiting of each role, in all rounds of a run."""
    return Section("Time", [TIMES, times_table([(named(one, n), one.tally) for n, one in enumerate(series)])])


def times_table(runs: Sequence[tuple[Text, Tally]]) -> Table:
    """The same as a table; a run that does not tell is left out."""
    groups = [(name, [*_rows(tally)]) for name, tally in runs if tally.clocks]
    return Table("Time by role", _HEAD, groups=groups)


def _rows(tally: Tally) -> Iterator[Row]:
    for role, clock in tally.clocks.items():
        waited, most = sum(clock.wait.values()), max(clock.wait, key=lambda name: clock.wait[name], default="")
        longest = f"{most}, {share(clock.wait[most] / waited)}" if waited else NOTHING
        yield role, amount(clock.compute), amount(clock.codec), amount(waited) if waited else NOTHING, longest
