"""Tables of two or three organisations for predictions: numbers, categories and dates, with a label at the bank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.rng import stream

ROWS = 300


def frames(kind: str = "binary", rows: int = ROWS, first: int = 0) -> dict[str, pa.Table]:
    """People first, first + 1, ... of a bank and a shop; the label depends on both tables."""
    u = stream(first + 1, "tables").uniform(6 * rows).reshape(6, rows)
    score = u[0] + u[1] - u[2] + 0.3 * (u[3] > 0.5)
    label: Any = {
        "binary": np.where(score > 0.65, "yes", "no"),
        "several": np.select([score > 0.9, score > 0.4], ["high", "middle"], "low"),
        "quantity": 1000 + 250 * score,
    }[kind]
    ids = [f"p{first + n}" for n in range(rows)]
    days = np.datetime64("2020-01-01") + (u[4] * 900).astype(int)
    bank = {
        "person": ids,
        "income": u[0] * 50_000,
        "debt": np.where(u[5] < 0.1, np.nan, u[1] * 9_000),
        "since": days.astype("datetime64[s]"),
        "target": label,
    }
    shop = {
        "person": ids[::-1],
        "spent": (u[2] * 700)[::-1],
        "branch": np.where(u[3] > 0.5, "10", "20")[::-1],
        "channel": np.where(u[5] > 0.5, "web", "store")[::-1],
    }
    return {"bank": _table(bank), "shop": _table(shop)}


def _table(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})


def write(tables: Mapping[str, pa.Table], folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        pyarrow.csv.write_csv(table, paths[name])
    return paths


def config(paths: Mapping[str, Path], **changes: Any) -> RunConfig:
    """A quick run on these tables, uncompressed unless changed."""
    values: dict[str, Any] = {
        "data": {"id": "person", "test_share": 0.2, "validation_share": 0.2},
        "step_size": {"eta": 0.01},
        "batch_size": 32,
        "local_iterations": 2,
        "optimizer": {"name": "adam"},
        "compressor": "identity",
        "server_compressor": "identity",
        "party_model": {"width": 4, "hidden": [8]},
        "party": {
            "bank": {"table": str(paths["bank"]), "label": "target"},
            "shop": {"table": str(paths["shop"]), "types": {"branch": "category"}},
        },
        "seed": 3,
    }
    length = {"rounds": changes["rounds"]} if "rounds" in changes else {"epochs": 3}
    return parse_config(values | length | changes)
