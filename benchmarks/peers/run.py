"""Peers on the same work: each in an environment of its own, one after another.

    python benchmarks/peers/run.py DATA OUT [--only cvfl,flare] [--task credit,adult] [--work DIR] [--times 2]

    DATA   credit_default/uci_credit_default.parquet and adult/adult.parquet
    OUT    a folder: peers.jsonl gets a line a measurement as it ends, and what is there is not measured again
           unless it failed; README.md the tables
    DIR    environments and what the systems write; build/peers by default

What all do alike is in settings.toml. A system that cannot be installed, or that fails, gets a line that says so. The
shape and the algorithms, which are cvfl alone, are in shape.py and algorithms.py: `--only shape,algorithms`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from itertools import product
from pathlib import Path
from typing import Any

from inputs import TASKS, prepared
from table import published

PEERS = ("joined", "cvfl", "flare", "xgboost", "fate", "fedtree", "flower")
ALONE = ("algorithms", "shape")
TORCH = "torch==2.13.0"
"""The CPU build; a plain requirement of torch would bring gigabytes of CUDA."""
LIBRARIES = ("libntl44", "libgf2x3", "libgmp10")
"""Of Debian, which FedTree's wheel needs."""


def main() -> None:
    """Measure what is missing and print every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join((*PEERS, *ALONE)))
    parser.add_argument("--task", default=",".join(TASKS))
    parser.add_argument("--work", type=Path, default=Path("build/peers"))
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True, exist_ok=True)
    record = asked.out / "peers.jsonl"
    done = [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    done = [line for line in done if "failed" not in line or line["system"] not in asked.only.split(",")]  # try again
    record.write_text("".join(json.dumps(line) + "\n" for line in done), encoding="utf-8")
    seen = {key(line) for line in done}
    for line in _lines(asked, seen):
        print(json.dumps(line), flush=True)
        done.append(line)
        with record.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
    (asked.out / "README.md").write_text(published(done), encoding="utf-8")


def key(line: dict[str, Any]) -> tuple[str, str, str, int]:
    """What a measurement is of."""
    return line["system"], line["variant"], line["task"], line["time"]


def _lines(asked: argparse.Namespace, seen: set[tuple[str, str, str, int]]) -> Iterator[dict[str, Any]]:
    for name in asked.only.split(","):
        if name in ALONE:
            measure = import_module(name).measurements
            yield from (about(name) | line for line in measure(asked.data, asked.work.absolute(), seen))
    # Time by time rather than system by system: what else the machine does falls on all.
    for time_, name in product(range(asked.times), [name for name in asked.only.split(",") if name not in ALONE]):
        peer = import_module(f"{name}_peer")
        for task in (task for task in asked.task.split(",") if task in getattr(peer, "TASKS", TASKS)):
            for variant in (variant for variant in peer.VARIANTS if (name, variant, task, time_) not in seen):
                line = {"system": name, "variant": variant, "task": task, "time": time_}
                yield line | _measured(name, peer, variant, task, asked)


def _measured(name: str, peer: Any, variant: str, task: str, asked: argparse.Namespace) -> dict[str, Any]:
    work = asked.work.absolute()
    python, failure = environment(name, peer.REQUIREMENTS, work)
    if failure:
        return about(name, peer.REQUIREMENTS) | {"failed": failure}
    place = work / "runs" / f"{name}-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        found: dict[str, Any] = peer.measure(prepared(task, asked.data, work), place, variant, python)
    except (SystemExit, OSError, ValueError, subprocess.SubprocessError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        found = {"failed": said.replace(str(work), "DIR")[:200]}
    return about(name, peer.REQUIREMENTS) | found


def about(name: str, requirements: tuple[str, ...] = ()) -> dict[str, Any]:
    """Versions, command and machine of a measurement."""
    versions = dict(requirement.split("==") for requirement in requirements)
    return {
        "versions": versions | {package: metadata.version(package) for package in ("cvfl", "torch", "grpcio")},
        "python": platform.python_version(),
        "command": f"python benchmarks/peers/run.py DATA OUT --only {name}",
        "machine": {"cores": os.cpu_count(), "kind": platform.machine(), "load_before": round(os.getloadavg()[0], 1)},
        "date": time.strftime("%Y-%m-%d"),
    }


def environment(name: str, requirements: tuple[str, ...], work: Path) -> tuple[Path, str | None]:
    """The Python of a peer's own environment, made if it is not there; or why it could not be."""
    if not requirements:
        return Path(sys.executable), None
    folder = work / "venvs" / name
    python = folder / "bin" / "python"
    if (folder / ".whole").exists():
        return python, None
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    for packages in ((TORCH,), (TORCH, *requirements)):
        command = [str(python), "-m", "pip", "install", "--quiet", *packages]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            return python, f"not installed: {made.stderr.strip().splitlines()[-1]}"
    if name == "fedtree":
        _libraries(folder)
    (folder / ".whole").touch()
    return python, None


def _libraries(folder: Path) -> None:
    """Debian's libraries, unpacked beside the wheel that needs them."""
    packages, target = folder / "deb", folder / "lib"
    packages.mkdir(exist_ok=True)
    for library in LIBRARIES:
        subprocess.run(["apt-get", "download", library], cwd=packages, check=True, capture_output=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(packages / "unpacked")], check=True)
    for file in (packages / "unpacked").rglob("*.so.*"):
        shutil.copy(file, target)


if __name__ == "__main__":
    main()
