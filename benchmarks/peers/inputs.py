"""The inputs of every system: numbers in standard scores, categories one-hot, the same rows for training and test.

inputs/TASK/NAME.npz       train, test: the columns of a party, float32; the first party's file has y and y_test, too
inputs/TASK/NAME.parquet   the same for systems that read tables: all rows, those of the test last
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SETTINGS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))
TASKS = ("credit", "adult")
_FILES = {"credit": "credit_default/uci_credit_default.parquet", "adult": "adult/adult.parquet"}


@dataclass(frozen=True)
class Inputs:
    """Where a task's files are, its parties (the first has the label) and how many rows each part has."""

    task: str
    folder: Path
    names: tuple[str, ...]
    train_rows: int
    test_rows: int

    @property
    def rounds(self) -> int:
        """Batches in all epochs."""
        return int(SETTINGS["epochs"]) * -(-self.train_rows // int(SETTINGS["batch_size"]))

    def joined(self) -> tuple[Floats, NDArray[Any], Floats, NDArray[Any]]:
        """All columns in one place."""
        files = [np.load(self.folder / f"{name}.npz") for name in self.names]
        x, x_test = (np.hstack([file[part] for file in files]) for part in ("train", "test"))
        return x, files[0]["y"], x_test, files[0]["y_test"]


def prepared(task: str, data: Path, out: Path) -> Inputs:
    """Write a task's files."""
    told, folder = SETTINGS[task], out / "inputs" / task
    folder.mkdir(parents=True, exist_ok=True)
    table = pq.read_table(data / _FILES[task])
    y = np.array([value == told["positive"] for value in table[told["label"]].to_pylist()], dtype=np.int64)
    test = _test_rows(table, told)
    for name, columns in told["parties"].items():
        x = np.hstack([_encoded(table[column], column in told["categories"], ~test) for column in columns])
        parts: dict[str, Any] = {"train": x[~test], "test": x[test]}
        if name == next(iter(told["parties"])):
            parts |= {"y": y[~test], "y_test": y[test]}
        np.savez(folder / f"{name}.npz", **parts)
        _write_table(folder / f"{name}.parquet", parts)
        _write_raw(folder / "raw" / f"{name}.parquet", table.select(columns), test, parts)
    return Inputs(task, folder, tuple(told["parties"]), int((~test).sum()), int(test.sum()))


def _test_rows(table: pa.Table, told: dict[str, Any]) -> NDArray[np.bool_]:
    if "split" in told:
        return np.array([part == "test" for part in table[told["split"]].to_pylist()])
    test = np.zeros(table.num_rows, dtype=np.bool_)
    test[np.random.default_rng(SETTINGS["seed"]).permutation(table.num_rows)[: told["test_rows"]]] = True
    return test


def _encoded(column: pa.ChunkedArray, category: bool, train: NDArray[np.bool_]) -> Floats:
    """A column as numbers, by its training rows; a gap is a category of its own."""
    if not category:
        numbers: NDArray[np.float64] = column.to_numpy().astype(np.float64)
        scores: Floats = ((numbers - numbers[train].mean()) / numbers[train].std()).astype(np.float32)
        return scores[:, None]
    values = np.array([str(value) for value in column.to_pylist()])
    same: NDArray[np.bool_] = values[:, None] == np.unique(values[train])[None]
    return same.astype(np.float32)


def _write_table(path: Path, parts: dict[str, NDArray[Any]]) -> None:
    x = np.vstack([parts["train"], parts["test"]])
    columns: dict[str, Any] = {f"x{i}": x[:, i].astype(np.float64) for i in range(x.shape[1])}
    if "y" in parts:
        columns |= {"y": np.concatenate([parts["y"], parts["y_test"]]), "place": np.arange(len(x), dtype=np.float64)}
    pq.write_table(pa.table(columns), path)


def _write_raw(path: Path, columns: pa.Table, test: NDArray[np.bool_], parts: dict[str, NDArray[Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    table = columns.take(order).append_column("id", pa.array(order))
    if "y" in parts:
        table = table.append_column("y", pa.array(np.concatenate([parts["y"], parts["y_test"]])))
        table = table.append_column("place", pa.array(np.arange(len(order), dtype=np.float64)))
    pq.write_table(table, path)
