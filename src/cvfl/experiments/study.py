"""A study: one TOML with the settings that are compared, run over seeds, side by side, each run resumable.

OUT/runs/CELL/seed-N/     run directories, complete ones only
OUT/state/                what unfinished runs need to be taken up again
OUT/tables.md, OUT/report.html, OUT/figures/*.svg
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError

from cvfl.data.builtin import BUILTIN
from cvfl.errors import ConfigError, suggest
from cvfl.experiments.config import RunConfig, parse_config
from cvfl.experiments.keep import Keep, read_lines
from cvfl.experiments.run import train
from cvfl.experiments.sections import Section

PRESETS = ("cpu", "paper")


class Preset(Section):
    """How large a study is run: the paper's size, or one for two cores; `scaled` says what is smaller."""

    target: float
    seeds: int = Field(default=3, ge=1)
    scaled: str = ""
    run: dict[str, Any] = Field(default_factory=dict)


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


def study_names() -> list[str]:
    """The studies that come with the software."""
    return sorted(
        path.name.removesuffix(".toml")
        for path in resources.files("cvfl.studies").iterdir()
        if path.name.endswith(".toml")
    )


def load_study(name: str) -> Study:
    """A study by name, or from a TOML file of the user's own."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        text = path.read_text(encoding="utf-8")
    elif name in study_names():
        text = (resources.files("cvfl.studies") / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise ConfigError(f"unknown study {name!r}{suggest(name, study_names())}")
    try:
        return Study.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@dataclass(frozen=True)
class Task:
    """One run of a study: a cell with a seed."""

    cell: str
    seed: int
    config: RunConfig
    out: Path
    state: Path

    @property
    def complete(self) -> bool:
        """Whether it has run to its end."""
        return (self.out / "summary.json").exists()

    @property
    def share(self) -> float:
        """How much of it is done, as recorded by whoever runs it."""
        if self.complete:
            return 1.0
        lines = read_lines(self.state / "metrics.jsonl")
        if not lines:
            return 0.0
        rounds, epochs = self.config.rounds, self.config.epochs
        return float(lines[-1]["epoch"] / epochs if epochs else (lines[-1]["round"] + 1) / (rounds or 1))


def tasks(study: Study, preset: str, seeds: int | None, data: Path, out: Path) -> list[Task]:
    """All runs of a study, seed by seed, so that the first results of all cells come early; `data` holds data sets."""
    if preset not in study.preset:
        raise ConfigError(f"there is no preset {preset!r}{suggest(preset, study.preset)}")
    chosen = study.preset[preset]
    found = []
    for seed in range(seeds or chosen.seeds):
        for cell in study.cell:
            values = merged(merged(study.run, chosen.run), cell.run)
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


def run_task(task: Task) -> str:
    """Run one task to its end, taking up what is kept of it; one thread, so that runs side by side do not fight."""
    torch.set_num_threads(1)
    keep = Keep(task.state)
    train(task.config, out=task.out, name=task.cell, keep=keep, workers=1)
    keep.forget()
    return task.cell


def run_all(waiting: list[Task], workers: int, on_tick: Callable[[], None]) -> Iterator[Task]:
    """Run tasks side by side; each is given back when it is complete. An error in one ends all."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the workers
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=context) as pool:
        running: dict[Future[str], Task] = {pool.submit(run_task, task): task for task in waiting}
        try:
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


def compact(source: Path, target: Path) -> None:
    """A run directory small enough to publish: the summary, and the rounds that were evaluated."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "summary.json").write_bytes((source / "summary.json").read_bytes())
    lines = [line for line in read_lines(source / "metrics.jsonl") if "train" in line]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (target / "metrics.jsonl").write_text(text, encoding="utf-8")
