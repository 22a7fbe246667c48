"""Compressors of other work as specs of cvfl: bytes to the same accuracy, frames of every kind counted.

Error feedback as in EF-VFL (what is sent is the compressed difference to what the server knows of a row), the same
compressors directly, and the quantisers of the paper that cvfl implements, with the server model open, beside no
compression and `auto`. cvfl's code runs them all, in one process; none of the authors' does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cvfl.config.files import merged, parse_config
from cvfl.errors import CvflError
from cvfl.federation.train import train
from cvfl.studies.study import load_study

SPECS = {
    "none": "identity",
    "top-k, direct": "topk:bits=3,by=entry",
    "top-k, error feedback": "feedback(topk:bits=3,by=entry)",
    "scalar b = 2, direct (C-VFL)": "scalar:bits=2",
    "scalar b = 2, error feedback": "feedback(scalar:bits=2)",
    "lattice b = 2, direct (C-VFL)": "lattice:bits=2",
    "auto": "auto",
}
SEEDS = {"digits": 3, "cifar10": 1}
LOCAL = {"digits": (1, 10), "cifar10": (10,)}
PURPOSES = ("up", "down", "evaluation", "alignment", "setup")


def measurements(data: Path, work: Path, seen: set[tuple[str, str, str, int]]) -> Iterator[dict[str, Any]]:
    """A line a run that is not in `seen`."""
    for task, seeds in SEEDS.items():
        for seed in range(seeds):
            for name, spec in SPECS.items():
                for Q in LOCAL[task]:
                    variant = f"{name}, Q = {Q}"
                    if ("algorithms", variant, task, seed) not in seen:
                        line = {"system": "algorithms", "variant": variant, "task": task, "time": seed}
                        yield line | {"spec": spec, "Q": Q} | _run(task, spec, Q, seed, work)


def _run(task: str, spec: str, Q: int, seed: int, work: Path) -> dict[str, Any]:
    study = load_study(task)
    values = merged(merged(study.run, study.preset["cpu"].run), {"seed": seed, "local_iterations": Q})
    values = merged(values, {"compressor": spec, "server_compressor": "auto" if spec == "auto" else "identity"})
    values = merged(values, {"data": {"split_seed": seed}})
    if task == "cifar10":
        values = merged(values, {"data": {"path": str(work / "data" / task)}})
    began = time.time()
    try:
        result = train(parse_config(values), workers=1)
    except CvflError as error:
        return {"failed": str(error)[:200]}
    target = study.preset["cpu"].target
    evaluated = [line for line in result.history if study.metric in line.get("test", {})]
    there = next((line for line in evaluated if line["test"][study.metric] >= target), None)
    return {
        "metric": study.metric,
        "target": target,
        "bytes_to_target": there and _sent(there["bytes"]),
        "training_to_target": there and _sent(there["bytes"], "up", "down"),
        "rounds_to_target": there and there["round"] + 1,
        "final": result.summary["metrics"]["test"][study.metric],
        "bytes": result.summary["bytes"]["total"],
        "rounds": result.summary["rounds"],
        "seconds": time.time() - began,
    }


def _sent(counted: dict[str, int], *purposes: str) -> int:
    """Bytes up to a round; without purposes those of all."""
    return sum(counted.get(purpose, 0) for purpose in purposes or PURPOSES)
