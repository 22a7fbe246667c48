"""How good models are that `cvfl init` sets up, beside the best of the joined table and of every party alone.

    python benchmarks/quality.py DATA OUT --seeds 5 [--only adult,digits] [--set KEY=VALUE]

    DATA   credit_default/data.csv, adult/adult.data and adult.test, physionet2012/set-a ... as `cvfl data` wants them
    OUT    a folder: quality.jsonl gets a line a run as it ends, and what is there is not run again; README.md the table

A federation's tables are written as files, `cvfl init` is run on them, and what it wrote is trained as it is: with
compression, and without. Each seed is of the split and of training. References have the rows that the federation trains
on and those that it validates on; boosting and logistic regression (ridge for a quantity) of scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from quality_table import published
from quality_tables import FEDERATIONS, GENERATED, Tables
from torch import Tensor
from typer.testing import CliRunner

from cvfl.advise.references import fit_references
from cvfl.cli import app
from cvfl.config.files import load_config
from cvfl.data import VerticalData
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.protocol import Loss
from cvfl.protocol.learning.metrics import BETTER_LOW

EXACT = ["compressor=identity", "server_compressor=identity", "quiet_messages=false"]
RUNS = {
    "auto": [],
    "none": [*EXACT, "local_rows=cached"],
    "auto, batch": ["local_rows=batch", "quiet_messages=false"],
    "none, batch": [*EXACT, "local_rows=batch"],
}
"""What is changed in what `init` wrote; `none` takes the same local steps as `auto`."""
ALL = FEDERATIONS | GENERATED


def main() -> None:
    """Run what is missing and print every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default=",".join(ALL))
    parser.add_argument("--runs", default="references;auto;none", help="also `auto, batch` and `none, batch`")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "quality.jsonl"
    done = [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    seen = {(line["federation"], line["seed"], line["run"]) for line in done}
    for name in asked.only.split(","):
        config = None
        for seed in range(asked.seeds):
            wanted = [run for run in asked.runs.split(";") if (name, seed, run) not in seen]
            if wanted:
                config = config or initialised(ALL[name](asked.data), asked.out / name)
                for line in _lines(name, config, seed, wanted, asked.set):
                    print(_said(line), flush=True)
                    done.append(line)
                    with record.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(line) + "\n")
                    (asked.out / "README.md").write_text(published(done), encoding="utf-8")


def initialised(tables: Tables, folder: Path) -> Path:
    """Write the tables and run `cvfl init` as a user would."""
    files, config = tables.write(folder), folder / "federation.toml"
    parties = [word for name, file in files.items() for word in ("--party", f"{name}={file}")]
    label = ["--id", "id", "--label", f"{tables.holder}.{tables.label}"]
    result = CliRunner().invoke(app, ["init", str(config), *parties, *label, "--force"])
    if result.exit_code:
        raise SystemExit(result.output)
    return config


def _lines(name: str, file: Path, seed: int, wanted: Iterable[str], changes: list[str]) -> Iterator[dict[str, Any]]:
    seeds = [f"seed={seed}", f"data.split_seed={seed}"]
    loaded = load_data(load_config(file, [*seeds, *changes]))
    metric = "rmse" if loaded.data.loss is Loss.SQUARED else "roc_auc"
    for run in wanted:
        began = time.perf_counter()
        line = {"federation": name, "seed": seed, "run": run, "metric": metric}
        if run == "references":
            # F1 needs validation rows for a threshold; the other metrics are of models that had them, too.
            decided = [one for one in _references(loaded.data, seed) if one["party"] is None and "f1" in one]
            models = [*_references(all_but_test(loaded.data), seed)]
            yield line | {"models": models, "f1": {one["model"]: one["f1"] for one in decided}}
            continue
        config = load_config(file, [*seeds, *changes, *RUNS[run]])
        summary = train(config, loaded).summary
        yield line | {
            "test": summary["metrics"]["test"],
            "rounds": summary["rounds"],
            "kept": summary.get("kept"),
            "bytes": {purpose: count for purpose, count in summary["bytes"].items() if purpose != "by_party"},
            "seconds": time.perf_counter() - began,
        }


def _references(data: VerticalData, seed: int) -> Iterator[dict[str, Any]]:
    for one in fit_references(data, seed):
        yield dict[str, Any](one.metrics.test) | {"party": one.party, "model": one.model, "seconds": one.seconds}


def all_but_test(data: VerticalData) -> VerticalData:
    """The same with validation rows among the training rows."""
    return replace(
        data,
        train=tuple(
            torch.cat([a, b])
            for a, b in zip(data.train, data.validation, strict=True)
            if isinstance(a, Tensor) and isinstance(b, Tensor)
        ),
        train_labels=torch.cat([data.train_labels, data.validation_labels]),
        validation=(),
        validation_labels=data.validation_labels[:0],
    )


def _said(line: dict[str, Any]) -> str:
    head = f"{line['federation']} seed {line['seed']} {line['run']}"
    metric = line["metric"]
    if "models" in line:
        best = min if metric in BETTER_LOW else max
        joined = {one["model"]: round(one[metric], 4) for one in line["models"] if one["party"] is None}
        alone = best(one[metric] for one in line["models"] if one["party"] is not None)
        return f"{head}: {metric} joined {joined}, best party {alone:.4f}"
    return (
        f"{head}: {metric} {line['test'][metric]:.4f}, rounds {line['rounds']}, {line['bytes']['total'] / 1e6:.2f} MB, "
        f"{line['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
