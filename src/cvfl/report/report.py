"""One self-contained HTML page about one run or many: results, curves, bytes, errors, configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from operator import attrgetter
from pathlib import Path

from cvfl.errors import DataError, writing
from cvfl.report import figures
from cvfl.report.format import Table, amount, megabytes
from cvfl.report.html import NOTHING, cards, details, figure, grid, note, page, section, table
from cvfl.report.leakage import comparison, run_tables
from cvfl.report.noise import account_table
from cvfl.report.results import Comparison, headline, metric_label, results, told_run
from cvfl.report.series import POINTS, Series, to_series
from cvfl.report.svg import Drawn
from cvfl.runs.read import read_run
from cvfl.runs.record import Run


@dataclass(frozen=True)
class StudyPart:
    """What a study adds to the report of its runs: tables, and figures of its metric with the target."""

    metric: str
    tables: Sequence[Table]
    drawn: Sequence[Drawn]


def write_report(
    runs: Sequence[Path],
    out: Path,
    title: str | None = None,
    study: StudyPart | None = None,
) -> None:
    """Write the report of these run directories to the file `out`; a study adds its tables and figures."""
    if not runs:
        raise DataError("a report needs at least one run directory")
    series = tuple(to_series([read_run(path) for path in runs]))
    # A lone surrogate can come out of a JSON escape, but not go into a file.
    text = _report(series, title, study).encode("utf-8", "xmlcharrefreplace")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(text)


def _report(series: tuple[Series, ...], title: str | None, study: StudyPart | None) -> str:
    compared, idents = Comparison(series), (f"figure-{n}" for n in count(1))
    parts = [
        cards(headline(compared)),
        *([section("To the target", _study(study.tables))] if study else []),
        section("Results", results(compared)),
        section("Learning", _learning(series, idents, study)),
        section("Bytes", _bytes(series, idents)),
    ]
    if any(one.first.error for one in series):
        parts.append(section("Compression error", _errors(series, idents)))
    if any(one.first.account for one in series):
        parts.append(section("Noise", account_table(series)))
    if any(one.first.audit for one in series):
        parts.append(section("Leakage", _leakage(series)))
    parts.append(section("Details", _details(series)))
    things = "settings" if any(len(one.runs) > 1 for one in series) else "runs"
    names = f"{len(series)} {things} compared" if len(series) > 1 else series[0].label
    return page(title or names, _lede([run for one in series for run in one.runs]), parts)


def _study(tables: Sequence[Table]) -> list[str]:
    return [
        table(one.title or "To the target", one.head, {"": one.html_rows()}, foot=" ".join([one.title, *one.notes()]))
        for one in tables
    ]


def _lede(runs: Sequence[Run]) -> str:
    parties = max(len(run.sent.by_party) for run in runs)
    versions = sorted({run.versions["cvfl"] for run in runs if "cvfl" in run.versions})
    found = [f"{len(runs)} run{'s' * (len(runs) > 1)}", f"{parties} {'party' if parties == 1 else 'parties'}"]
    return " · ".join([*found, *(f"cvfl {version}" for version in versions)])


def _learning(series: Sequence[Series], idents: Iterator[str], study: StudyPart | None) -> list[str]:
    about = "Bands are one standard deviation over seeds." if any(len(one.runs) > 1 for one in series) else ""
    drawn = [figure(one.title, about, one.svg) for one in study.drawn] if study else []
    evaluated = dict.fromkeys(one.first.metric for one in series if _evaluated(one, one.first.metric))
    for metric in (name for name in evaluated if name and not (study and study.drawn and name == study.metric)):
        name = f"test {metric_label(metric)}"
        drawn += [
            figure(
                f"{_upper(name)} by megabytes sent",
                "Training bytes in both directions; evaluation is apart. " + about,
                figures.metric_by_megabytes(series, metric, name, next(idents)),
            ),
            figure(f"{_upper(name)} by epoch", about, figures.metric_by_epoch(series, metric, name, next(idents))),
        ]
    if any(one.first.history for one in series):
        averaged = any(len(one.first.history) > POINTS for one in series)
        text = f"On the batches of training{', averaged over neighbouring rounds' * averaged}. {about}"
        drawn.append(figure("Training loss by epoch", text, figures.loss_by_epoch(series, next(idents))))
    if "loss" not in evaluated and any(_evaluated(one, "loss") for one in series):
        svg = figures.metric_by_epoch(series, "loss", "test loss", next(idents))
        drawn.append(figure("Test loss by epoch", about, svg))
    missing = "" if evaluated else "No run was evaluated, so there is no test metric to draw."
    return [*([note(missing)] if missing else []), grid(drawn)]


def _evaluated(one: Series, metric: str | None) -> bool:
    return any(metric in line.test for run in one.runs for line in run.history)


def _bytes(series: Sequence[Series], idents: Iterator[str]) -> list[str]:
    parties = [sent for one in series for sent in one.by_party().values()]
    mb = megabytes([value for sent in parties for value in (sent.up, sent.down, sent.evaluation)])
    widest = max((sent.total for sent in parties), default=0.0)
    rows = {
        told_run(one, n): [
            (escape(name), mb(sent.up), mb(sent.down), mb(sent.evaluation), mb(sent.total))
            for name, sent in one.by_party().items()
        ]
        for n, one in enumerate(series)
    }
    head = ["Party", "Up MB", "Down MB", "Evaluation MB", "Total MB"]
    drawn = [figure(one.label, "", figures.bytes_by_party(one, widest, next(idents))) for one in series]
    return [
        note(
            "MB by party and direction: up is to the server, down is from it."
            + " All runs are drawn to one scale." * (len(series) > 1)
        ),
        grid(drawn),
        details("Bytes by party", table("Bytes by party", head, rows), shown=len(series) == 1),
        *_formula(series),
    ]


def _formula(series: Sequence[Series]) -> list[str]:
    known = [
        (n, one, formula.mean) for n, one in enumerate(series) if (formula := one.spread(attrgetter("formula_bytes")))
    ]
    mb = megabytes([value for _, one, formula in known for value in (formula, one.sent().training)])
    rows = [
        (told_run(one, n), mb(formula), mb(sent := one.sent().training), f"{sent / formula:.1%}")
        for n, one, formula in known
        if formula > 0
    ]
    if not rows:
        return []
    text = (
        "The formula is the one that the paper's authors plot: nominal bits for every value, each upload of Algorithm "
        "1 counted once a party, no headers, indices or evaluation; measured are the bytes of all training frames."
    )
    head = ["Run", "Formula MB", "Measured MB", "Measured / formula"]
    return ["<h3>Formula and measurement</h3>", note(text), table("Formula and measured bytes", head, {"": rows})]


def _leakage(series: Sequence[Series]) -> list[str]:
    text = (
        "What a curious server or party could learn from the messages that it gets, as an audit measured it by attacks "
        "on the frames of the initial and the final models. A stronger attack may learn more."
    )
    found = comparison(series, "Leakage")
    single = [(one.label, audit) for one in series if (audit := one.first.audit) and len(one.runs) == 1]
    each = [_findings(label, found, len(series) == 1) for label, audit in single for found in run_tables(audit)]
    return [note(text), table(found.title, found.head, {"": found.html_rows()}, foot=found.note), *each]


def _findings(label: str, found: Table, shown: bool) -> str:
    """What an audit found of one run, under who sees what."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for observer, sees, *cells in found.html_rows():
        rows.setdefault(f"{observer}: {sees}", []).append(tuple(cells))
    name = f"{found.title}: {label}"
    return details(name, table(name, found.head[2:], rows, foot=found.note), shown)


