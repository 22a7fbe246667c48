"""Tables of audits: all findings of one run, and a row a run of many, beside accuracy and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from cvfl.report.format import NOTHING, digits, fixed, megabytes
from cvfl.report.series import Series, Spread
from cvfl.report.table import Cell, Row, Table, Value, column
from cvfl.runs.audit import FEW_KNOWN, MANY_KNOWN, UNSUPERVISED, Audit, FeaturesFound, Seen, ToldFound

Found = TypeVar("Found", bound=Seen)
HAS_THEM, BLIND = "has them", "nothing"
_THREE = digits(3)


def run_tables(audit: Audit) -> list[Table]:
    """What was found about one run: columns, then labels, and what labels that were told randomised add."""
    return [_features(audit), _labels(audit), *([_told(audit)] if audit.told else [])]


def _features(audit: Audit) -> Table:
    often = [f"Mean of {audit.looks}"] if audit.looks > 1 else []
    rows: list[Row] = [(role, "sealed messages", NOTHING, *[BLIND] * (2 + len(often)), NOTHING) for role in audit.blind]
    for (observer, sees, party), found in _grouped(audit, audit.features).items():
        first, last = ([one.r2 for one in found if one.stage == stage and one.looks == 1] for stage in ("start", "end"))
        # Where all messages about a row are the same, their mean is, too.
        mean = [one.r2 for one in found if one.looks > 1] or last
        best = max(found, key=lambda one: one.best)
        r2 = [_most(values) for values in (first, last, mean)][: 2 + len(often)]
        rows.append((observer, sees, party, *r2, Value(Spread(best.best), _THREE, unit=best.best_column)))
    for party, alone in audit.by_labels.items():
        rows.append(("anybody", "label", party, *[_most([alone])] * 2, *[NOTHING] * len(often), NOTHING))
    about = (
        f"R² on rows that the attacker does not know, after training on {audit.known:,} that it does; saying the mean "
        "is 0. First and last: one message of the initial and of the final models. Of several observers the one that "
        "recovers most is shown. The last rows are what a row's label tells."
    )
    return Table(
        "Columns from what is seen",
        ("Observer", "Sees", "Of", "First", "Last", *often, "Best column"),
        tuple(rows),
        about + _pictures(audit),
    )


def _pictures(audit: Audit) -> str:
    """The most that a picture or a series is recovered, as people measure pictures."""
    best = max(audit.features, key=lambda one: one.psnr or -math.inf, default=None)
    if best is None or best.psnr is None:
        return ""
    return f" Best PSNR: {best.psnr:.1f} dB, of {best.party}; the mean has {best.baseline_psnr:.1f} dB."


def _labels(audit: Audit) -> Table:
    quantity = audit.score == "R2"
    rows: list[Row] = [(role, "sealed messages", NOTHING, BLIND, BLIND, BLIND, "no") for role in audit.blind]
    for (observer, sees, party), found in _grouped(audit, audit.labels).items():
        kinds = (UNSUPERVISED, (FEW_KNOWN,), (MANY_KNOWN,))
        cells = [_most([one.score for one in found if one.attack in kind]) for kind in kinds]
        rows.append((observer, sees, party, *cells, "yes" if _has_labels(audit, found[0]) else "no"))
    rows += [("anybody", "own columns", name, NOTHING, NOTHING, _most([own]), "no") for name, own in audit.own.items()]
    known = f"{audit.few} {'rows' if quantity else 'a class'} known"
    task = "was not evaluated" if audit.task is None else f"reaches {_THREE(audit.task)} on test rows"
    return Table(
        "Labels from what is seen",
        ("Observer", "Sees", "Of", "No label known", known, f"{audit.known:,} rows known", "Has them"),
        tuple(rows),
        f"{'Squared correlation' if quantity else 'ROC AUC'} on rows whose labels the attacker does not know; the "
        f"joint model {task}. The better of initial and final models counts, and without a known label the better of "
        "both orientations.",
    )


def _told(audit: Audit) -> Table:
    """The joint attacks: what told labels add to what a role knows without them."""
    scores = [(one.own, one.without, one.joint) for one in audit.told]
    rows: list[Row] = [
        (
            one.observer,
            "told labels",
            *(_most([value]) for value in found),
            *_shares(one),
            "yes" if one.within else "no",
        )
        for one, found in zip(audit.told, scores, strict=True)
    ]
    error = max(one.error for one in audit.told)
    return Table(
        "Labels from what was told of them",
        (
            "Observer",
            "Sees",
            "Own columns",
            "And what is seen",
            "And told",
            "Right without",
            "Right",
            "Bound",
            "Within",
        ),
        tuple(rows),
        "ROC AUC, then shares of labels that are guessed right, on rows whose labels the attacker does not know. The "
        "bound is the most that told labels allow anybody who knows as much without them; alone they are right in "
        f"{_THREE(audit.told[0].kept)}. By chance shares are off by {_THREE(error)}, one deviation; within: by no "
        "more than three.",
    )


def _shares(one: ToldFound) -> tuple[Cell, Cell, Cell]:
    return _most([one.right_without]), _most([one.right_joint]), _most([one.bound])


def _has_labels(audit: Audit, seen: Seen) -> bool:
    """Whether all who see it have the labels anyway."""
    parties = {*audit.own} - {seen.party} if "parties" in seen.observers else set()
    return {*seen.observers} - {"parties"} | parties <= {*audit.has_labels}


def _grouped(audit: Audit, found: Iterable[Found]) -> Mapping[tuple[str, str, str], list[Found]]:
    """Findings by kind of observer, what it sees and whose it is."""
    groups: dict[tuple[str, str, str], list[Found]] = {}
    for one in found:
        groups.setdefault((_observer(audit, one), one.sees, one.party), []).append(one)
    kinds, parties = list(dict.fromkeys(key[:2] for key in groups)), [*audit.own]
    order = lambda key: (kinds.index(key[:2]), parties.index(key[2]) if key[2] in parties else -1)  # noqa: E731
    return {key: groups[key] for key in sorted(groups, key=order)}


def _observer(audit: Audit, seen: Seen) -> str:
    if seen.by_server:
        return "server, parties" if seen.by_party else "server"
    return "label holder" if audit.blind and seen.observers[0] in audit.has_labels else "a party"


def _most(values: Sequence[float]) -> Cell:
    return Value(Spread(max(values)), _THREE) if values else NOTHING


def _r2(audit: Audit, chosen: Callable[[FeaturesFound], bool], held_out: bool = False) -> float | None:
    """The highest R^2 of a party's columns, of training rows or of held-out ones."""
    return max((found.r2 for found in audit.features if found.held_out == held_out and chosen(found)), default=None)


