"""Seconds a round over gRPC when the way is long: a few tens of rounds of every cell, with emulated latency.

Only the time of a round is measured here. How many rounds a cell needs is known from its recorded runs, since a run is
the same bits on every runtime.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import tomlkit
from pydantic import TypeAdapter, ValidationError

from cvfl.config.schema import RunConfig
from cvfl.errors import DataError
from cvfl.federation.processes import train_grpc
from cvfl.runs.journal import read_lines
from cvfl.scratch import Scratch
from cvfl.studies.study import Task

ROUND_TRIPS = (1, 10, 50, 200)
"""Milliseconds, as in the paper's Table 5."""
FILE = "latency.jsonl"


@dataclass(frozen=True)
class Measured:
    """The rounds of one cell at one round trip: their seconds, without the first and without evaluation."""

    cell: str
    round_trip_ms: int
    seconds: tuple[float, ...]

    @property
    def seconds_a_round(self) -> float:
        """The median."""
        return statistics.median(self.seconds)


def rounds_to_time(Q: int) -> int:
    """Few rounds where each is long."""
    return 40 if Q <= 1 else 20 if Q <= 10 else 12


def read_measured(folder: Path) -> list[Measured]:
    """What has been measured for the study in this folder."""
    try:
        return TypeAdapter(list[Measured]).validate_python(read_lines(folder / FILE))
    except ValidationError:
        raise DataError(f"{folder / FILE}: not as `cvfl reproduce` writes it; remove it to measure again") from None


def write_measured(folder: Path, measured: Sequence[Measured]) -> None:
    """Write the file anew."""
    text = "".join(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in measured)
    (folder / FILE).write_text(text, encoding="utf-8")


def measure(tasks: Sequence[Task], out: Path, on_start: Callable[[str, int], None] = lambda cell, ms: None) -> None:
    """Measure each cell of these tasks at each round trip that `out` has no measurement of, and add it there."""
    known = read_measured(out)
    done = {(one.cell, one.round_trip_ms) for one in known}
    cells: dict[str, Task] = {}
    for task in tasks:
        cells.setdefault(task.cell, task)  # the seed does not matter to the time
    for cell, round_trip in product(cells, ROUND_TRIPS):
        if (cell, round_trip) not in done:
            on_start(cell, round_trip)
            known.append(Measured(cell, round_trip, _timed(cells[cell].anywhere().config, round_trip)))
            write_measured(out, known)


def _timed(config: RunConfig, round_trip: int) -> tuple[float, ...]:
    rounds = rounds_to_time(config.local_iterations)
    short = config.model_copy(update={"rounds": rounds, "epochs": None, "evaluate_every": rounds})
    with Scratch() as scratch:
        path, out = scratch.path / "run.toml", scratch.path / "run"
        path.write_text(tomlkit.dumps(short.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
        train_grpc(path, [], out, round_trip_ms=round_trip)
        lines = read_lines(out / "metrics.jsonl")
    # The first round waits for all to start, and an evaluation is no part of the round.
    return tuple(round(line["seconds"], 5) for line in lines[1:] if "test" not in line)