def _errors(series: Sequence[Series], idents: Iterator[str]) -> list[str]:
    rows = []
    for n, one in enumerate(series):
        measured, expected, bound = (one.spread(_error_part(part)) for part in ("measured", "expected", "bound"))
        if not (measured and expected and bound):
            rows.append((told_run(one, n), *[NOTHING] * 4))
            continue
        values = (measured.mean, expected.mean, bound.mean)
        over = ' <span class="badge">exceeds the bound</span>' if one.over_bound else ""
        rows.append((told_run(one, n), *map(amount, values), _share(measured.mean, bound.mean) + over))
    text = (
        "Squared error of what was sent, beside what theory allows: “expected” limits its mean over the dither, "
        "“bound” limits every single outcome. The table sums over all measured messages of a run"
    )
    lossy = any(one.lossy for one in series)
    shown = _error_figures(series, idents) if lossy else []
    return [
        note(text + ("; the figures show one message a round." if lossy else ".")),
        table("Compression error", ["Run", "Measured", "Expected", "Bound", "Measured / bound"], {"": rows}),
        *shown,
    ]


def _error_figures(series: Sequence[Series], idents: Iterator[str]) -> list[str]:
    roles = dict.fromkeys(role for one in series for role in one.roles)
    drawn = [figure(role, "", figures.error_by_round(series, role, next(idents))) for role in roles]
    return [f'<div class="key">{figures.error_legend(series, next(idents))}</div>', grid(drawn, "narrow")]


def _error_part(part: str) -> Callable[[Run], float | None]:
    return lambda run: None if run.error is None else float(getattr(run.error, part))


def _share(measured: float, bound: float) -> str:
    if not bound > 0:
        return "exact" if measured == 0 else NOTHING
    return NOTHING if math.isnan(measured) else f"{measured / bound:.1%}"


def _details(series: Sequence[Series]) -> list[str]:
    labels = [one.label for one in series]
    settings = [_with_seeds(one) for one in series]
    versions = [one.first.versions for one in series]
    hashes = {
        f"{told_run(one, n)}<small>seed {run.seed}</small>": [(escape(k), escape(v)) for k, v in run.parameters.items()]
        for n, one in enumerate(series)
        for run in one.runs
        if run.parameters
    }
    tables: dict[str, tuple[list[str], Mapping[str, Sequence[Sequence[str]]]]] = {
        "Configuration": (["Setting", *labels], {"": _matrix(settings)}),
        "Versions": (["Package", *labels], {"": _matrix(versions)}),
        "Parameter hashes": (["Role", "SHA-256"], hashes),
    }
    return [
        details(name, table(name, head, rows, "texts")) for name, (head, rows) in tables.items() if any(rows.values())
    ]


def _with_seeds(one: Series) -> dict[str, str]:
    return {**one.first.settings, "seed": ", ".join(str(run.seed) for run in one.runs)}


def _matrix(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """A row a key, a column a run; where the runs differ the values are bold."""
    rows = []
    for key in dict.fromkeys(key for found in columns for key in found):
        values = [found.get(key, NOTHING) for found in columns]
        differs = len(set(values)) > 1
        rows.append((escape(key), *(f"<strong>{escape(v)}</strong>" if differs else escape(v) for v in values)))
    return rows


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