def _server_labels(audit: Audit) -> float | None:
    seen = [found.score for found in audit.labels if found.by_server and found.attack == FEW_KNOWN]
    return max(seen, default=None)


def _party_labels(audit: Audit) -> float | None:
    """The highest score of a party that does not have the labels; 1 if all have them."""
    if audit.parties_have_labels:
        return 1.0
    without = [found for found in audit.labels if found.by_party and not {*found.observers} <= {*audit.has_labels}]
    joint = [told.joint] if (told := _told_best(audit)) else []
    return max((*joint, *(found.score for found in without)), default=None)


def _told_best(audit: Audit) -> ToldFound | None:
    """The joint attack of the party that learns most by it, where labels were told randomised."""
    return max((one for one in audit.told if one.observer != "server"), key=lambda one: one.joint, default=None)


def _of_joint(part: str) -> Callable[[Audit], float | None]:
    return lambda audit: getattr(told, part) if (told := _told_best(audit)) else None


_BESIDE = {
    "own columns": _of_joint("own"),
    "without told labels": _of_joint("without"),
    "right": _of_joint("right_joint"),
    "bound": _of_joint("bound"),
}
"""What a joint attack is to be read beside."""


COLUMNS: dict[str, Callable[[Audit], float | None]] = {
    "Server, one message: columns R²": lambda audit: _r2(audit, lambda found: found.by_server and found.looks == 1),
    "Server: columns R²": lambda audit: _r2(audit, lambda found: found.by_server),
    "Party: columns R²": lambda audit: _r2(audit, lambda found: found.by_party),
    "Best column R²": lambda audit: max((found.best for found in audit.features if not found.held_out), default=None),
    "Held-out columns R²": lambda audit: _r2(audit, lambda found: True, held_out=True),
    "Server: labels": _server_labels,
    "Party: labels": _party_labels,
    "Own columns: labels": lambda audit: max(audit.own.values(), default=None),
}
"""The figures of a run by which audits are compared."""
HEADLINES = ("Server: columns R²", "Party: columns R²", "Party: labels")
"""Those that go beside accuracy and bytes."""

