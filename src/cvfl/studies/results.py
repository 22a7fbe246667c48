"""What a study leaves for readers, and a copy of its records that is small enough to keep in a repository.

DIR/study.toml, DIR/study.json      what was compared; preset, command, machine
DIR/runs/CELL/seed-N/               summary.json and metrics.jsonl; in a published folder only what is read of them
DIR/latency.jsonl                   seconds of rounds over gRPC, of studies of latency
DIR/tables.md, DIR/figures/*.svg    made of the above and of nothing else

A suite has all of this for every member in DIR/MEMBER, and study.toml, study.json, tables.md and figures in DIR.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from cvfl.errors import ConfigError, DataError, writing
from cvfl.report.html import Figures, Page, Section, write_page
from cvfl.report.report import StudyPart, target_section, write_report
from cvfl.report.svg import Drawn
from cvfl.report.table import Table
from cvfl.runs.compact import compact
from cvfl.runs.read import read_run
from cvfl.runs.record import Run
from cvfl.studies.figures import study_figures, suite_figure, write_figures
from cvfl.studies.latency import Measured, read_measured, write_measured
from cvfl.studies.origin import Origin
from cvfl.studies.scaled import scaled_down
from cvfl.studies.study import Preset, Study, Suite, member_text, preset_of, slug
from cvfl.studies.suite_table import suite_table
from cvfl.studies.tables import study_tables


def read_results(
    suite: Suite, found: Sequence[Path], folder: Path, origin: Callable[[Path], Origin]
) -> StudyResults | SuiteResults:
    """The results of which `found` are run directories; `origin` is asked for the folder of each study."""
    members = {}
    for name, study in suite.members.items():
        if not name:
            return StudyResults.read(study, origin(folder), found, folder)
        if own := [path for path in found if path.is_relative_to(folder / name)]:
            members[name] = StudyResults.read(study, origin(folder / name), own, folder / name)
    if not members:
        raise DataError(f"no run belongs to the suite {suite.title!r}; name the folder that holds its studies")
    return SuiteResults(suite, origin(folder), members)


@dataclass(frozen=True)
class StudyResults:
    """The recorded runs of a study, in its order, and what was measured beside them."""

    study: Study
    origin: Origin
    runs: tuple[tuple[Path, Run], ...]
    measured: tuple[Measured, ...]

    @classmethod
    def read(cls, study: Study, origin: Origin, paths: Sequence[Path], folder: Path) -> Self:
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

    @property
    def records(self) -> list[Run]:
        """The runs without their places."""
        return [run for _, run in self.runs]

    @cached_property
    def tables(self) -> list[Table]:
        """The study's tables."""
        return study_tables(self.study, self.preset, self.records, self.measured)

    @cached_property
    def figures(self) -> list[Drawn]:
        """The study's figures."""
        return study_figures(self.study, self.preset, self.records, self.measured)

    def write(self, folder: Path) -> None:
        """Write tables.md and the figures."""
        seeds = sorted({run.seed for run in self.records})
        more = ["## Machine and versions", self._made_with().markdown().rstrip()]
        if changes := scaled_down(self.study, self.origin.preset, len(seeds)):
            about = self.preset.scaled
            smaller = Table("", ("", "paper", "here"), changes, f"In words: {about}." if about else "")
            more = ["## What was scaled down", smaller.markdown().rstrip(), *more]
        _write_pages(self, folder, f", seeds {', '.join(map(str, seeds))}", more)

    def write_html(self, out: Path) -> None:
        """Write the report."""
        part = StudyPart(self.study.metric, self.tables, self.figures)
        write_report([path for path, _ in self.runs], out, self.study.title, part)

    def publish(self, text: str, folder: Path) -> Self:
        """Write a folder to commit: the study's `text`, small records, and tables and figures made of these."""
        places = [folder / "runs" / slug(run.name) / f"seed-{run.seed}" for run in self.records]
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
        published = replace(self, runs=tuple((place, read_run(place)) for place in places))
        published.write(folder)
        return published

    def _made_with(self) -> Table:
        rows = [("machine", f"{m.cores} cores, {m.cpu}, {m.memory_gb} GB memory") for m in self.origin.machines]
        for package in dict.fromkeys(package for run in self.records for package in run.versions):
            found = dict.fromkeys(run.versions[package] for run in self.records if package in run.versions)
            rows.append((package, ", ".join(found)))
        return Table("", ("", ""), tuple(rows))


@dataclass(frozen=True)
class SuiteResults:
    """The results of the members of a suite that have any, and one table of all."""

    study: Suite
    origin: Origin
    members: Mapping[str, StudyResults]

    @cached_property
    def tables(self) -> list[Table]:
        """The one table of all members."""
        found = [suite_table(name, one.study, one.preset, one.records) for name, one in self.members.items()]
        return [replace(found[0], rows=[row for table in found for row in table.rows])]

    @cached_property
    def figures(self) -> list[Drawn]:
        """A figure a member."""
        return [suite_figure(name, one.study, one.preset, one.records) for name, one in self.members.items()]

    def write(self, folder: Path) -> None:
        """Write tables.md and the figures, of all and of every member; these have a report of their own, too."""
        for name, found in self.members.items():
            found.write(folder / name)
            found.write_html(folder / name / "report.html")
        self._write(folder)

    def _write(self, folder: Path) -> None:
        links = [f"- [{found.study.title}]({name}/tables.md)" for name, found in self.members.items()]
        about = "Each with the whole run's bytes, seconds, what was scaled down, machine and versions:"
        _write_pages(self, folder, "", ["## Studies", about, "\n".join(links)])

    def write_html(self, out: Path) -> None:
        """Write the page of all; the details are in the members' reports."""
        count = sum(len(found.runs) for found in self.members.values())
        lede = f"{count} runs · {len(self.members)} studies · {self.study.paper}"
        sections = [target_section(self.tables), Section("Learning", [Figures(self.figures)])]
        write_page(Page(self.study.title, lede, sections), out)

    def publish(self, text: str, folder: Path) -> Self:
        """Write a folder to commit: every member as a study of its own, and the table and figures made of these."""
        small = {name: found.publish(member_text(found.study), folder / name) for name, found in self.members.items()}
        with writing(folder):
            (folder / "study.toml").write_text(text, encoding="utf-8")
            self.origin.write(folder)
        published = replace(self, members=small)
        published._write(folder)
        return published


def _write_pages(results: StudyResults | SuiteResults, folder: Path, seeds: str, more: Sequence[str]) -> None:
    """Write tables.md, with `more` at its end, and the figures; those of an earlier time go."""
    study, origin = results.study, results.origin
    images = [f"{one.title}:\n\n![{one.title}](figures/{one.name}.svg)" for one in results.figures]
    parts = [
        f"# {study.title}",
        f"{study.paper[:1].upper()}{study.paper[1:]}. Preset {origin.preset}{seeds}.",
        f"    {origin.command}",
        *(one.markdown().rstrip() for one in results.tables),
        *(["## Figures", *images] if images else []),
        *more,
    ]
    with writing(folder):
        for old in (folder / "figures").glob("*.svg"):
            old.unlink()
        write_figures(results.figures, folder / "figures")
        (folder / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
