"""A study: one TOML with the settings that are compared (cells), at the sizes they are run at (presets), over seeds.

OUT/study.toml, study.json   the study as it was run; preset, command and machine
OUT/runs/CELL/seed-N/        run directories; one that is not complete has its state, and is taken up again
OUT/latency.jsonl            seconds of rounds over gRPC, of studies of latency
OUT/tables.md, report.html, figures/*.svg

A suite is a study of studies: the same cells in each, which keeps its data, models, metric and presets and has all of
the above in OUT/MEMBER/. OUT itself then has one table of all members, and a figure a member.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomlkit
from pydantic import Field, ValidationError, model_validator

from cvfl.config.files import merged, parse_config
from cvfl.config.schema import RunConfig
from cvfl.data.sets.catalogue import READERS
from cvfl.errors import ConfigError, suggest
from cvfl.runs.directory import is_under_way
from cvfl.runs.journal import last_line
from cvfl.types import Section

BASELINE = "none"
"""How the names begin of a suite's cells without compression, which the others are compared with."""
S = TypeVar("S", bound=Section)


class Preset(Section):
    """How large a study is run: the paper's size, or one for two cores; `scaled` says what is smaller.

    `only` names the cells that are run at this size, if not all are; `cells` holds what only some of them have.
    """

    target: float
    seeds: int = Field(default=3, ge=1)
    scaled: str = ""
    run: dict[str, Any] = Field(default_factory=dict)
    only: tuple[str, ...] = ()
    cells: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def runs(self, cell: str) -> bool:
        """Whether a cell is run at this size."""
        return not self.only or cell in self.only


class Cell(Section):
    """One row of a study's table: its name and the keys in which it differs."""

    name: str
    run: dict[str, Any] = Field(default_factory=dict)


class Study(Section):
    """What is compared, by which metric, and where the paper shows it."""

    title: str
    paper: str
    metric: str
    unit: Literal["MB", "GB"] = "MB"
    table: Literal["target", "latency", "formula"] = "target"
    directions: int = Field(default=1, ge=1)
    """Numbers of a row that the loss sees: one less than there are classes."""
    run: dict[str, Any]
    preset: dict[str, Preset]
    cell: tuple[Cell, ...]

    @model_validator(mode="after")
    def _cells_exist(self) -> Self:
        names = [cell.name for cell in self.cell]
        for key, preset in self.preset.items():
            for part, named in (("cells", tuple(preset.cells)), ("only", preset.only)):
                for name in named:
                    if name not in names:
                        raise ValueError(f"preset.{key}.{part}: there is no cell {name!r}{suggest(name, names)}")
        return self


class SuiteFile(Section):
    """The TOML of a suite; `preset.cpu.MEMBER` holds what is different in that study's `preset.cpu`."""

    title: str
    paper: str
    suite: tuple[str, ...] = Field(min_length=1)
    preset: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    cell: tuple[Cell, ...]

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not any(is_baseline(cell.name) for cell in self.cell):
            raise ValueError(f"there is no cell {BASELINE!r} to compare the others with")
        for name in self.suite:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or self.suite.count(name) > 1:
                raise ValueError(f"suite: {name!r} is to be the name of a study, without .toml, and only once")
        for key, changes in self.preset.items():
            for name in changes:
                if name not in self.suite:
                    raise ValueError(f"preset.{key}: the suite has no study {name!r}{suggest(name, self.suite)}")
        return self


def is_baseline(cell: str) -> bool:
    """Whether a cell stands for no compression: "none", or "none, Q=5"."""
    return cell.partition(",")[0] == BASELINE


@dataclass(frozen=True)
class Suite:
    """Studies that run together, by their names; a study that runs alone is the only member and has no name."""

    title: str
    paper: str
    members: Mapping[str, Study]


