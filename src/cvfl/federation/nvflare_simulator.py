"""`cvfl train --runtime nvflare`: the same federation in FLARE's simulator, a process a party, on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cvfl.config.schema import RunConfig
from cvfl.errors import CvflError
from cvfl.federation.nvflare import (
    CLASSES,
    ERROR_FILE,
    PROGRESS_FILE,
    ROLES,
    SITE_FILE,
    SITE_VARIABLE,
    START_ROLES,
    run_folder,
    write_job,
    write_site_file,
)
from cvfl.federation.processes import add_parties
from cvfl.federation.start import Start
from cvfl.federation.train import RunResult
from cvfl.runs import directory as record
from cvfl.runs.progress import Progress, progress_of
from cvfl.runtime.nvflare import require
from cvfl.runtime.supervisor import Supervisor
from cvfl.scratch import Scratch

_MODULE = "nvflare.private.fed.app.simulator.simulator"
_RESULTS = Path("server", "simulate_job", "cvfl")
_POLL = 0.1
JOB, _LOG = "job", "simulator.log"


def train_nvflare(
    config: RunConfig,
    out: Path | None = None,
    name: str = "run",
    on_round: Callable[[Progress], None] = lambda progress: None,
    start: Start | None = None,
) -> RunResult:
    """Train as configured in FLARE's simulator; with `out` the run directory is written.

    The models are in the run directory; `models` of the result is empty. With `start` every role begins with its model
    of an earlier run.
    """
    require()
    if out is not None:
        record.RunDirectory(out)  # refuses a folder that is in use before anything is computed
    with Scratch() as scratch:
        folder = scratch.path
        workspace = folder / "workspace"
        names = write_job(config, name, folder / JOB, START_ROLES if start else ROLES)
        write_site_file(config, folder / SITE_FILE, start)
        results = simulate(folder, names, name, "summary.json", on_round)
        for party in names:
            shutil.copytree(run_folder(workspace / party, name), folder / "models", dirs_exist_ok=True)
        summary = add_parties(results, names, folder / "models")
        history = [json.loads(line) for line in (results / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(results, out, dirs_exist_ok=True)
        return RunResult(summary, history, {}, out)


def simulate(
    folder: Path,
    names: tuple[str, ...],
    name: str,
    left: str,
    on_round: Callable[[Progress], None] = lambda progress: None,
) -> Path:
    """Run the job of a folder with the file that all its sites have; where the server left its results, as `left`."""
    workspace = folder / "workspace"
    (workspace / "local").mkdir(parents=True)
    (workspace / "local" / "resources.json").write_text(json.dumps({"class_allow_list": CLASSES}), encoding="utf-8")
    code = _simulated(folder, names, name, on_round)
    if not (workspace / _RESULTS / left).exists():
        raise CvflError(_reason(workspace, names, name, code, folder / _LOG))
    return workspace / _RESULTS


def _simulated(folder: Path, names: tuple[str, ...], name: str, on_round: Callable[[Progress], None]) -> int:
    workspace, own = folder / "workspace", {SITE_VARIABLE: str(folder / SITE_FILE)}
    arguments = [str(folder / JOB), "-w", str(workspace), "-c", ",".join(names), "-t", str(len(names))]
    with (folder / _LOG).open("wb") as file, Supervisor() as processes:
        processes.start("simulator", ["-m", _MODULE, *arguments], file, subprocess.STDOUT, own)
        process = processes.children["simulator"]
        progress = _progress(run_folder(workspace / "server", name) / PROGRESS_FILE)
        while process.poll() is None:
            for shown in next(progress):
                on_round(shown)
            time.sleep(_POLL)
        for shown in next(progress):
            on_round(shown)
        return process.returncode


def _progress(path: Path) -> Iterator[list[Progress]]:
    """What was added to the file since the last time, again and again; a line that is not whole waits."""
    at = 0
    while True:
        lines = path.read_bytes()[at:].splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        at += sum(map(len, whole))
        yield [progress_of(json.loads(line)) for line in whole]


def _reason(workspace: Path, names: tuple[str, ...], name: str, code: int, log: Path) -> str:
    """Why a run failed: what a party says comes first, since the server only hears that it stopped."""
    for role in (*names, "server"):
        path = run_folder(workspace / role, name) / ERROR_FILE
        if path.exists():
            return path.read_text(encoding="utf-8").strip().splitlines()[-1]
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
    return f"FLARE's simulator ended with code {code}; its last words: {said[-1]}"
