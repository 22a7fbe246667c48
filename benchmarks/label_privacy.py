"""What randomised labels cost: the models of the federation and of the holder, scored by the true labels.

    python benchmarks/label_privacy.py DATA OUT --seeds 5 [--only NAME] [--epsilons open,2,1] [--audits 3] [--set K=V]

    DATA   as for quality.py
    OUT    a folder: labels.jsonl gets a line a run as it ends, and what is there is not run again; README.md the table

Tables are those of quality.py as `cvfl init` sets them up; each seed is of the split, of training and of the draw. Of
each run with randomised labels, by the true labels of test rows, which its holder alone has:

    public   the model of the federation
    private  the holder's: `privacy.private_model`, a last layer fitted to the true labels of training rows
    stacked  boosting on the public model's output and on the holder's own columns, fitted likewise; no part of cvfl

The first `--audits` seeds with an epsilon have the joint attack on their labels: the last table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from label_privacy_table import published
from numpy.typing import NDArray
from quality import initialised
from quality_tables import FEDERATIONS
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from cvfl.audit.audit import audit_told
from cvfl.config.files import load_config
from cvfl.data import VerticalData
from cvfl.federation.rows.load import Loaded, load_data
from cvfl.federation.train import RunResult, train

USED = ("credit_default", "physionet", "adult")
Floats = NDArray[np.float64]


def main() -> None:
    """Run what is missing and print every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default=",".join(USED))
    parser.add_argument("--epsilons", default="open,2,1")
    parser.add_argument("--audits", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "labels.jsonl"
    for name in asked.only.split(","):
        for seed in range(asked.seeds):
            for epsilon in (None if text == "open" else float(text) for text in asked.epsilons.split(",")):
                audits = seed < asked.audits and epsilon is not None
                if not _done(record, name, seed, epsilon, audits):
                    line = _run(name, asked.data, asked.out / name, seed, epsilon, audits, asked.set)
                    print(json.dumps(line), flush=True)
                    with record.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    (asked.out / "README.md").write_text(published(_lines(record)), encoding="utf-8")


def _done(record: Path, name: str, seed: int, epsilon: float | None, audits: bool) -> bool:
    there = [
        line for line in _lines(record) if (line["federation"], line["seed"], line["epsilon"]) == (name, seed, epsilon)
    ]
    return any(("audit" in line or not audits) and (epsilon is None or "private" in line) for line in there)


def _lines(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []


def _run(
    name: str, source: Path, folder: Path, seed: int, epsilon: float | None, audits: bool, also: Sequence[str]
) -> dict[str, Any]:
    file = folder / "federation.toml"
    tables = FEDERATIONS[name](source)
    file = file if file.exists() else initialised(tables, folder)
    changes = [f"seed={seed}", f"data.split_seed={seed}", *also]
    if epsilon is not None:
        secret = (folder / f"{seed}-{epsilon}.label_secret").absolute()
        changes += [f'privacy.labels="{tables.holder}"', f"privacy.label_epsilon={epsilon}"]
        changes += [f'party.{tables.holder}.label_secret="{secret}"', "privacy.private_model=true"]
    began = time.perf_counter()
    config = load_config(file, changes)
    loaded = load_data(config)
    with TemporaryDirectory() as folder_of_run:
        run = Path(folder_of_run) / "run"
        result = train(config, loaded, run if audits else None)
        audit = {"audit": [one.model_dump() for one in audit_told(run)]} if audits else {}
    summary = result.summary
    line = {
        "federation": name,
        "seed": seed,
        "epsilon": epsilon,
        "rows": len(loaded.data.train_labels),
        "rounds": summary["rounds"],
        "kept": summary.get("kept"),
        "bytes": {purpose: count for purpose, count in summary["bytes"].items() if purpose != "by_party"},
        "told": summary["metrics"]["test"],
        "seconds": time.perf_counter() - began,
    }
    if epsilon is None:
        return line | {"true": summary["metrics"]["test"]}
    return (
        line
        | audit
        | {
            "true": summary["label_privacy"]["scores"]["test"],
            "private": summary["label_privacy"]["private"]["test"],
            "heads": dict(_heads(result, loaded, tables.holder)),
        }
    )


def _heads(result: RunResult, loaded: Loaded, holder: str) -> Iterator[tuple[str, float]]:
    """ROC AUC of test rows by what the holder could make of the run with the true labels."""
    truth, m = loaded.truth, loaded.data.names.index(holder)
    train_phi, test_phi = (_embeddings(result, truth, part) for part in (truth.train, truth.test))
    y, y_test = truth.train_labels.numpy(), truth.test_labels.numpy()
    z, z_test = (_outputs(result, phi) for phi in (train_phi, test_phi))
    yield "public", float(roc_auc_score(y_test, z_test))
    x, x_test = (_beside(scores, own[m]) for scores, own in ((z, truth.train), (z_test, truth.test)))
    stacked = HistGradientBoostingClassifier(learning_rate=0.05, early_stopping=True, random_state=0).fit(x, y)
    yield "stacked", float(roc_auc_score(y_test, stacked.predict_proba(x_test)[:, 1]))


def _embeddings(result: RunResult, data: VerticalData, rows: Sequence[Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [result.models[name].eval()(x) for name, x in zip(data.names, rows, strict=True)]


def _outputs(result: RunResult, phi: list[torch.Tensor]) -> Floats:
    with torch.no_grad():
        found: Floats = result.models["server"].eval()(phi).reshape(-1).double().numpy()
    return found


def _beside(scores: Floats, own: Any) -> Floats:
    return np.column_stack([scores, own.double().numpy()])


if __name__ == "__main__":
    main()
