"""Every study of the paper starts at the paper's size, on a few rows written in the publishers' layouts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cvfl.runs.read import read_run
from cvfl.studies.run import run_task
from cvfl.studies.study import load, load_study, study_names, tasks
from hospital import Stay, write_tables
from publishers import write_adult, write_cifar, write_credit, write_imagenet, write_modelnet, write_physionet

pytestmark = pytest.mark.slow
ROUNDS, BATCH = 3, 2
WRITERS: dict[str, Callable[[Path], object]] = {
    "adult": write_adult,
    "cifar10": write_cifar,
    "credit_default": write_credit,
    "imagenet100": lambda folder: write_imagenet(folder).rename(folder / "imagenet100.txt"),
    "mimic3": lambda folder: write_tables(folder, *(Stay(number, died=number % 2) for number in range(100, 140))),
    "modelnet10": write_modelnet,
    "physionet2012": write_physionet,
}
STUDIES = [name for name in study_names() if "" in load(name).members and "paper" in load_study(name).preset]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets, as `cvfl data fetch` fills it."""
    root = tmp_path_factory.mktemp("data")
    for name, write in WRITERS.items():
        (root / name).mkdir()
        write(root / name)
    return root


@pytest.mark.parametrize("name", STUDIES)
def test_the_paper_s_setting_runs_three_rounds(name: str, data: Path, tmp_path: Path) -> None:
    everything = tasks(load_study(name), "paper", 1, data, tmp_path)
    for task in (everything[0], everything[-1]):  # the first compresses nothing, the last does
        length = {"epochs": None, "rounds": ROUNDS, "evaluate_every": ROUNDS, "batch_size": BATCH}
        few = task.config.model_copy(update=length)
        run_task(type(task)(task.cell, task.seed, few, task.out))
        run = read_run(task.out)
        assert len(run.history) == ROUNDS
        assert run.sent.up > 0
        assert run.sent.evaluation > 0
