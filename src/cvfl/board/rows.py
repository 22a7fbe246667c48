"""A run as a row of the list: texts to read, and numbers to sort by."""

from __future__ import annotations

import math
import time
from typing import TypedDict

from cvfl.board.known import Known, stamp
from cvfl.report.format import NOTHING, clock, megabytes, metric_label, score, share

_LONG = 10.0
"""Seconds that a party may take for a message before it is worth a word."""


class Row(TypedDict):
    """What the list shows of a run; `mark` is another one when its lines have changed."""

    name: str
    note: str
    state: str
    says: str
    share: float | None
    metric: str
    value: float | None
    score: str
    estimate: bool
    bytes: float | None
    mb: str
    rounds: int
    changed: float
    mark: str
    alarms: list[str]


def row(known: Known) -> Row:
    """The row of a run."""
    sent, value = known.sent, known.scores.get(known.metric or "")
    rounds = known.rounds
    return Row(
        name=known.name,
        note=_note(known),
        state=known.state,
        says=says(known),
        share=min(1.0, known.done / rounds) if rounds and known.under_way else None,
        metric=metric_label(known.metric) if known.metric else "",
        value=value if value is not None and math.isfinite(value) else None,
        score=score(value) if value is not None else NOTHING,
        estimate=value is not None and known.estimated,
        bytes=sent.total if sent else None,
        mb=megabytes([sent.total])(sent.total) if sent else NOTHING,
        rounds=known.done,
        changed=known.changed,
        mark=str(stamp(known.journal)),
        alarms=known.alarms,
    )


def _note(known: Known) -> str:
    config = known.config
    told = [str(config["compressor"])] if "compressor" in config else []
    return " · ".join([*told, *([f"seed {config['seed']}"] if "seed" in config else [])])


def says(known: Known) -> str:
    """What goes on, in a few words."""
    match known.state:
        case "damaged":
            return known.problem
        case "training" | "waiting" if known.rounds and known.done >= known.rounds:
            return "all rounds are over, writing what it leaves"
        case "waiting" | "training" if awaited := _awaited(known):
            return awaited
        case "preparing" if known.status is not None and known.status.step:
            return known.status.step
        case "training":
            part = share(known.done / known.rounds) if known.rounds else f"round {known.done:,}"
            return part if known.remaining is None else f"{part}, {clock(known.remaining)} left"
        case "stopped" | "failed" if known.rounds:
            return f"{known.state} after {known.done:,} of {known.rounds:,} rounds"
    return known.state


def _awaited(known: Known) -> str:
    """Who keeps a server waiting, if anybody does: who is away, or has owed a message for long."""
    now, parties = time.time(), known.status.parties if known.status else {}
    since = {name: one.since for name, one in parties.items() if not one.here}
    since |= {name: at for name, one in parties.items() if (at := one.owes_since) and now - at > _LONG}
    return f"waiting for {', '.join(since)}, {clock(now - min(since.values()))}" if since else ""
