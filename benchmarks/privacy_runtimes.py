"""Every privacy mode of the two privacy studies on every runtime: the same bits, bytes and metrics, or an error.

    python benchmarks/privacy_runtimes.py DATA --out runtimes.json

DATA holds `credit_default` and `physionet2012` as `cvfl data fetch` leaves them. Each mode is trained in process, as
processes over gRPC with mutual TLS, and in FLARE's simulator, as long as in preset `cpu` of its study, with seed 0.
With noise parties draw secrets of their own, so its runs differ by design: they are trained on every runtime and their
metrics are listed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit

from cvfl.config.files import merged, parse_config
from cvfl.config.schema import RunConfig
from cvfl.federation.nvflare_simulator import train_nvflare
from cvfl.federation.processes import train_grpc
from cvfl.federation.train import train
from cvfl.studies.study import load_study

STUDIES = {"privacy_credit": "credit_default", "privacy_physionet": "physionet2012"}
MODES = (
    "open",
    "labels at the server",
    "labels at a party",
    "secure aggregation",
    "secure aggregation, labels at the server",
    "secure aggregation, labels at a party",
    "noise 0.5",
)


def in_process(config: RunConfig) -> dict[str, Any]:
    return train(config).summary


def by_grpc(config: RunConfig) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(tomlkit.dumps(config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
        return train_grpc(path, [], Path(folder) / "run")


def by_flare(config: RunConfig) -> dict[str, Any]:
    return train_nvflare(config).summary


RUNTIMES: dict[str, Callable[[RunConfig], dict[str, Any]]] = {
    "in process": in_process,
    "grpc": by_grpc,
    "nvflare": by_flare,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = []
    for name, folder in STUDIES.items():
        study = load_study(name)
        cells = {cell.name: cell.run for cell in study.cell}
        for mode in MODES:
            extra = study.preset["cpu"].run | {"data": {"path": str(given.data / folder)}}
            config = parse_config(merged(merged(study.run, cells[mode]), extra))
            row = {"study": name, "mode": mode} | compared(config)
            print(json.dumps(row), flush=True)
            found.append(row)
    given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def compared(config: RunConfig) -> dict[str, Any]:
    """What the runtimes end in, and whether it is the same."""
    ends, seconds = {}, {}
    for runtime, run in RUNTIMES.items():
        began = time.perf_counter()
        ends[runtime] = run(config)
        seconds[runtime] = round(time.perf_counter() - began, 1)
    first = ends["in process"]
    same = all(end["parameters"] == first["parameters"] and _sent(end) == _sent(first) for end in ends.values())
    auc = {runtime: end["metrics"]["test"]["roc_auc"] for runtime, end in ends.items()}
    about = {"rounds": first["rounds"], "bytes": first["bytes"]["total"], "seconds": seconds}
    return {"same bits and bytes": same, "test roc_auc": auc} | about


def _sent(end: dict[str, Any]) -> dict[str, int]:
    """Bytes by what they were for, but for set-up, to which certificates add where there are any."""
    return {part: end["bytes"][part] for part in ("up", "down", "evaluation", "alignment")}


if __name__ == "__main__":
    main()
