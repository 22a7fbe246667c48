"""Where the time of a run's rounds went, as a report shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cvfl.report.colours import colour
from cvfl.report.format import NOTHING, amount, share
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.runs.record import Run

_ABOUT = (
    "Seconds of all rounds, of the roles whose clock is in the record. A role waits while others compute and while "
    "messages travel; a moment in which several are awaited is shared among them. In one process roles take turns or "
    "run side by side, and none waits."
)


def is_timed(series: Sequence[Series]) -> bool:
    """Whether any run says where its time went."""
    return any(line.time for one in series for line in one.first.history)


def times_section(series: Sequence[Series]) -> Section:
    """Own work, coding and waiting of each role, in all rounds of a run."""
    groups = [(Text(one.label, colour=colour(n)), [*_rows(one.first)]) for n, one in enumerate(series)]
    head = ("Role", "Own work, s", "Coding, s", "Waiting, s", "Most for")
    return Section("Time", [_ABOUT, Table("Time by role", head, groups=[group for group in groups if group[1]])])


def _rows(run: Run) -> Iterator[Row]:
    for role in dict.fromkeys(role for line in run.history for role in line.time):
        lines = [line.time[role] for line in run.history if role in line.time]
        waits: dict[str, float] = {}
        for line in lines:
            for name, seconds in line.wait.items():
                waits[name] = waits.get(name, 0.0) + seconds
        waited, most = sum(waits.values()), max(waits, key=lambda name: waits[name], default="")
        longest = f"{most}, {share(waits[most] / waited)}" if waited else NOTHING
        compute, codec = sum(line.compute for line in lines), sum(line.codec for line in lines)
        yield role, amount(compute), amount(codec), amount(waited) if waited else NOTHING, longest
