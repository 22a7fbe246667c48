"""The machine: versions, its clock, room on disk and in memory, and the folder of the state."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil
import torch

from cvfl.config.schema import RunConfig
from cvfl.doctor.finding import Finding, caught, fine, look, size, wrong
from cvfl.errors import check_writable

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 6)
BASE = 500e6
"""Bytes of memory that a role takes before it has any rows: PyTorch, and what it loads."""
LEAST_DISK = 1e9
"""Bytes on disk below which nobody should begin: three checkpoints of a model that is not small, logs, and a report."""


def versions() -> list[Finding]:
    """Python, PyTorch, cvfl, and what talks to other roles."""
    python, torch_ = platform.python_version(), torch.__version__
    said = f"cvfl {version('cvfl')}, Python {python}, PyTorch {torch_}"
    if sys.version_info < OLDEST_PYTHON:
        return [wrong("versions", said, "cvfl needs Python 3.11 or newer")]
    if tuple(map(int, torch_.split("+")[0].split(".")[:2])) < OLDEST_TORCH:
        return [wrong("versions", said, "cvfl needs PyTorch 2.6 or newer: pip install --upgrade torch")]
    if find_spec("grpc") is None:
        return [wrong("versions", f"{said}, no gRPC", "pip install 'cvfl[grpc]'")]
    return [fine("versions", f"{said}, gRPC {version('grpcio')}; all roles end in the same bits with the same ones")]


def clock(begins: datetime | None) -> Finding:
    """This machine's clock beside the day on which the newest certificate here became valid."""
    now = datetime.now(UTC)
    said = f"{now:%Y-%m-%d %H:%M} UTC"
    if begins is None:
        return look("clock", f"{said}; there is no certificate to compare it with", "compare it with a watch")
    if now < begins:
        made = f"{begins:%Y-%m-%d %H:%M}"
        return wrong("clock", f"{said}, and a certificate here begins at {made}", "set the clock, by NTP for instance")
    return fine("clock", f"{said}, after the certificates here were made")


def state(folder: Path) -> list[Finding]:
    """The folder in which a role keeps its state."""
    findings: list[Finding] = []
    with caught("state", findings):
        check_writable(folder)
        if not folder.exists():
            return [fine("state", f"{folder} can be made")]
        if folder.stat().st_mode & 0o077:
            return [wrong("state", f"others than its user can open {folder}", f"chmod 700 {folder}")]
        return [fine("state", f"{folder} can be written, by its user alone")]
    return findings


def disk(folder: Path, needed: float) -> Finding:
    """Room for checkpoints, beside what is known of rows."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free, wanted = shutil.disk_usage(there).free, LEAST_DISK + needed
    said = f"{size(free)} free where the state is, some {size(wanted)} wanted"
    if free < wanted:
        return wrong("disk", said, "make room, or name a larger disk with --state")
    return fine("disk", said)


def memory(config: RunConfig, table: float) -> Finding:
    """Memory for the columns, and for what is known of rows."""
    free, wanted = psutil.virtual_memory().available, BASE + (config.network.memory_mb << 20) + table
    said = f"{size(free)} free, some {size(wanted)} wanted"
    if free < wanted:
        remedy = "end other programs, lower network.memory_mb, or leave columns out with `exclude`"
        return look("memory", said, remedy)
    return fine("memory", said)


def cores() -> Finding:
    """One thread a role: more of them only wait for each other."""
    count = os.cpu_count() or 1
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said != "1" and count > 1:
        return look("threads", f"{count} cores; a role computes with one", "start it with OMP_NUM_THREADS=1")
    return fine("threads", "one, as a role computes")
