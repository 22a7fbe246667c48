"""The figures of a study: the metric by epoch and by megabytes for cells to compare, and time under latency."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cvfl.errors import writing
from cvfl.report import figures
from cvfl.report.format import metric_label
from cvfl.report.series import Series, to_series
from cvfl.report.svg import Drawn, standalone
from cvfl.runs.record import Run
from cvfl.studies.latency import ROUND_TRIPS, Measured
from cvfl.studies.study import Preset, Study
from cvfl.studies.tables import computed_times, measured_times, rounds_to_target, rows_of


def study_figures(study: Study, preset: Preset, runs: Sequence[Run], measured: Sequence[Measured] = ()) -> list[Drawn]:
    """All figures of a study; the formula's has none, since it does not train."""
    rows = rows_of(study, runs)
    if study.table == "formula":
        return []
    drawn = _time(study, preset, rows, measured) if study.table == "latency" else []
    for part, series in groups(to_series([run for found in rows.values() for run in found])).items():
        drawn += _learning(study, preset, part, series)
    return drawn


def suite_figure(name: str, study: Study, preset: Preset, runs: Sequence[Run]) -> Drawn:
    """All cells of a suite's member; on a linear axis a hundredth of the bytes could not be seen."""
    label = f"test {metric_label(study.metric)}"
    series = to_series([run for found in rows_of(study, runs).values() for run in found])
    svg = figures.metric_by_megabytes(series, study.metric, label, f"figure-{name}", preset.target, log=True)
    return Drawn(f"{study.title}: {label} by megabytes sent", svg, name=name)


def groups(series: Sequence[Series]) -> dict[str, list[Series]]:
    """What goes into one figure: cells with as many parties, or of one bit width beside those without compression."""
    sizes = sorted({len(one.first.sent.by_party) for one in series})
    if len(sizes) > 1:
        return {f"M = {M}": [one for one in series if len(one.first.sent.by_party) == M] for M in sizes}
    widths = sorted({bits for one in series if (bits := _bits(one.first)) is not None})
    if len(widths) < 2:
        return {"": list(series)}
    return {f"b = {bits}": [one for one in series if _bits(one.first) in (None, bits)] for bits in widths}


def write_figures(drawn: Sequence[Drawn], folder: Path) -> None:
    """Write each figure as a file of its own."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for one in drawn:
            (folder / f"{one.name}.svg").write_text(standalone(one.svg), encoding="utf-8")


def _bits(run: Run) -> int | None:
    found = re.search(r"\bbits=(\d+)", run.settings.get("compressor", ""))
    return int(found[1]) if found else None


def _learning(study: Study, preset: Preset, part: str, series: Sequence[Series]) -> list[Drawn]:
    label = f"test {metric_label(study.metric)}"
    suffix, about = f"-{part.replace(' = ', '')}" if part else "", f", {part}" if part else ""
    drawn = []
    for axis, words, draw in (
        ("epoch", "epoch", figures.metric_by_epoch),
        ("bytes", "megabytes sent", figures.metric_by_megabytes),
    ):
        name = f"{study.metric}-by-{axis}{suffix}"
        svg = draw(series, study.metric, label, f"figure-{name}", preset.target)
        drawn.append(Drawn(f"{label[0].upper()}{label[1:]} by {words}{about}", svg, name=name))
    return drawn


def _time(study: Study, preset: Preset, rows: Mapping[str, Sequence[Run]], measured: Sequence[Measured]) -> list[Drawn]:
    found = rounds_to_target(study, preset, rows)
    computed = computed_times(rows, found)
    if not computed:
        return []
    svg = figures.time_by_round_trip(ROUND_TRIPS, computed, measured_times(found, measured), "figure-time")
    title = f"Seconds to {study.metric} {preset.target:g} by round trip"
    return [Drawn(title, svg, name="time-by-round-trip")]
