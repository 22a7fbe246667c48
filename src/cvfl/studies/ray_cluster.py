"""Runs of a study on a Ray cluster: one run a task; what it keeps and what it leaves come back into the one folder.

    here                                       a machine of the cluster
    task, OUT/state/CELL/seed-N  ───────▶      takes up the run where it was
    OUT/state/CELL/seed-N        ◀── board ──  its state, every few seconds
    OUT/runs/CELL/seed-N         ◀───────      the run directory

So progress, Ctrl-C and --resume are as on one machine. The cluster's machines need cvfl, and the data at the same path.
"""

from __future__ import annotations

import io
import shutil
import socket
import tarfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from cvfl.errors import ConfigError, CvflError
from cvfl.scratch import Scratch
from cvfl.studies.origin import Machine
from cvfl.studies.run import run_task
from cvfl.studies.study import Task

EVERY = 5.0
"""Seconds between two states of a run that are sent here."""


def connected(address: str) -> ModuleType:
    """Ray, connected to the cluster at this address."""
    try:
        import ray  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigError("--ray needs: pip install 'cvfl[ray]'") from None
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would knock for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"--ray {address}: no cluster to be reached ({reason}); use the address that `ray start` printed"
        ) from None
    module: ModuleType = ray
    return module


def run_on_ray(
    ray: ModuleType, waiting: Sequence[Task], on_tick: Callable[[], None], on_machine: Callable[[Task, Machine], None]
) -> Generator[Task, None, None]:
    """Run tasks on a `connected` cluster; each is given back when it is complete. An error in one ends all."""
    board = ray.remote(num_cpus=0)(Board).remote()
    start = ray.remote(num_cpus=1)(_run)
    running = {start.remote(n, task.anywhere(), packed(task.out), board): n for n, task in enumerate(waiting)}
    try:
        while running:
            done, _ = ray.wait(list(running), timeout=0.5)
            for n, state in ray.get(board.take.remote()).items():
                if n in running.values():
                    unpacked(state, waiting[n].out)
            on_tick()
            for reference in done:
                task = waiting[running.pop(reference)]
                data, machine = _result(ray, reference)
                unpacked(data, task.out)
                on_machine(task, machine)
                yield task
    except BaseException:
        for reference in running:
            ray.cancel(reference, force=True)
        raise
    finally:
        ray.shutdown()


class Board:
    """Where runs leave their newest state until it is fetched."""

    def __init__(self) -> None:
        self._states: dict[int, bytes] = {}

    def put(self, n: int, state: bytes) -> None:
        """Leave the state of run n."""
        self._states[n] = state

    def take(self) -> dict[int, bytes]:
        """What was left since the last time."""
        states, self._states = self._states, {}
        return states


def packed(folder: Path) -> bytes:
    """A folder as bytes; of one that does not exist there are none."""
    if not folder.exists():
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpacked(data: bytes, folder: Path) -> None:
    """Put the folder in its place, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(partial, filter="data")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _run(n: int, task: Task, state: bytes, board: Any) -> tuple[bytes, Machine]:
    """On a machine of the cluster: run the task in a folder of its own."""
    with Scratch() as scratch:
        here = replace(task, out=scratch.path / "run")
        if state:
            unpacked(state, here.out)
        last = 0.0

        def send(_: object) -> None:
            # Between two rounds nothing is being written.
            nonlocal last
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                board.put.remote(n, packed(here.out))

        run_task(here, send)
        return packed(here.out), Machine.this()


def _result(ray: ModuleType, reference: Any) -> tuple[bytes, Machine]:
    try:
        result: tuple[bytes, Machine] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CvflError):
            raise error.cause from None
        raise
    return result
