"""What a suite leaves for readers: that of every member in its own folder, and one table and page of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cvfl.errors import DataError, writing
from cvfl.report.html import Figures, Page, Section, write_page
from cvfl.report.report import target_section
from cvfl.report.svg import Drawn
from cvfl.report.table import Table
from cvfl.studies.origin import Origin
from cvfl.studies.publish import Results, shown, write_pages
from cvfl.studies.study import Study
from cvfl.studies.suite import Suite, member_text, parts_of
from cvfl.studies.suite_tables import Member, suite_figures, suite_table


@dataclass(frozen=True)
class SuiteResults:
    """The recorded runs of a suite, by the members that have any."""

    suite: Suite
    origin: Origin
    members: Mapping[str, Results]

    def __post_init__(self) -> None:
        if not self.members:
            raise DataError(f"no run belongs to the suite {self.suite.title!r}; name the folder that holds its studies")

    @cached_property
    def tables(self) -> list[Table]:
        """The one table of all members."""
        return [suite_table(self._members)]

    @cached_property
    def figures(self) -> list[Drawn]:
        """A figure a member."""
        return suite_figures(self._members)

    @property
    def _members(self) -> list[Member]:
        return [
            Member(name, found.study, found.preset, [run for _, run in found.runs])
            for name, found in self.members.items()
        ]

    def write(self, folder: Path) -> None:
        """Write tables.md and the figures, of all and of every member; these have a report of their own, too."""
        for name, found in self.members.items():
            found.write(folder / name)
            found.write_html(folder / name / "report.html")
        self._write(folder)

    def _write(self, folder: Path) -> None:
        write_pages(folder, self._markdown(), self.figures)

    def write_html(self, out: Path) -> None:
        """Write the page of all; the details are in the members' reports."""
        count = sum(len(found.runs) for found in self.members.values())
        lede = f"{count} runs · {len(self.members)} studies · {self.suite.paper}"
        sections = [target_section(self.tables), Section("Learning", [Figures(self.figures)])]
        write_page(Page(self.suite.title, lede, sections), out)

    def publish(self, text: str, folder: Path) -> None:
        """Write a folder to commit: every member as a study of its own, and the table and figures made of these."""
        small = {name: found.publish(member_text(found.study), folder / name) for name, found in self.members.items()}
        with writing(folder):
            (folder / "study.toml").write_text(text, encoding="utf-8")
            self.origin.write(folder)
        replace(self, members=small)._write(folder)

    def _markdown(self) -> str:
        suite, origin = self.suite, self.origin
        links = [f"- [{found.study.title}]({name}/tables.md)" for name, found in self.members.items()]
        parts = [
            f"# {suite.title}",
            f"{suite.paper[:1].upper()}{suite.paper[1:]}. Preset {origin.preset}.",
            f"    {origin.command}",
            *(one.markdown().rstrip() for one in self.tables),
            *shown(self.figures),
            "## Studies",
            "Each with the whole run's bytes, seconds, what was scaled down, machine and versions:",
            "\n".join(links),
        ]
        return "\n\n".join(parts) + "\n"


def read_results(
    chosen: Study | Suite, found: Sequence[Path], folder: Path, origin: Callable[[Path], Origin]
) -> Results | SuiteResults:
    """The results of a study or a suite of which `found` are run directories; `origin` is asked for each folder."""
    if isinstance(chosen, Study):
        return Results.of(chosen, origin(folder), found, folder)
    members = {}
    for part in parts_of(chosen, folder):
        if own := [path for path in found if path.is_relative_to(part.folder)]:
            members[part.name] = Results.of(part.study, origin(part.folder), own, part.folder)
    return SuiteResults(chosen, origin(folder), members)
