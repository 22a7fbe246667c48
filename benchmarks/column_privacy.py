"""What the server gets back of columns under secure aggregation, by width of embeddings and `reconstruction_penalty`.

    python benchmarks/column_privacy.py DATA OUT --widths 4,2,1 --penalties 0,0.1 --seeds 1

    DATA   the folder of UCI credit default, as `cvfl data` wants it
    OUT    columns.jsonl gets a line a run as it ends, and what is there is not run again

Runs are those of the study privacy_credit with secure aggregation: 5 epochs, Q = 10, a grid of 4 bits, server model
`sum`. R² is the highest over parties and attacks, of a fresh attacker who knows half of the audited rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from cvfl.audit.audit import audit_run
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.federation.train import train


def main() -> None:
    """Run what is missing and print every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--widths", default="4,2,1")
    parser.add_argument("--penalties", default="0,0.1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "columns.jsonl"
    widths, penalties = asked.widths.split(","), asked.penalties.split(",")
    for seed, width, penalty in itertools.product(range(asked.seeds), map(int, widths), map(float, penalties)):
        key = {"width": width, "penalty": penalty, "seed": seed, "epochs": asked.epochs}
        if any(key.items() <= line.items() for line in _lines(record)):
            continue
        line = key | _measured(_config(asked.data, width, penalty, seed, asked.epochs))
        with record.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
    print("\n".join(table(list(_lines(record)))))


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A row a width and penalty: mean and range over seeds; of ROC AUC also less that of the widest, by seed."""
    widest = {one["seed"]: one["roc_auc"] for one in sorted(lines, key=lambda one: one["width"]) if not one["penalty"]}
    yield "| width | penalty | seeds | test ROC AUC | minus the widest | training MB | server: R² | a party: R² |"
    yield "|---|---|---|---|---|---|---|---|"
    for width, penalty in sorted({(-one["width"], one["penalty"]) for one in lines}):
        some = [one for one in lines if (one["width"], one["penalty"]) == (-width, penalty)]
        auc, less = [one["roc_auc"] for one in some], [one["roc_auc"] - widest[one["seed"]] for one in some]
        reader = {who: _ranged([one["r2"][who] for one in some], 3) for who in ("server", "a party")}
        yield (
            f"| {-width} | {penalty:g} | {len(some)} | {mean(auc):.4f} | {_ranged(less, 4)} | "
            f"{some[0]['training_mb']:.2f} | {reader['server']} | {reader['a party']} |"
        )


def _ranged(values: Sequence[float], digits: int) -> str:
    """Mean, and the lowest and highest."""
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})".replace("-", "−")


def _lines(record: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, record.read_text(encoding="utf-8").splitlines() if record.exists() else [])


def _config(data: Path, width: int, penalty: float, seed: int, epochs: int) -> RunConfig:
    return parse_config(
        {
            "data": {"name": "credit_default", "path": str(data)},
            "seed": seed,
            "epochs": epochs,
            "batch_size": 256,
            "local_iterations": 10,
            "step_size": {"eta": 0.05},
            "compressor": "scalar:bits=4,low=-1,high=1",
            "server_compressor": "scalar:bits=8",
            "party_model": {"width": width, "hidden": [32]},
            "server_model": {"name": "sum", "hidden": [16]},
            "privacy": {"aggregation": "secure", "reconstruction_penalty": penalty or None},
        }
    )


def _measured(config: RunConfig) -> dict[str, Any]:
    """A run and its audit."""
    with tempfile.TemporaryDirectory() as folder:
        summary = train(config, out=Path(folder) / "run").summary
        features = audit_run(Path(folder) / "run").features
    sent, found = summary["bytes"], {"server": 0.0, "a party": 0.0, "server, at the end": 0.0}
    for one in features:
        reader = "server" if any("server" in observer for observer in one.observers) else "a party"
        found[reader] = max(found[reader], one.r2)
        if reader == "server" and one.stage == "end":
            found["server, at the end"] = max(found["server, at the end"], one.r2)
    return {
        "roc_auc": summary["metrics"]["test"]["roc_auc"],
        "training_mb": (sent["up"] + sent["down"]) / 1e6,
        "r2": found,
    }


if __name__ == "__main__":
    main()
