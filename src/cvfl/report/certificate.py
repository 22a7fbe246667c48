"""The certificate of `auto` as a report shows it: how far messages let gradients stray, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cvfl.report.colours import colour
from cvfl.report.format import amount, digits
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.runs.record import Certified

_ABOUT = (
    "With auto, every sender compares two gradients: the one that its message causes after decompression, and the one "
    "that the exact values would cause. When they disagree over several rounds, by their cosine or their lengths, the "
    "sender halves the error that it allows itself; while they agree, it allows more again, up to the configured "
    "tolerance. Only evaluated rounds are shown, the round in brackets. For the server, which sends to every party, "
    "each figure is the worst of all parties."
)
_PLACES = digits(3)
_HEAD = (
    "Role",
    "Lowest cosine",
    "Length ratio furthest from 1",
    "Lowest share of the tolerance",
    "Rounds with less than all of it",
)
Seen = tuple[int, int, Certified]
"""A certificate after the seed and the round that it is of."""


def certificate_section(series: Sequence[Series]) -> Section:
    """For each role of the runs that have certificates, the worst of them, and where the tolerance was lowered."""
    groups = [
        (Text(one.label, colour=colour(n)), [_row(role, _seen(one, role), len(one.runs) > 1) for role in _roles(one)])
        for n, one in enumerate(series)
        if is_certified(one)
    ]
    return Section("Certificate", [_ABOUT, Table("Certificate", _HEAD, groups=groups)])


def is_certified(one: Series) -> bool:
    """Whether any round of the runs has a certificate."""
    return bool(_roles(one))


def _roles(one: Series) -> list[str]:
    return [*dict.fromkeys(role for run in one.runs for line in run.history for role in line.certificates)]


def _seen(one: Series, role: str) -> list[Seen]:
    found = [(run.seed, line.number, line.certificates.get(role)) for run in one.runs for line in run.history]
    return [(seed, t0, certificate) for seed, t0, certificate in found if certificate is not None]


def _row(role: str, seen: Sequence[Seen], seeds: bool) -> Row:
    def where(worst: Seen) -> str:
        return f"({f'seed {worst[0]}, ' * seeds}{worst[1]})"

    cosine = min(seen, key=lambda one: one[2].cosine)
    apart = max(seen, key=lambda one: _apart(one[2].ratio))
    least = min(seen, key=lambda one: one[2].ease)
    lowered = sum(certificate.ease < 1 for *_, certificate in seen)
    return (
        role,
        f"{_PLACES(cosine[2].cosine)} {where(cosine)}",
        f"{_PLACES(apart[2].ratio)} {where(apart)}",
        f"{amount(least[2].ease)} {where(least)}" if lowered else "1",
        f"{lowered} of {len(seen)}",
    )


def _apart(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio > 0 else math.inf
