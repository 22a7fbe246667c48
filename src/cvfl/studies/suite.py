"""A suite: the same cells over several studies, each of which keeps its data, models, metric and presets.

OUT/study.toml, study.json    the suite as it was run; preset, command and machine
OUT/MEMBER/                   a study with the suite's cells, as `study.py` says
OUT/tables.md, report.html    all members in one table
OUT/figures/MEMBER.svg        all cells of a member on one pair of axes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from cvfl.config.sections import Section
from cvfl.config.toml import to_toml
from cvfl.errors import suggest
from cvfl.studies.study import Cell, Study, Task, checked, load_study, merged, preset_of, study_values, tasks

BASELINE = "none"
"""The cell that the others are compared with."""


@dataclass(frozen=True)
class Suite:
    """Studies by name, all with the same cells."""

    title: str
    paper: str
    members: Mapping[str, Study]


@dataclass(frozen=True)
class Part:
    """A study and its folder: a lone one without a name, or the member of a suite."""

    name: str
    study: Study
    folder: Path


class SuiteFile(Section):
    """What the TOML of a suite says; `preset.cpu.MEMBER` holds what is different in that study's `preset.cpu`."""

    title: str
    paper: str
    suite: tuple[str, ...] = Field(min_length=1)
    preset: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    cell: tuple[Cell, ...]

    @model_validator(mode="after")
    def _named(self) -> Self:
        if BASELINE not in [cell.name for cell in self.cell]:
            raise ValueError(f"there is no cell {BASELINE!r} to compare the others with")
        for name in self.suite:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or self.suite.count(name) > 1:
                raise ValueError(f"suite: {name!r} is to be the name of a study, without .toml, and only once")
        for key, changes in self.preset.items():
            for name in changes:
                if name not in self.suite:
                    raise ValueError(f"preset.{key}: the suite has no study {name!r}{suggest(name, self.suite)}")
        return self


def load(name: str) -> Study | Suite:
    """A study or a suite by name, or from a TOML file of the user's own."""
    values = study_values(name)
    if "suite" not in values:
        return load_study(name)
    file = checked(SuiteFile, values, name)
    return Suite(file.title, file.paper, {member: _member(file, member, name) for member in file.suite})


def parts_of(chosen: Study | Suite, out: Path) -> list[Part]:
    """The studies to run, each with its folder."""
    match chosen:
        case Study():
            return [Part("", chosen, out)]
        case Suite():
            return [Part(name, study, out / name) for name, study in chosen.members.items()]


def all_tasks(parts: Sequence[Part], preset: str, seeds: int | None, data: Path) -> list[Task]:
    """The runs of all parts, seed by seed, so that the first results of all come early."""
    found = [
        replace(task, member=part.name)
        for part in parts
        for task in tasks(part.study, preset, seeds, data, part.folder)
    ]
    return sorted(found, key=lambda task: task.seed)


def member_text(study: Study) -> str:
    """The member of a suite as a TOML of its own."""
    return to_toml(study.model_dump(mode="json", exclude_defaults=True))


def _member(file: SuiteFile, member: str, source: str) -> Study:
    """A study with the cells of a suite, and what the suite changes in its presets."""
    study = load_study(_found(member, source))
    changes = {key: changed[member] for key, changed in file.preset.items() if member in changed}
    for key in changes:
        preset_of(study, key)
    own = study.model_dump(mode="json", exclude_defaults=True)
    for preset in own["preset"].values():
        preset.pop("cells", None)  # what belongs to cells that are replaced
    cells = [cell.model_dump(mode="json", exclude_defaults=True) for cell in file.cell]
    return checked(Study, merged(own, {"paper": file.paper, "preset": changes, "cell": cells}), f"{source}, {member}")


def _found(member: str, source: str) -> str:
    """Where a member is: beside the suite as it was run, or as the user's own TOML; else it is one by name."""
    beside = Path(source).parent
    files = [beside / member / "study.toml", beside / f"{member}.toml"] if source.endswith(".toml") else []
    return next((str(path) for path in files if path.is_file()), member)
