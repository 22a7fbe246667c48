"""A small study on built-in data, and the command that runs it: in this process, or in one that can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.runs.record import Record
from cvfl.studies.run import run_task
from cvfl.studies.study import Task

Changed = TypeVar("Changed", bound=Record)

CELLS = {"none": "identity", "lattice b=2": "lattice:bits=2"}


def study_toml(compressors: dict[str, str] = CELLS, rounds: int = 12, seeds: int = 2, data: str = "wine") -> str:
    """The TOML of a study with a cell for each of the compressors; in its preset `paper` the target is out of reach."""
    return f"""
title = "{data.capitalize()}"
paper = "no table of the paper"
metric = "accuracy"
[run]
local_iterations = 3
batch_size = 32
evaluate_every = 2
server_compressor = "scalar:bits=8"
step_size = {{ eta = 0.05 }}
data = {{ name = "{data}", parties = 2 }}
[preset.cpu]
target = 0.6
seeds = {seeds}
scaled = "fewer rounds"
run = {{ rounds = {rounds} }}
[preset.paper]
target = 1.1
seeds = 5
run = {{ rounds = 90, step_size = {{ eta = 0.1 }} }}
{cells(compressors)}"""


def cells(compressors: dict[str, str]) -> str:
    """The cells of a study or of a suite; where the parties do not compress, neither does the server."""
    server = {"identity": ', server_compressor = "identity"'}
    return "".join(
        f'[[cell]]\nname = "{name}"\nrun = {{ compressor = "{spec}"{server.get(spec, "")} }}\n'
        for name, spec in compressors.items()
    )


def cvfl(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@contextmanager
def in_this_process() -> Iterator[None]:
    """Let `cvfl reproduce` run its tasks here, one after another: for tests of what comes of them, not of workers."""

    def run_here(todo: list[Task], workers: int, on_tick: Callable[[], None]) -> Generator[Task, None, None]:
        for task in todo:
            run_task(task)
            on_tick()
            yield task

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(import_module("cvfl.cli.reproduce"), "run_all", run_here)
        yield


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command as a process of its own; whatever it leaves running ends here."""
    command = [sys.executable, "-m", "cvfl.cli", *map(str, arguments)]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def growing(out: Path, runs: int, command: subprocess.Popen[str]) -> None:
    """Wait until so many runs of a study have begun."""
    deadline = time.monotonic() + 120
    while len(list(out.rglob("metrics.jsonl"))) < runs:
        assert command.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def stopped_growing(out: Path) -> bool:
    """Whether no run goes on: their lines, of which there are many a second, stay as they are."""
    time.sleep(1)  # to notice that the command has ended
    before = contents(out)
    time.sleep(1)
    return contents(out) == before


def changed(record: Changed, **values: object) -> Changed:
    """The same record of a run with other values."""
    return record.model_copy(update=values)
