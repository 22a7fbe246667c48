"""Noise that parties share beside noise of each party's own: ROC AUC and epsilon, under secure aggregation.

    python benchmarks/shared_noise.py DATA OUT --seeds 10

    DATA   the folder of UCI credit default, as `cvfl data` wants it
    OUT    shared_noise.jsonl gets a line a run as it ends, and what is there is not run again

Four parties with embeddings of 2 numbers and the server model `sum`, one epoch of 88 rounds with Q = 25 and one
evaluation at its end: a row is released once. Secrets of noise follow from the seed, so that a run can be repeated. At
the end it prints the tables of docs/results/privacy/shared-noise.md.

    own      `noise` at every party, on a grid of 6 bits from -(1 + 2 noise) to 1 + 2 noise
    shared   `noise` in the sum, `compressor = "auto"`

Shared noise of twice the own one is as much noise in the sum of four; of 2 / sqrt(3) times it is the same epsilon
against another party, and of once it the same against the server alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.federation.train import train
from cvfl.rng import stream

M = 4
OWN = (0.25, 0.5, 1.0, 2.0)
AS_MUCH = {noise: math.sqrt(M) * noise for noise in OWN}
"""Shared noise that is as much in the sum, by the own one."""
AS_PRIVATE = {noise: round(math.sqrt(M / (M - 1)) * noise, 4) for noise in OWN}
"""Shared noise with the same epsilon against another party."""
AGAINST = ("the server alone", "any other party", "all others together", "columns of all parties")
PARTIES = ("bank", "bureau", "shop", "registry")


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "shared_noise.jsonl"
    shared = sorted({*AS_MUCH.values(), *AS_PRIVATE.values()})
    cells = [("none", 0.0), *(("own", noise) for noise in OWN), *(("shared", noise) for noise in shared)]
    for seed, (kind, noise) in itertools.product(range(asked.seeds), cells):
        key = {"kind": kind, "noise": noise, "seed": seed}
        if any(key.items() <= line.items() for line in _lines(record)):
            continue
        line = key | _measured(_config(asked.data, kind, noise, seed))
        with record.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
    print("\n".join(_tables(list(_lines(record)))))


def _lines(record: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, record.read_text(encoding="utf-8").splitlines() if record.exists() else [])


def _config(data: Path, kind: str, noise: float, seed: int) -> RunConfig:
    privacy: dict[str, Any] = {"aggregation": "secure", "clip": 1.0}
    if noise:
        privacy |= {"noise": noise, "noise_shared": kind == "shared"}
    reach = 1 + 2 * noise
    return parse_config(
        {
            "data": {"name": "credit_default", "path": str(data), "parties": M},
            "seed": seed,
            "epochs": 1,
            "batch_size": 256,
            "local_iterations": 25,
            "step_size": {"eta": 0.002},
            "optimizer": {"name": "adam"},
            "compressor": "auto" if kind == "shared" else f"scalar:bits=6,low={-reach},high={reach}",
            "server_compressor": "identity",
            "party_model": {"width": 2},
            "server_model": {"name": "sum"},
            "privacy": privacy,
        }
    )


def _measured(config: RunConfig) -> dict[str, Any]:
    secrets = {name: stream(config.seed, "shared noise", name).words(4).tobytes() for name in PARTIES}
    summary = train(config, noise_secrets=secrets).summary
    account = summary["privacy"] or {}
    return {
        "roc_auc": summary["metrics"]["test"]["roc_auc"],
        "up_bytes": summary["bytes"]["up"],
        "seconds": round(summary["seconds"], 1),
        "releases": account.get("training", {}).get("releases"),
        "epsilon": {key: value for key, value in account.get("training", {}).items() if key != "releases"},
    }


def _tables(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found = {
        (kind, noise): [line for line in lines if (line["kind"], line["noise"]) == (kind, noise)]
        for kind, noise in dict.fromkeys((line["kind"], line["noise"]) for line in lines)
    }
    yield f"no noise: ROC AUC {_auc(found['none', 0.0])}, {found['none', 0.0][0]['up_bytes'] / 1e6:.3f} MB up"
    head = ["noise", "deviation at a party, in the sum", "MB up", *(f"ε, {who}" for who in AGAINST), "test ROC AUC"]
    yield from ("", f"| {' | '.join(head)} |", "|---" * len(head) + "|")
    for (kind, noise), runs in found.items():
        if kind != "none":
            yield _row(kind, noise, runs)
    for title, pairs in (("as much noise in the sum", AS_MUCH), ("as private against a party", AS_PRIVATE)):
        head = ["own", "shared", "ε", "ratio against a party", "against the server alone", "AUC, shared - own"]
        yield from ("", f"{title}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|")
        yield from (_pair(noise, other, found) for noise, other in pairs.items())


def _row(kind: str, noise: float, runs: Sequence[Mapping[str, Any]]) -> str:
    e, M_root = runs[0]["epsilon"], math.sqrt(M)
    there = (noise, noise * M_root) if kind == "own" else (noise / M_root, noise)
    one = e["one_party"]
    figures = [e.get("against_server", one), one, e.get("against_others", one), e["all_parties"]]
    cells = [f"{kind} {noise:g}", f"{there[0]:.3g}, {there[1]:.3g}", f"{runs[0]['up_bytes'] / 1e6:.3f}"]
    return f"| {' | '.join([*cells, *(f'{x:.3g}' for x in figures), _auc(runs)])} |"


def _pair(noise: float, other: float, found: Mapping[tuple[str, float], Sequence[Mapping[str, Any]]]) -> str:
    own, shared = found["own", noise], found["shared", other]
    e, s = own[0]["epsilon"], shared[0]["epsilon"]
    more = [b["roc_auc"] - a["roc_auc"] for a, b in zip(own, shared, strict=True)]  # by seed
    cells = [
        f"{noise:g}",
        f"{other:g}",
        f"{e['one_party']:.3g} and {s['one_party']:.3g}",
        f"{e['one_party'] / s['one_party']:.2f}",
        f"{e['one_party'] / s['against_server']:.2f}",
        _mean(more),
    ]
    return f"| {' | '.join(cells)} |"


def _auc(runs: Sequence[Mapping[str, Any]]) -> str:
    return _mean([run["roc_auc"] for run in runs])


def _mean(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.4f} ± {spread:.4f}"


if __name__ == "__main__":
    main()