def study_names() -> list[str]:
    """The studies that come with the software."""
    files = [path.name for path in resources.files("cvfl.studies").iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def study_text(name: str) -> str:
    """The TOML of a study by name, or of a file of the user's own."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        return path.read_text(encoding="utf-8")
    if name in study_names():
        return (resources.files("cvfl.studies") / f"{name}.toml").read_text(encoding="utf-8")
    raise ConfigError(f"unknown study {name!r}{suggest(name, study_names())}")


def study_values(name: str) -> dict[str, Any]:
    """What the TOML of a study says, as it stands there."""
    try:
        return tomllib.loads(study_text(name))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None


def load(name: str) -> Suite:
    """The studies that a study or a suite runs: by name, or from a TOML file of the user's own."""
    values = study_values(name)
    if "suite" not in values:
        study = checked(Study, values, name)
        return Suite(study.title, study.paper, {"": study})
    file = checked(SuiteFile, values, name)
    return Suite(file.title, file.paper, {member: _member(file, member, name) for member in file.suite})


def load_study(name: str) -> Study:
    """A study by name, or from a TOML file of the user's own."""
    values = study_values(name)
    if "suite" in values:
        raise ConfigError(f"{name} is a suite of studies, not a study")
    return checked(Study, values, name)


def _member(file: SuiteFile, member: str, source: str) -> Study:
    """A study with the cells of a suite, and what the suite changes in its presets."""
    study = load_study(_found(member, source))
    changes = {key: changed[member] for key, changed in file.preset.items() if member in changed}
    for key in changes:
        preset_of(study, key)
    own = study.model_dump(mode="json", exclude_defaults=True)
    for preset in own["preset"].values():
        for part in ("cells", "only"):  # what belongs to cells that are replaced
            preset.pop(part, None)
    cells = [cell.model_dump(mode="json", exclude_defaults=True) for cell in file.cell]
    return checked(Study, merged(own, {"paper": file.paper, "preset": changes, "cell": cells}), f"{source}, {member}")


def _found(member: str, source: str) -> str:
    """Where a member is: beside the suite as it was run, or as the user's own TOML; else it is one by name."""
    beside = Path(source).parent
    files = [beside / member / "study.toml", beside / f"{member}.toml"] if source.endswith(".toml") else []
    return next((str(path) for path in files if path.is_file()), member)


def checked(kind: type[S], values: Mapping[str, Any], name: str) -> S:
    """The values as a section; the first thing wrong is said in one line with the name of what they are from."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ConfigError(": ".join([name, *([where] if where else []), what])) from None


def member_text(study: Study) -> str:
    """The member of a suite as a TOML of its own: a section a preset and a cell, what their keys hold inline."""
    values = study.model_dump(mode="json", exclude_defaults=True)
    run, presets, cells = (values.pop(key) for key in ("run", "preset", "cell"))
    sections = [
        [*_pairs(values)],
        ["[run]", *_pairs(run)],
        *([f"[preset.{_key(name)}]", *_pairs(preset)] for name, preset in presets.items()),
        *(["[[cell]]", *_pairs(cell)] for cell in cells),
    ]
    return "\n\n".join(map("\n".join, sections)) + "\n"


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_inline(value)}" for key, value in values.items())


def _inline(value: Any) -> str:
    """A value as `tomlkit` writes it, but for the spaces inside the braces of a table."""
    match value:
        case Mapping():
            return f"{{ {', '.join(_pairs(value))} }}" if value else "{}"
        case list():
            return f"[{', '.join(map(_inline, value))}]"
    return str(tomlkit.item(value).as_string())


def _key(name: str) -> str:
    return tomlkit.key(name).as_string()


@dataclass(frozen=True)
class Task:
    """One run of a study: a cell with a seed; `member` names the study where several run in one suite."""

    cell: str
    seed: int
    config: RunConfig
    out: Path
    member: str = ""

    @property
    def label(self) -> str:
        """What a display calls it."""
        return f"{self.member}{': ' * bool(self.member)}{self.cell}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The folder of its study, as `tasks` took it."""
        return self.out.parents[2]

    def anywhere(self) -> Self:
        """The same with its data by absolute path, to be run in another working directory."""
        data = self.config.data
        path = data.path.absolute() if data.path else None
        return replace(self, config=self.config.model_copy(update={"data": data.model_copy(update={"path": path})}))

    @property
    def complete(self) -> bool:
        """Whether it has run to its end."""
        return (self.out / "summary.json").exists() and not is_under_way(self.out)

    @property
    def share(self) -> float:
        """How much of it is done, as recorded by whoever runs it."""
        if self.complete:
            return 1.0
        line = last_line(self.out / "metrics.jsonl")
        if line is None:
            return 0.0
        rounds, epochs = self.config.rounds, self.config.epochs
        return float(line["epoch"] / epochs if epochs else (line["round"] + 1) / (rounds or 1))


def preset_of(study: Study, name: str) -> Preset:
    """A preset by name."""
    if name not in study.preset:
        raise ConfigError(f"there is no preset {name!r}{suggest(name, study.preset)}")
    return study.preset[name]


def all_tasks(suite: Suite, preset: str, seeds: int | None, data: Path, out: Path) -> list[Task]:
    """The runs of all members, seed by seed, so that the first results of all come early; `data` holds data sets."""
    found = [
        replace(task, member=name)
        for name, study in suite.members.items()
        for task in tasks(study, preset, seeds, data, out / name)
    ]
    return sorted(found, key=lambda task: task.seed)


def tasks(study: Study, preset: str, seeds: int | None, data: Path, out: Path) -> list[Task]:
    """The runs of one study, seed by seed."""
    chosen = preset_of(study, preset)
    found = []
    for seed in range(seeds or chosen.seeds):
        for cell in (cell for cell in study.cell if chosen.runs(cell.name)):
            values = merged(merged(merged(study.run, chosen.run), cell.run), chosen.cells.get(cell.name, {}))
            values = merged(values, {"seed": seed, "data": {"split_seed": seed}})
            if "path" in READERS[name := values["data"]["name"]].takes:
                values = merged(values, {"data": {"path": str(data / name)}})
            config = parse_config(values, f"{study.title}, {cell.name}")
            found.append(Task(cell.name, seed, config, out / "runs" / slug(cell.name) / f"seed-{seed}"))
    return found


def slug(name: str) -> str:
    """A name as a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
