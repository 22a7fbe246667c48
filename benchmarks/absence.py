"""How good models are when a party is away, and what rows are worth that not every party holds.

    python benchmarks/absence.py DATA OUT --seeds 2 [--only physionet] [--set KEY=VALUE]

    DATA   as for quality.py
    OUT    a folder: absence.jsonl gets a line a run as it ends, and what is there is not run again; README.md the table

Tables are those of quality.py as `cvfl init` sets them up. The runs of a seed, all tested on the same rows:

    plain        as it is
    prepared     with absence.rate = 0.2; tested with all parties, and without each one
    references   boosting and logistic regression on the joined table without each party's columns
    partly       prepared, where each party but the one with the label holds some rows: 30% are held by all
    overlap      as it is, on those 30% alone, set up by `cvfl init` for so many rows
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from absence_table import published
from quality import all_but_test, initialised
from quality_tables import FEDERATIONS, Tables
from torch import Tensor, nn

from cvfl.advise.references import fit_references
from cvfl.analysis.parties import headline_of
from cvfl.config.files import load_config
from cvfl.data import VerticalData
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.protocol import Presence
from cvfl.protocol.absence import StandIns
from cvfl.rng import stream

RATE, OVERLAP = 0.2, 0.3
RUNS = ("plain", "prepared", "references", "partly", "overlap")
USED = ("credit_default", "physionet", "adult")


def main() -> None:
    """Run what is missing and print every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default=",".join(USED))
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "absence.jsonl"
    done = [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    seen = {(line["federation"], line["seed"], line["run"]) for line in done}
    for name in asked.only.split(","):
        for seed in range(asked.seeds):
            wanted = [run for run in asked.runs.split(",") if (name, seed, run) not in seen]
            for line in _lines(name, asked.data, asked.out / name, seed, wanted, asked.set) if wanted else ():
                print(json.dumps(line), flush=True)
                done.append(line)
                with record.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(line) + "\n")
    (asked.out / "README.md").write_text(published(done), encoding="utf-8")


def _lines(
    name: str, source: Path, folder: Path, seed: int, wanted: Iterable[str], changes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    tables, also = FEDERATIONS[name](source), [f"seed={seed}", f"data.split_seed={seed}", *changes]
    file = initialised(tables, folder)
    data = load_data(load_config(file, also)).data
    prepared = [*also, f"absence.rate={RATE}"]
    held = presence(data, tables.holder, seed)
    for run in wanted:
        began = time.perf_counter()
        match run:
            case "plain":
                found = _trained(file, also, data)
            case "prepared":
                found = _trained(file, prepared, data)
            case "references":
                found = {"without": {name: _best(without(data, m), seed) for m, name in enumerate(data.names)}}
            case "partly":
                found = _trained(file, prepared, replace(data, present=held))
            case "overlap":
                small = initialised(_some(tables, OVERLAP), folder / "overlap")
                found = _trained(small, also, overlap(data, held))
        yield {"federation": name, "seed": seed, "run": run, **found, "seconds": time.perf_counter() - began}


def _trained(file: Path, changes: Sequence[str], data: VerticalData) -> dict[str, Any]:
    """The test metrics of a run, and those without each party where the model is prepared for that."""
    result = train(load_config(file, changes), data)
    found = {
        "roc_auc": result.summary["metrics"]["test"]["roc_auc"],
        "rows": len(data.train_labels),
        "rounds": result.summary["rounds"],
        "bytes": result.summary["bytes"]["total"],
    }
    server = result.models["server"]
    if not isinstance(server, StandIns):
        return found
    return found | {"without": {name: _away(result.models, server, data, m) for m, name in enumerate(data.names)}}


def _away(models: dict[str, nn.Module], server: StandIns, data: VerticalData, away: int) -> float:
    """ROC AUC of the test rows when one party is away."""
    rows = len(data.test_labels)
    with torch.no_grad():
        phi = [models[name].eval()(x) for name, x in zip(data.names, data.test, strict=True)]
        absent = [torch.full((rows,), m == away) for m in range(len(data.names))]
        outputs = server.eval()(server.substituted(phi, absent))
    return headline_of(data.loss, outputs, data.test_labels, data.units)


def without(data: VerticalData, away: int) -> VerticalData:
    """The same without a party's columns."""

    def others(parts: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(part for m, part in enumerate(parts) if m != away)

    return replace(
        data,
        names=others(data.names),
        train=others(data.train),
        validation=others(data.validation),
        test=others(data.test),
        categories=others(data.categories),
    )


def _best(data: VerticalData, seed: int) -> float:
    """The better of boosting and logistic regression on the joined table."""
    return max(one.metrics.test["roc_auc"] for one in fit_references(all_but_test(data), seed) if one.party is None)


def presence(data: VerticalData, holder: str, seed: int) -> Presence:
    """Each party but that with the label holds some of the rows that are not for the test, so that all hold 30%."""
    share = OVERLAP ** (1 / (len(data.names) - 1))
    kept, test = len(data.train_labels) + len(data.validation_labels), torch.ones(len(data.test_labels)).bool()

    def held(m: int, name: str) -> Tensor:
        return torch.from_numpy((stream(seed, "overlap", m).uniform(kept) < share) | (name == holder))

    parts = [
        torch.split(held(m, name), [len(data.train_labels), kept - len(data.train_labels)])
        for m, name in enumerate(data.names)
    ]
    return Presence(tuple(train for train, _ in parts), tuple(torch.cat([rest, test]) for _, rest in parts))


def overlap(data: VerticalData, held: Presence) -> VerticalData:
    """The rows for training and validation that all parties hold."""
    validation = torch.stack([one[: len(data.validation_labels)] for one in held.held_out]).all(0)
    some = data.of_training_rows(torch.stack(held.train).all(0).nonzero()[:, 0])
    return replace(
        some,
        validation=tuple(rows[validation] for rows in data.validation if isinstance(rows, Tensor)),
        validation_labels=data.validation_labels[validation],
    )


def _some(tables: Tables, share: float) -> Tables:
    """The first rows of the tables, for `cvfl init` to see how many there are."""
    parties = {
        name: {key: values[: round(len(values) * share)] for key, values in columns.items()}
        for name, columns in tables.parties.items()
    }
    return replace(tables, parties=parties)


if __name__ == "__main__":
    main()
