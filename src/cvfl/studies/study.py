"""A study: one TOML with the settings that are compared, run over seeds, side by side, each run resumable.

OUT/study.toml, study.json   the study as it was run; preset, command and machine
OUT/runs/CELL/seed-N/        run directories, complete ones only
OUT/state/                   what unfinished runs need to be taken up again
OUT/latency.jsonl            seconds of rounds over gRPC, of studies of latency
OUT/tables.md, report.html, figures/*.svg
"""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import tomllib
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib import resources
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import torch
from pydantic import Field, ValidationError, model_validator

from cvfl.config.schema import RunConfig, parse_config
from cvfl.config.sections import Section
from cvfl.data.sets.builtin import BUILTIN
from cvfl.errors import ConfigError, suggest
from cvfl.federation.keep import Keep
from cvfl.federation.load import Loaded, load_data
from cvfl.federation.train import Progress as RunProgress
from cvfl.federation.train import train
from cvfl.runs.journal import last_line

PRESETS = ("cpu", "paper")
S = TypeVar("S", bound=Section)


class Preset(Section):
    """How large a study is run: the paper's size, or one for two cores; `scaled` says what is smaller.

    `cells` holds what only some cells have at this size, by their names.
    """

    target: float
    seeds: int = Field(default=3, ge=1)
    scaled: str = ""
    run: dict[str, Any] = Field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = Field(default_factory=dict)


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
    run: dict[str, Any]
    preset: dict[str, Preset]
    cell: tuple[Cell, ...]

    @model_validator(mode="after")
    def _cells_exist(self) -> Self:
        names = [cell.name for cell in self.cell]
        for key, preset in self.preset.items():
            for name in preset.cells:
                if name not in names:
                    raise ValueError(f"preset.{key}.cells: there is no cell {name!r}{suggest(name, names)}")
        return self


def study_names() -> list[str]:
    """The studies that come with the software."""
    return sorted(
        path.name.removesuffix(".toml")
        for path in resources.files("cvfl.studies").iterdir()
        if path.name.endswith(".toml")
    )


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


def load_study(name: str) -> Study:
    """A study by name, or from a TOML file of the user's own."""
    values = study_values(name)
    if "suite" in values:
        raise ConfigError(f"{name} is a suite of studies, not a study")
    return checked(Study, values, name)


def checked(kind: type[S], values: Mapping[str, Any], name: str) -> S:
    """The values as a section; the first thing wrong is said in one line with the name of what they are from."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ConfigError(": ".join([name, *([where] if where else []), what])) from None


@dataclass(frozen=True)
class Task:
    """One run of a study: a cell with a seed; `member` names the study where several run in one suite."""

    cell: str
    seed: int
    config: RunConfig
    out: Path
    state: Path
    member: str = ""

    @property
    def label(self) -> str:
        """What a display calls it."""
        return f"{self.member}{': ' * bool(self.member)}{self.cell}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The folder of its study, as `tasks` took it."""
        return self.out.parents[2]

    @property
    def complete(self) -> bool:
        """Whether it has run to its end."""
        return (self.out / "summary.json").exists()

    @property
    def share(self) -> float:
        """How much of it is done, as recorded by whoever runs it."""
        if self.complete:
            return 1.0
        line = last_line(self.state / "metrics.jsonl")
        if line is None:
            return 0.0
        rounds, epochs = self.config.rounds, self.config.epochs
        return float(line["epoch"] / epochs if epochs else (line["round"] + 1) / (rounds or 1))


def preset_of(study: Study, name: str) -> Preset:
    """A preset by name."""
    if name not in study.preset:
        raise ConfigError(f"there is no preset {name!r}{suggest(name, study.preset)}")
    return study.preset[name]


def tasks(study: Study, preset: str, seeds: int | None, data: Path, out: Path) -> list[Task]:
    """All runs of a study, seed by seed, so that the first results of all cells come early; `data` holds data sets."""
    chosen = preset_of(study, preset)
    found = []
    for seed in range(seeds or chosen.seeds):
        for cell in study.cell:
            values = merged(merged(merged(study.run, chosen.run), cell.run), chosen.cells.get(cell.name, {}))
            values["seed"] = seed
            if (name := values["data"]["name"]) not in BUILTIN:
                values = merged(values, {"data": {"path": str(data / name)}})
            config = parse_config(values, f"{study.title}, {cell.name}")
            place = Path(slug(cell.name)) / f"seed-{seed}"
            found.append(Task(cell.name, seed, config, out / "runs" / place, out / "state" / place))
    return found


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The values of both, those of `change` where they meet, section by section."""
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def slug(name: str) -> str:
    """A name as a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def run_task(task: Task, on_round: Callable[[RunProgress], None] = lambda progress: None) -> str:
    """Run one task to its end, taking up what is kept of it; one thread, so that runs side by side do not fight."""
    torch.set_num_threads(1)
    keep = Keep(task.state)
    train(task.config, _data(task.config), task.out, task.cell, on_round, keep=keep, workers=1)
    keep.forget()
    return task.cell


_known: dict[str, Loaded] = {}


def _data(config: RunConfig) -> Loaded:
    """The data of a run; that of the last one if it is the same, since a worker runs many cells of one seed."""
    key = config.model_dump_json(include={"data", "party", "precision", "seed"})
    if key not in _known:
        _known.clear()
        _known[key] = load_data(config)
    return _known[key]


def run_all(waiting: list[Task], workers: int, on_tick: Callable[[], None]) -> Generator[Task, None, None]:
    """Run tasks side by side; each is given back when it is complete. An error in one ends all, and so does closing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the workers
    context = multiprocessing.get_context("spawn")
    running: dict[Future[str], Task] = {}
    with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=context, initializer=_end_with_parent) as pool:
        try:
            for task in waiting:
                running[pool.submit(run_task, task)] = task
            while running:
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                on_tick()
                for future in done:
                    task = running.pop(future)
                    future.result()
                    yield task
        except BaseException:
            for future in running:
                future.cancel()
            for process in list((pool._processes or {}).values()):  # there is no public way to stop a worker
                process.terminate()
            raise


def _end_with_parent() -> None:
    """In a worker: end with the parent, even if that is killed; else two might go on with one run after --resume."""

    def watch(parent: BaseProcess) -> None:
        parent.join()
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
