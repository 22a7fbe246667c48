"""One self-contained HTML page about one run or many: results, curves, bytes, errors, configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import attrgetter
from pathlib import Path

from cvfl.errors import DataError
from cvfl.report import figures
from cvfl.report.analysis import analysis_sections
from cvfl.report.certificate import certificate_section, is_certified
from cvfl.report.format import NOTHING, amount, megabytes, metric_label, share
from cvfl.report.html import Details, Figures, Heading, Page, Section, write_page
from cvfl.report.labels import ESTIMATE, labels_section
from cvfl.report.leakage import comparison, run_tables
from cvfl.report.noise import noise_section
from cvfl.report.references import references_section
from cvfl.report.results import Comparison, headline, results_section
from cvfl.report.series import POINTS, Series, spread, to_series
from cvfl.report.svg import Drawn
from cvfl.report.table import Row, Table, Text
from cvfl.report.tables import bytes_table, matrix, named
from cvfl.report.times import is_timed, times_section
from cvfl.report.watch import watch_section
from cvfl.runs.read import read_run
from cvfl.runs.record import Run


@dataclass(frozen=True)
class StudyPart:
    """What a study adds to the report of its runs: tables, and figures of its metric with the target."""

    metric: str
    tables: Sequence[Table]
    drawn: Sequence[Drawn]


def write_report(runs: Sequence[Path], out: Path, title: str | None = None, study: StudyPart | None = None) -> None:
    """Write the report of these run directories to the file `out`; a study adds its tables and figures."""
    if not runs:
        raise DataError("a report needs at least one run directory")
    write_page(_page(tuple(to_series([read_run(path) for path in runs])), title, study), out)


def _page(series: tuple[Series, ...], title: str | None, study: StudyPart | None) -> Page:
    compared, idents = Comparison(series), (f"figure-{n}" for n in count(1))
    sections = [
        *([target_section(study.tables)] if study else []),
        results_section(compared),
        *([references_section(series)] if any(one.first.references for one in series) else []),
        *_quality(series, idents),
        _learning(series, idents, study),
        _bytes(series, idents),
    ]
    if any(one.first.error for one in series):
        sections.append(_errors(series, idents))
    if any(is_certified(one) for one in series):
        sections.append(certificate_section(series))
    if any(one.first.largest for one in series):
        sections.append(watch_section(series))
    if any(one.first.account for one in series):
        sections.append(noise_section(series))
    if any(one.first.label_privacy for one in series):
        sections.append(labels_section(series))
    if is_timed(series):
        sections.append(times_section(series))
    if any(one.first.audit for one in series):
        sections.append(_leakage(series))
    sections.append(_details(series))
    things = "settings" if any(len(one.runs) > 1 for one in series) else "runs"
    names = f"{len(series)} {things} compared" if len(series) > 1 else _title(series[0])
    return Page(title or names, _lede([run for one in series for run in one.runs]), sections, headline(compared))


def _title(one: Series) -> str:
    """Who has trained what, and when; of runs that do not say so their name."""
    run = one.first
    if not run.date:
        return one.label
    data = run.config.get("data", {}).get("name")
    labels = [party["label"] for party in run.config.get("party", {}).values() if party.get("label")]
    parties = list(run.sent.by_party)
    names = ", ".join(parties[:4]) + (f" and {len(parties) - 4} more" if len(parties) > 4 else "")
    return f"{names}: {', '.join(labels) or data or one.label}, {run.date}"


def _quality(series: Sequence[Series], idents: Iterator[str]) -> list[Section]:
    """How good the models of a run are; of several runs each has its own page."""
    runs = [run for one in series for run in one.runs]
    if len(runs) > 1:
        return []
    if runs[0].analysis:
        return analysis_sections(runs[0].analysis, idents, runs[0].classes)
    privacy = runs[0].config.get("privacy", {})
    if privacy.get("label_epsilon") is not None:
        return [
            Section("Quality", ["By told labels single rows say nothing: their holder alone has more than estimates."])
        ]
    if privacy.get("labels", "shared") not in ("shared", "server"):
        return [Section("Quality", ["Labels stay with a party: how good the models are on test rows is told there."])]
    return []


def target_section(tables: Sequence[Table]) -> Section:
    """The tables of a study; on a page the title of a table is read aloud, so that its note says it, too."""
    title = "To the target"
    return Section(
        title, [replace(one, title=one.title or title, note=f"{one.title} {one.note}".strip()) for one in tables]
    )


def _lede(runs: Sequence[Run]) -> str:
    parties = max(len(run.sent.by_party) for run in runs)
    versions = sorted({run.versions["cvfl"] for run in runs if "cvfl" in run.versions})
    found = [f"{len(runs)} run{'s' * (len(runs) > 1)}", f"{parties} {'party' if parties == 1 else 'parties'}"]
    if len(runs) == 1 and runs[0].date:
        found.insert(0, runs[0].name)
    warnings = [f"{run.name}: {run.warning}" if len(runs) > 1 else run.warning for run in runs if run.warning]
    return " · ".join([*found, *(f"cvfl {version}" for version in versions), *warnings])


def _learning(series: Sequence[Series], idents: Iterator[str], study: StudyPart | None) -> Section:
    about = "Bands are one standard deviation over seeds." if any(len(one.runs) > 1 for one in series) else ""
    guessed = f"Of labels that were told randomised: {ESTIMATE}. " if any(one.randomised for one in series) else ""
    drawn = [replace(one, about=about) for one in study.drawn] if study else []
    evaluated = dict.fromkeys(one.first.metric for one in series if _evaluated(one, one.first.metric))
    for metric in (name for name in evaluated if name and not (study and study.drawn and name == study.metric)):
        name = f"test {metric_label(metric)}"
        drawn += [
            Drawn(
                f"{_upper(name)} by megabytes sent",
                figures.metric_by_megabytes(series, metric, name, next(idents)),
                f"{guessed}All bytes so far: training, evaluation, alignment and set-up. {about}",
            ),
            Drawn(
                f"{_upper(name)} by epoch", figures.metric_by_epoch(series, metric, name, next(idents)), guessed + about
            ),
        ]
    if any(one.first.history for one in series):
        averaged = any(len(one.first.history) > POINTS for one in series)
        text = f"On the batches of training{', averaged over neighbouring rounds' * averaged}. {about}"
        drawn.append(Drawn("Training loss by epoch", figures.loss_by_epoch(series, next(idents)), text))
    if "loss" not in evaluated and any(_evaluated(one, "loss") for one in series):
        svg = figures.metric_by_epoch(series, "loss", "test loss", next(idents))
        drawn.append(Drawn("Test loss by epoch", svg, about))
    missing = [] if evaluated else ["No run was evaluated, so there is no test metric to draw."]
    return Section("Learning", [*missing, Figures(drawn)])


def _evaluated(one: Series, metric: str | None) -> bool:
    return any(metric in line.test for run in one.runs for line in run.history)


def _bytes(series: Sequence[Series], idents: Iterator[str]) -> Section:
    parties = [sent for one in series for sent in one.by_party().values()]
    whole = all(sent.whole for sent in parties)
    widest = max((sent.total for sent in parties), default=0.0)
    missing = "" if whole else " Alignment and set-up of some runs were not recorded, and are not in their totals."
    scale = " All runs are drawn to one scale." * (len(series) > 1)
    return Section(
        "Bytes",
        [
            f"MB by party: of training up to the server and down from it, of all else in both ways.{missing}{scale}",
            Figures([Drawn(one.label, figures.bytes_by_party(one, widest, next(idents))) for one in series]),
            Details(bytes_table(series), shown=len(series) == 1),
            *_formula(series),
        ],
    )


def _formula(series: Sequence[Series]) -> list[Heading | str | Table]:
    known = [
        (n, one, formula.mean) for n, one in enumerate(series) if (formula := one.spread(attrgetter("formula_bytes")))
    ]
    mb = megabytes([value for _, one, formula in known for value in (formula, one.sent().training)])
    rows = [
        (named(one, n), mb(formula), mb(sent := one.sent().training), share(sent / formula))
        for n, one, formula in known
        if formula > 0
    ]
    if not rows:
        return []
    text = (
        "The formula is the one that the paper's authors plot: nominal bits for every value, each upload of Algorithm "
        "1 counted once a party, no headers, indices or evaluation; measured are the bytes of all training frames."
    )
    head = ("Run", "Formula MB", "Measured MB", "Measured / formula")
    return [Heading("Formula and measurement"), text, Table("Formula and measured bytes", head, rows)]


def _errors(series: Sequence[Series], idents: Iterator[str]) -> Section:
    text = (
        "Squared error of what was sent on evaluated rounds, beside what its compressor promises for it: “expected” "
        "limits its mean over the dither, “bound” limits every single outcome. The table sums over all measured "
        "messages of a run"
    )
    head = ("Run", "Measured", "Expected", "Bound", "Measured / bound")
    table = Table("Compression error", head, [_error_row(one, n) for n, one in enumerate(series)])
    if not any(one.lossy for one in series):
        return Section("Compression error", [f"{text}.", table])
    roles = dict.fromkeys(role for one in series for role in one.roles)
    drawn = [Drawn(role, figures.error_by_round(series, role, next(idents))) for role in roles]
    shown = Figures(drawn, narrow=True, legend=figures.error_legend(series, next(idents)))
    return Section("Compression error", [f"{text}; the figures show one message a round.", table, shown])


def _error_row(one: Series, n: int) -> Row:
    errors = [run.error for run in one.runs if run.error]
    if len(errors) < len(one.runs):
        return (named(one, n), *[NOTHING] * 4)
    parts = [spread([getattr(error, part) for error in errors]).mean for part in ("measured", "expected", "bound")]
    warning = "exceeds the bound" if one.over_bound else ""
    return (named(one, n), *map(amount, parts), Text(_bound_share(parts[0], parts[2]), warning=warning))


def _bound_share(measured: float, bound: float) -> str:
    if not bound > 0:
        return "exact" if measured == 0 else NOTHING
    return NOTHING if math.isnan(measured) else share(measured / bound)


def _leakage(series: Sequence[Series]) -> Section:
    text = (
        "What a curious server or party could learn from the messages that it gets, as an audit measured it by attacks "
        "on the frames of the initial and the final models. A stronger attack may learn more."
    )
    single = [(one.label, audit) for one in series if (audit := one.first.audit) and len(one.runs) == 1]
    each = [
        Details(_by_observer(label, found), shown=len(series) == 1)
        for label, audit in single
        for found in run_tables(audit)
    ]
    return Section("Leakage", [text, comparison(series, "Leakage"), *each])


def _by_observer(label: str, found: Table) -> Table:
    """What an audit found of one run, under who sees what."""
    groups: dict[str, list[Row]] = {}
    for observer, sees, *cells in found.rows:
        groups.setdefault(f"{observer}: {sees}", []).append(cells)
    return Table(f"{found.title}: {label}", found.head[2:], note=found.note, groups=[*groups.items()])


def _details(series: Sequence[Series]) -> Section:
    labels = [one.label for one in series]
    seeds = [{"seed": ", ".join(str(run.seed) for run in one.runs)} for one in series]
    settings = matrix([{**one.first.settings, **seed} for one, seed in zip(series, seeds, strict=True)])
    versions = matrix([one.first.versions for one in series])
    hashes = [
        (named(one, n, f"seed {run.seed}"), [*run.parameters.items()])
        for n, one in enumerate(series)
        for run in one.runs
        if run.parameters
    ]
    tables = (
        Table("Configuration", ("Setting", *labels), settings, texts=True),
        Table("Versions", ("Package", *labels), versions, texts=True),
        Table("Parameter hashes", ("Role", "SHA-256"), groups=hashes, texts=True),
    )
    return Section("Details", [Details(table) for table in tables if table.rows or table.groups])


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