NOTE = (
    "Columns: the highest R² over parties and attacks, on rows that the attacker does not know; saying the mean is 0. "
    "Labels: the highest ROC AUC (of a quantity the squared correlation): at the server from what it sees with a few "
    "labels known, at a party from what it gets, and from a party's own columns alone with half of all labels known. "
    "Bits are those of a number of an embedding as sent in training, headers included."
)
_TOLD = (
    " Where labels were told randomised a party's figure is of the joint attack, by them, its own columns and what it "
    "sees; beside it what it knows without them, the share of labels that it guesses right, and the most it could."
)


def comparison(series: Sequence[Series], title: str = "") -> Table:
    """A row for each series that was audited, by privacy and bits: score, megabytes, and what can be learned."""
    audited = [(one, audit) for one in series if (audit := one.first.audit) and all(run.audit for run in one.runs)]
    audited.sort(key=lambda found: (found[1].privacy != "open", found[1].privacy, -(found[1].bits or 0)))
    sent = [one.sent().total for one, _ in audited]
    training = [one.sent().training for one, _ in audited]
    bits = [audit.bits for _, audit in audited]
    score = " or ".join(dict.fromkeys(audit.score.replace("R2", "R²") for _, audit in audited))
    columns: dict[str, Sequence[Cell]] = {
        "Run": [one.label for one, _ in audited],
        "Compressor": [audit.compressor for _, audit in audited],
        "Bits": column([Spread(value) if value else None for value in bits], fixed(filter(None, bits), 2)),
        "Privacy": [audit.privacy for _, audit in audited],
        "Parties get": [audit.parties_get for _, audit in audited],
        f"Test {score}": column([_figure(one, lambda audit: audit.task) for one, _ in audited], _THREE),
        "MB": column([Spread(value) for value in sent], megabytes(sent)),
        "Training MB": column([Spread(value) for value in training], megabytes(training)),
        **{name: leakage_column([one for one, _ in audited], name) for name in COLUMNS},
    }
    return Table.of(columns, title, NOTE + _TOLD * any(audit.told for _, audit in audited))


def leakage_column(series: Sequence[Series], name: str) -> list[Cell]:
    """A figure of each series, or in words what makes it moot."""
    cells = column([_figure(one, COLUMNS[name]) for one in series], _THREE)
    for n, one in enumerate(series):
        audit = one.first.audit
        if name == "Party: labels" and isinstance(cell := cells[n], Value):
            cells[n] = replace(cell, about=_beside(one))
        if audit and name == "Party: labels" and audit.parties_have_labels:
            cells[n] = HAS_THEM
        if audit and name.startswith("Server") and "server" in audit.blind:
            cells[n] = BLIND
    return cells


def _beside(one: Series) -> list[str]:
    """What the attacker of a joint attack knows without told labels, and how often it is right and may be."""
    means = {name: _figure(one, part) for name, part in _BESIDE.items()}
    return [f"{name} {_THREE(found.mean)}" for name, found in means.items() if found]


def _figure(one: Series, figure: Callable[[Audit], float | None]) -> Spread | None:
    """A figure of all runs of a series, if all were audited and have it."""
    return one.spread(lambda run: figure(run.audit) if run.audit else None)
