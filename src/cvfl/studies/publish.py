"""What a study leaves for readers, and a copy of its records that is small enough to keep in a repository.

DIR/study.toml, DIR/study.json      what was compared; preset, command, machine
DIR/runs/CELL/seed-N/               summary.json and metrics.jsonl; in a published folder only what is read of them
DIR/latency.jsonl                   seconds of rounds over gRPC, of studies of latency
DIR/tables.md, DIR/figures/*.svg    made of the above and of nothing else
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from cvfl.errors import ConfigError, DataError, writing
from cvfl.report.report import StudyPart, write_report
from cvfl.report.svg import Drawn
from cvfl.report.table import Table
from cvfl.runs.compact import compact
from cvfl.runs.read import read_run
from cvfl.runs.record import Run
from cvfl.studies.figures import study_figures, write_figures
from cvfl.studies.latency import Measured, read_measured, write_measured
from cvfl.studies.origin import Origin
from cvfl.studies.scaled import scaled_down
from cvfl.studies.study import Preset, Study, preset_of, slug
from cvfl.studies.tables import study_tables


@dataclass(frozen=True)
class Results:
    """The recorded runs of a study, in its order, and what was measured beside them."""

    study: Study
    origin: Origin
    runs: tuple[tuple[Path, Run], ...]
    measured: tuple[Measured, ...]

    @classmethod
    def of(cls, study: Study, origin: Origin, paths: Sequence[Path], folder: Path) -> Self:
        """Read the runs of these directories, and what `folder` holds beside them."""
        place = {cell.name: n for n, cell in enumerate(study.cell)}
        read = [(path, read_run(path)) for path in paths]
        runs = [(path, run) for path, run in read if run.name in place]
        if not runs:
            raise DataError(f"{folder}: no run belongs to the study {study.title!r}; name another by --study")
        runs.sort(key=lambda found: (place[found[1].name], found[1].seed))
        return cls(study, origin, tuple(runs), tuple(read_measured(folder)))

    @property
    def preset(self) -> Preset:
        """The preset that was run."""
        return preset_of(self.study, self.origin.preset)

    @cached_property
    def tables(self) -> list[Table]:
        """The study's tables."""
        return study_tables(self.study, self.preset, self._records, self.measured)

    @cached_property
    def figures(self) -> list[Drawn]:
        """The study's figures."""
        return study_figures(self.study, self.preset, self._records, self.measured)

    @property
    def _records(self) -> list[Run]:
        return [run for _, run in self.runs]

    def write(self, folder: Path) -> None:
        """Write tables.md and the figures; those of an earlier time go."""
        write_pages(folder, self._markdown(), self.figures)

    def write_html(self, out: Path) -> None:
        """Write the report."""
        part = StudyPart(self.study.metric, self.tables, self.figures)
        write_report([path for path, _ in self.runs], out, self.study.title, part)

    def publish(self, text: str, folder: Path) -> Self:
        """Write a folder to commit: the study's `text`, small records, and tables and figures made of these."""
        places = [folder / "runs" / slug(run.name) / f"seed-{run.seed}" for _, run in self.runs]
        known = [path.parent for path in (folder / "runs").rglob("summary.json")]
        if any((path / "config.json").exists() for path in known):
            raise ConfigError(f"{folder} holds whole runs; publish to another folder")
        with writing(folder):
            for old in known:
                if old not in places:
                    shutil.rmtree(old)
            for (path, _), place in zip(self.runs, places, strict=True):
                compact(path, place, self.study.metric)
            (folder / "study.toml").write_text(text, encoding="utf-8")
            self.origin.write(folder)
            if self.measured:
                write_measured(folder, self.measured)
        small = tuple((place, read_run(place)) for place in places)
        published = replace(self, runs=small)
        published.write(folder)
        return published

    def _markdown(self) -> str:
        study, origin, runs = self.study, self.origin, self._records
        seeds = sorted({run.seed for run in runs})
        parts = [
            f"# {study.title}",
            f"{study.paper[:1].upper()}{study.paper[1:]}. Preset {origin.preset}, seeds {', '.join(map(str, seeds))}.",
            f"    {origin.command}",
            *(table.markdown().rstrip() for table in self.tables),
        ]
        parts += shown(self.figures)
        if changes := scaled_down(study, origin.preset, len(seeds)):
            about = self.preset.scaled
            table = Table("", ("", "paper", "here"), changes, f"In words: {about}." if about else "")
            parts += ["## What was scaled down", table.markdown().rstrip()]
        parts += ["## Machine and versions", _made_with(origin, runs).markdown().rstrip()]
        return "\n\n".join(parts) + "\n"


def shown(figures: Sequence[Drawn]) -> list[str]:
    """The part of a tables.md that shows figures, if there are any."""
    images = [f"{one.title}:\n\n![{one.title}](figures/{one.name}.svg)" for one in figures]
    return ["## Figures", *images] if images else []


def write_pages(folder: Path, markdown: str, figures: Sequence[Drawn]) -> None:
    """Write tables.md and the figures; those of an earlier time go."""
    with writing(folder):
        for old in (folder / "figures").glob("*.svg"):
            old.unlink()
        write_figures(figures, folder / "figures")
        (folder / "tables.md").write_text(markdown, encoding="utf-8")


def _made_with(origin: Origin, runs: Sequence[Run]) -> Table:
    rows = [("machine", f"{m.cores} cores, {m.cpu}, {m.memory_gb} GB memory") for m in origin.machines]
    for package in dict.fromkeys(package for run in runs for package in run.versions):
        found = dict.fromkeys(run.versions[package] for run in runs if package in run.versions)
        rows.append((package, ", ".join(found)))
    return Table("", ("", ""), tuple(rows))
