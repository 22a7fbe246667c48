"""Rounds that a run needs which starts from the month before, beside those of one that starts afresh.

    python benchmarks/warm_start.py

Two months of a generated table: other people with the same columns, at three parties. The first month trains a model
afresh; so does the second, and its last validation loss is the mark. Then the second month is trained again from the
first one's models: the first evaluation at or below the mark counts. In the second month what columns mean for the
label has moved by `DRIFT`, as it does in practice.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray
from scipy.stats import norm

from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.federation.train import RunResult, train
from cvfl.rng import stream
from cvfl.serving.bundles import start_from

PARTIES, COLUMNS, ROWS, ROUNDS, SEEDS = ("bank", "insurer", "shop"), 5, 4000, 100, 3
DRIFT = 0.2
"""The second month's weights are those of the first plus so much of others."""


@dataclass(frozen=True)
class Compared:
    """Of one seed: rounds and megabytes to the mark, and the validation loss of the warm start, first and last."""

    seed: int
    mark: float
    cold_rounds: int
    warm_rounds: int | None
    cold_mb: float
    warm_mb: float | None
    first_loss: float
    last_loss: float


def main() -> None:
    """Print a line a seed."""
    for seed in range(SEEDS):
        print(f"seed {seed + 1} of {SEEDS}", file=sys.stderr)
        with TemporaryDirectory() as folder:
            print(json.dumps(asdict(compared(seed, Path(folder)))), flush=True)


def compared(seed: int, folder: Path, rows: int = ROWS, rounds: int = ROUNDS) -> Compared:
    """Train both months, the second one twice."""
    first, second = (config(folder / month, seed, at, rows, rounds) for at, month in enumerate(("april", "may")))
    train(first, out=folder / "run", workers=1)
    cold, warm = train(second, workers=1), train(second, workers=1, start=start_from(folder / "run"))
    lines = [losses(result) for result in (cold, warm)]
    mark = lines[0][-1][1]
    ends = [next((line for line in each if line[1] <= mark), None) for each in lines]
    assert ends[0] is not None  # since its last loss is the mark
    found = ends[1] or (None, None, None)
    return Compared(seed, mark, ends[0][0], found[0], ends[0][2], found[2], lines[1][0][1], lines[1][-1][1])


def losses(result: RunResult) -> list[tuple[int, float, float]]:
    """Of each evaluation: rounds so far, the loss of validation rows, and megabytes of training so far."""
    found = [line for line in result.history if "validation" in line]
    return [(line["round"] + 1, line["validation"]["loss"], training(line["bytes"])) for line in found]


def training(sent: dict[str, int]) -> float:
    """Megabytes in both directions; every round is evaluated here for the sake of the count alone."""
    return (sent["up"] + sent["down"]) / 1e6


def config(folder: Path, seed: int, month: int, rows: int, rounds: int) -> RunConfig:
    """A run of one month, whose tables are written to the folder."""
    folder.mkdir()
    party = {name: {"table": str(path)} for name, path in tables(folder, seed, month, rows).items()}
    party["bank"]["label"] = "target"
    return parse_config(
        {
            "data": {"id": "person", "test_share": 0.1, "validation_share": 0.2},
            "party_model": {"width": 8, "hidden": [32]},
            "server_model": {"name": "mlp", "hidden": [16]},
            "optimizer": {"name": "adam"},
            "step_size": {"eta": 0.0005},
            "local_iterations": 5,
            "batch_size": 256,
            "rounds": rounds,
            "evaluate_every": 1,
            "seed": seed,
            "party": party,
        }
    )


def tables(folder: Path, seed: int, month: int, rows: int) -> dict[str, Path]:
    """A month of people: the label is a threshold of bent sums over all columns, with noise."""
    width = len(PARTIES) * COLUMNS
    x = normal(seed, rows, width, "rows", month)
    W, moved = (normal(seed, width, 8, "weights", at) for at in (0, 1))
    score = np.tanh(x @ (W + DRIFT * month * moved) / 2) @ normal(seed, 8, 1, "ends")
    target = np.where((score + 0.3 * normal(seed, rows, 1, "noise", month))[:, 0] > 0, "yes", "no")
    ids, paths = [f"p{month}-{n}" for n in range(rows)], {}
    for at, name in enumerate(PARTIES):
        own = x[:, at * COLUMNS : (at + 1) * COLUMNS]
        columns = {"person": ids} | {f"{name}_{n}": own[:, n] for n in range(COLUMNS)}
        paths[name] = folder / f"{name}.csv"
        pyarrow.csv.write_csv(pa.table(columns | ({"target": target} if name == "bank" else {})), paths[name])
    return paths


def normal(seed: int, rows: int, columns: int, *address: str | int) -> NDArray[np.float64]:
    """Normal numbers that belong to an address."""
    u = stream(seed, "warm start", *address).uniform(rows * columns)
    found: NDArray[np.float64] = norm.ppf(np.clip(u, 1e-9, 1 - 1e-9)).reshape(rows, columns)
    return found


if __name__ == "__main__":
    main()
