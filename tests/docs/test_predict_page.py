"""docs/predict.md: its commands and its Python, run as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import cvfl
from cvfl.cli import app
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
PAGE = (Path(__file__).parents[2] / "docs" / "predict.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.M | re.S)
PLAIN = [block.splitlines() for language, block in BLOCKS if not language]
PYTHON = [block for language, block in BLOCKS if language == "python"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tables of training and new ones, and what the first commands of the page leave."""
    folder = tmp_path_factory.mktemp("page")
    tables.write(tables.frames(), folder)
    new = tables.frames(first=1000, rows=80)
    pyarrow.csv.write_csv(new["bank"].drop_columns("target"), folder / "new_bank.csv")
    pq.write_table(new["shop"], folder / "new_shop.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (*PLAIN[0], *PLAIN[1]):
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, done.output
        yield folder


def test_tables_become_scores(folder: Path) -> None:
    scores = pyarrow.csv.read_csv(folder / "scores.csv")
    assert scores.column_names == ["person", "score", "class"]
    assert len(scores) == 80
    names = {
        "cvfl": cvfl,
        "new_bank": pyarrow.csv.read_csv("new_bank.csv"),
        "new_shop": pq.read_table("new_shop.parquet"),
    }
    exec(compile(PYTHON[0], "predict.md", "exec"), names)
    assert names["scores"]["score"].tolist() == scores["score"].to_pylist()


def test_a_model_is_used_elsewhere(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    (line,) = PLAIN[3]
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    names: dict[str, Any] = {"Path": Path, "np": np}
    exec(compile(PYTHON[1], "predict.md", "exec"), names)
    assert names["h"].shape[0] == 80


def test_roles_predict_where_they_are(folder: Path) -> None:
    """The three commands as three processes; each party has its own files of the bundle alone."""
    expected = pyarrow.csv.read_csv(folder / "scores.csv").to_pydict()
    certificates = ["certs", "certs", "--server", "127.0.0.1", "--party", "bank", "--party", "shop"]
    assert CliRunner().invoke(app, certificates).exit_code == 0
    for name in ("bank", "shop"):
        (folder / "models" / name).mkdir(parents=True)
        for path in (folder / "runs" / "scoring" / "parameters").glob(f"{name}.*"):
            shutil.copy(path, folder / "models" / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"network.address=127.0.0.1:{free.getsockname()[1]}"
    (folder / "scores.csv").unlink()
    commands = [[sys.executable, "-m", "cvfl.cli", *shlex.split(line)[1:], "--set", address] for line in PLAIN[2]]
    roles = [subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) for command in commands]
    for role in roles:
        _, said = role.communicate(timeout=120)
        assert role.returncode == 0, said
    found = pyarrow.csv.read_csv(folder / "scores.csv").to_pydict()
    assert found["person"] == expected["person"]
    assert np.abs(np.array(found["score"]) - np.array(expected["score"])).max() < 0.02  # `init` writes auto
