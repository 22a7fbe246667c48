"""What the page shows of chosen runs beside figures: cards, parties, results, bytes, settings; as HTML and as data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cvfl.board.known import Known
from cvfl.board.rows import says
from cvfl.report.colours import colour
from cvfl.report.format import (
    NOTHING,
    brief,
    clock,
    megabytes,
    metric_label,
    scores,
    shares,
)
from cvfl.report.html import Card, Details, fragment
from cvfl.report.labels import ESTIMATES, metric_note
from cvfl.report.results import Comparison, headline, results_section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.report.tables import bytes_table, matrix, named
from cvfl.report.times import TIMES, times_table
from cvfl.report.watch import SEEN, seen_table
from cvfl.runs.record import Run, Scores, tells_randomised
from cvfl.runs.status import Attendance
from cvfl.runs.tally import Tally

MOST = 36
"""Runs that are shown together: as many lines differ in colours and dashes."""


def view(chosen: Sequence[Known]) -> dict[str, Any]:
    """Everything about these runs but curves."""
    labels = short_names([known.name for known in chosen])
    series = [
        Series(label, (known.record or _nothing_yet(known),)) for known, label in zip(chosen, labels, strict=True)
    ]
    tallies = [(named(one, n), known.columns.tally) for n, (one, known) in enumerate(zip(series, chosen, strict=True))]
    single = len(chosen) == 1
    return {
        "runs": [
            {
                "name": known.name,
                "label": label,
                "state": known.state,
                "says": says(known),
                "mark": _mark(known),
                "alarms": known.alarms,
                "damage": [line for line in known.damage if not (single and line == says(known))],
                "randomised": tells_randomised(known.config),
            }
            for known, label in zip(chosen, labels, strict=True)
        ],
        "cards": fragment((), _cards(chosen, series)),
        "parties": fragment([table for known in chosen if (table := _parties(known, len(chosen) > 1))]),
        "results": fragment([_results(series)]) if not single else "",
        "bytes": [_bytes(one) for one in series],
        "table": fragment([Details(bytes_table(series), shown=len(series) == 1)]),
        "times": fragment(_tallied(tallies, times_table, TIMES, single)),
        "seen": fragment(_tallied(tallies, seen_table, SEEN, single)),
        "settings": fragment(_settings(series)),
        "bare": _bare(chosen),
        "metric": next((known.metric for known in chosen if known.metric), None),
    }


def short_names(names: Sequence[str]) -> list[str]:
    """Names without the folders that all of them share; of one run its last folder."""
    split = [name.split("/") for name in names]
    if len(split) == 1:
        return split[0][-1:]
    while all(len(parts) > 1 for parts in split) and len({parts[0] for parts in split}) == 1:
        split = [parts[1:] for parts in split]
    while all(len(parts) > 1 for parts in split) and len({parts[-1] for parts in split}) == 1:
        split = [parts[:-1] for parts in split]
    return ["/".join(parts) for parts in split]


def _bare(chosen: Sequence[Known]) -> str:
    """Why there is nothing to show, and what to do; nothing if any of the runs has a round."""
    if any(known.done or known.record for known in chosen):
        return ""
    if any(known.under_way for known in chosen):
        return "No round is over yet. Figures appear with the first one, by themselves."
    begun = "There is no round in metrics.jsonl, so there is nothing to show."
    if any((known.path / "state").is_dir() for known in chosen):
        return f"{begun} A run that was stopped goes on with --resume; roles that are processes, when they are started."
    return (
        f"{begun} If it was a run, begin it anew; if the folder is of something else, name another: cvfl board FOLDER."
    )


def _mark(known: Known) -> str:
    return f"{known.done} {known.state}"


def _nothing_yet(known: Known) -> Run:
    """The record of a run before its first round."""
    nothing = {"up": 0, "down": 0, "evaluation": 0, "alignment": 0, "setup": 0}
    values = {"name": known.name, "seed": 0, "rounds": 0, "completed": False, "metrics": Scores(), "seconds": 0.0}
    values |= {"bytes": nothing | {"by_party": {}}, "history": (), "settings": known.settings}
    return Run.model_validate(values)


def _cards(chosen: Sequence[Known], series: Sequence[Series]) -> list[Card]:
    if len(chosen) > 1:
        return headline(Comparison(tuple(series)))
    return _one(chosen[0], series[0].first) if chosen[0].record else []  # before the first round there is nothing


def _one(known: Known, run: Run) -> list[Card]:
    sent, lines = run.sent, known.columns
    mb = megabytes([sent.total, sent.training])
    loss = lines.last.loss if lines.last else None
    value = known.scores.get(known.metric or "")
    of = f" of {known.rounds:,}" if known.rounds and known.rounds != known.done else ""
    pace = f"{brief(known.pace)} rounds a second" if known.pace else NOTHING
    left = f"{clock(known.remaining)} left" if known.remaining is not None else f"{clock(known.seconds)} in all"
    rows = ", ".join(f"{count:,} {part}" for part, count in run.rows.items() if count)
    return [
        Card("Rounds", f"{known.done:,}", f"{of.strip()}{', ' * bool(of)}{pace}"),
        Card(
            "Left" if known.remaining is not None else "Time",
            left.rpartition(" ")[0] if known.remaining is not None else clock(known.seconds),
            f"{clock(known.seconds)} so far" if known.under_way else "all rounds",
        ),
        Card(
            f"Test {metric_label(known.metric)}" if known.metric else "Metric",
            scores([value])(value) if value is not None else NOTHING,
            (value is not None and metric_note(run))
            or (rows and f"rows: {rows}")
            or ("newest evaluation" if value is not None else "not evaluated yet"),
        ),
        Card("Loss", scores([loss])(loss) if loss is not None else NOTHING, "on the newest batch"),
        Card("Sent in all", f"{mb(sent.total)} MB", shares(sent.purposes) if sent.total else ""),
    ]


def _parties(known: Known, named: bool) -> Table | None:
    """Who is connected to the server, as far as the run has told; of one that is over, who was away meanwhile."""
    parties = known.status.parties if known.status else {}
    title = f"Parties of {known.name}" if named else "Parties"
    head = f"Party of {known.name}" if named else "Party"
    if known.under_way and parties:
        rows: list[Row] = [(name, *_attendance(one)) for name, one in parties.items()]
        return Table(title, (head, "State", "For", "Server waits for it", "Came back"), rows)
    back: list[Row] = [(name, _back(one)) for name, one in parties.items() if one.visits > 1]
    return Table(title, (head, "Came back"), back, "Parties not listed were connected all the time.") if back else None


def _attendance(one: Attendance) -> tuple[str | Text, ...]:
    now = time.time()
    state = Text("here") if one.here else Text("", warning="away" if one.visits else "not here yet")
    waits = clock(now - one.owes_since) if one.owes_since and one.here else NOTHING
    return state, clock(now - one.since), waits, _back(one)


def _back(one: Attendance) -> str:
    back = one.visits - 1
    return f"{back} times" if back > 1 else "once" if back == 1 else NOTHING


def _results(series: Sequence[Series]) -> Table:
    found = next(part for part in results_section(Comparison(tuple(series))).parts if isinstance(part, Table))
    guessed = f" {ESTIMATES}" * any(one.randomised for one in series)
    note = f"Bold is the best of a column. A run that is not over takes no part in that.{guessed}"
    return replace(found, note=note)


def _tallied(
    tallies: Sequence[tuple[Text, Tally]],
    table: Callable[[Sequence[tuple[Text, Tally]]], Table],
    about: str,
    shown: bool,
) -> list[Details]:
    """A table of what adds up over rounds, as the report has it; nothing where no run tells."""
    found = table(tallies)
    return [Details(replace(found, note=about), shown=shown)] if found.groups else []


def _bytes(one: Series) -> dict[str, Any]:
    """Bytes by party and purpose, for bars; and what they were for in words."""
    sent = one.first.sent
    parties = {
        name: {"up": found.up, "down": found.down} | {k: v or 0 for k, v in found.purposes.items() if k != "training"}
        for name, found in sent.by_party.items()
    }
    told = f"{megabytes([sent.total])(sent.total)} MB: {shares(sent.purposes)}" if sent.total else "nothing yet"
    return {"label": one.label, "told": told, "parties": parties}


def _settings(series: Sequence[Series]) -> list[str | Table | Details]:
    rows = matrix([one.first.settings for one in series])
    if len(series) == 1:
        return [Details(Table("All settings", ("Setting", "Value"), rows, texts=True))] if rows else []
    head = ("Setting", *(one.label for one in series))
    differ = [row for row in rows if any(isinstance(cell, Text) and cell.bold for cell in row)]
    found: list[str | Table | Details] = [
        Table("Settings that differ", head, differ, texts=True) if differ else "All settings are the same."
    ]
    return [*found, Details(Table("All settings", head, rows, texts=True))]


def colours(count: int) -> list[str]:
    """The colours of so many runs, as reports have them."""
    return [colour(n) for n in range(count)]
