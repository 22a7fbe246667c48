"""The runs of a study side by side, each in a process of its own; one that was stopped is taken up again."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.process import BaseProcess

import torch

from cvfl.config.schema import RunConfig
from cvfl.federation.rows.load import Loaded, load_data
from cvfl.federation.train import train
from cvfl.runs.directory import differing, is_under_way
from cvfl.runs.progress import Progress
from cvfl.studies.study import Task


def run_task(task: Task, on_round: Callable[[Progress], None] = lambda progress: None) -> str:
    """Run one task to its end, taking up what is kept of it; one thread, so that runs side by side do not fight."""
    torch.set_num_threads(1)
    if is_under_way(task.out) and differing(task.out, task.config):
        shutil.rmtree(task.out)  # of a study as it was before it was changed
    train(task.config, _data(task.config), task.out, task.cell, on_round, resume=True, workers=1)
    return task.cell


_known: dict[str, Loaded] = {}


def _data(config: RunConfig) -> Loaded:
    """The data of a run; that of the last one if it is the same, since a worker runs many cells of one seed."""
    key = config.model_dump_json(include={"data", "party", "precision"})
    if key not in _known:
        _known.clear()
        _known[key] = load_data(config)
    return _known[key]


def run_all(waiting: list[Task], workers: int, on_tick: Callable[[], None]) -> Generator[Task, None, None]:
    """Run tasks side by side; each is given back when it is complete. An error in one ends all, and so does closing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the workers
    context = multiprocessing.get_context("spawn")
    running: dict[Future[str], Task] = {}
    with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=context, initializer=_end_with_parent) as pool:
        try:
            for task in waiting:
                running[pool.submit(run_task, task)] = task
            while running:
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                on_tick()
                for future in done:
                    task = running.pop(future)
                    future.result()
                    yield task
        except BaseException:
            for future in running:
                future.cancel()
            for process in list((pool._processes or {}).values()):  # there is no public way to stop a worker
                process.terminate()
            raise


def _end_with_parent() -> None:
    """In a worker: end with the parent, even if that is killed; else two might go on with one run after --resume."""

    def watch(parent: BaseProcess) -> None:
        parent.join()
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
