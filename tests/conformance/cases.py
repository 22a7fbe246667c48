"""Small federations that the laws are tested on: configurations, models that are hard to restart, and own tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cvfl.config.files import load_config, parse_config
from cvfl.config.schema import RunConfig
from cvfl.models.image import ResNet

SERVER = "server"


def settings(**changes: Any) -> RunConfig:
    """A small federation of two parties; `every` is how many rounds lie between two checkpoints."""
    values: dict[str, Any] = {
        "data": {"name": "wine", "parties": 2},
        "step_size": {"eta": 0.1},
        "rounds": 6,
        "batch_size": 32,
        "local_iterations": 2,
        "compressor": "topk:bits=8",
        "server_compressor": "scalar:bits=8",
        "party_model": {"width": 4, "hidden": [4]},
        "evaluate_every": 2,
        "network": {"checkpoint_every": changes.pop("every", 2)},
        "seed": 3,
    }
    return parse_config(values | changes)


EPOCHS: dict[str, Any] = {"batch_size": 64, "rounds": 8}
"""Every sample comes two or three times."""
AUTO = EPOCHS | {"compressor": "auto", "server_compressor": "auto"}
SECURE: dict[str, Any] = {
    "data": {"name": "wine", "parties": 3},
    "compressor": "scalar:bits=4,low=-1,high=1",
    "server_model": {"name": "sum", "hidden": [5]},
    "privacy": {"aggregation": "secure"},
}
NAMED: dict[str, dict[str, Any]] = {
    "identity": {"compressor": "identity", "server_compressor": "identity"},
    "scalar": {"compressor": "scalar:bits=3"},
    "lattice": {"compressor": "lattice:bits=4", "data": {"name": "wine", "parties": 4}},
    "topk": {"compressor": "topk:bits=4", "server_compressor": "topk:bits=16"},
    "schedule": {"compressor": "schedule(lattice:bits=3)", "server_model": {"name": "mlp", "hidden": [5]}},
    "adam": {"optimizer": {"name": "adam"}, "step_size": {"eta": 0.01}},
    "adamw, cosine, clipped": {
        "optimizer": {"name": "AdamW", "weight_decay": 0.1, "clip": 0.05},
        "step_size": {"eta": 0.01, "schedule": "cosine", "warmup": 2},
    },
    "momentum": {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}},
    "algorithm 2": {"algorithm": 2, "local_iterations": 1, "gradient_compressor": "scalar:bits=8"},
    "algorithm 2, top-k, adam": {
        "algorithm": 2,
        "local_iterations": 1,
        "compressor": "topk:bits=8",
        "gradient_compressor": "lattice:bits=4",
        "optimizer": {"name": "adam"},
    },
    "float64": {
        "precision": "float64",
        "compressor": "scalar:bits=2",
        "step_size": {"eta": 0.1, "schedule": "inverse"},
    },
    "quiet messages": AUTO
    | {
        "party_model": {"name": "tabular", "width": 6, "hidden": [8], "dropout": 0.3},
        "server_model": {"name": "wide_deep", "hidden": [8]},
        "quiet_messages": True,
    },
    "quiet messages, relayed": AUTO
    | {
        "party_model": {"name": "tabular", "width": 10, "hidden": [8], "dropout": 0.3},
        "server_model": {"name": "attention"},
        "quiet_messages": True,
    },
    "batch norm and dropout": {
        "party_model": {"name": "conformance.cases:restless", "width": 4},
        "evaluate_every": 1,
    },
    "residual network": {
        "data": {"name": "digits", "parties": 4},
        "party_model": {"name": "conformance.cases:residual", "width": 4},
        "batch_size": 256,
        "rounds": 4,
        "evaluate_every": 1,
    },
    "attention": {"server_model": {"name": "attention", "hidden": [4]}, "compressor": "lattice:bits=3"},
    "nothing held out": {"data": {"name": "wine", "parties": 2, "test_share": 0.0}},
    "one party": {"data": {"name": "wine", "parties": 1}},
    "squared loss": {"data": {"name": "diabetes", "parties": 3}, "batch_size": 100},
    "feedback": EPOCHS
    | {
        "data": {"name": "wine", "parties": 3},
        "compressor": "feedback(scalar:bits=2)",
        "server_compressor": "feedback(topk:bits=8)",
        "evaluate_every": 3,
    },
    "feedback, algorithm 2": EPOCHS
    | {
        "algorithm": 2,
        "local_iterations": 1,
        "compressor": "feedback(topk:bits=4,by=entry)",
        "gradient_compressor": "auto",
    },
    "folding": {"folding": True, "compressor": "lattice:bits=3", "data": {"name": "wine", "parties": 3}},
    "auto": AUTO | {"data": {"name": "wine", "parties": 3}},
    "cached rows": EPOCHS | {"local_rows": "cached", "compressor": "scalar:bits=4", "local_iterations": 4},
    "cached rows, auto": AUTO
    | {"local_rows": "cached", "data": {"name": "wine", "parties": 3}, "local_iterations": 4, "rounds": 9},
    "auto, sum": AUTO | {"server_model": {"name": "sum", "hidden": [5]}, "precision": "float64"},
    "auto, attention": AUTO | {"server_model": {"name": "attention", "hidden": [4]}},
    "auto, budget": AUTO | {"data": {"name": "wine", "parties": 3}, "rounds": 12, "budget": "10.5 kB"},
    "auto, attention, budget": AUTO
    | {"server_model": {"name": "attention", "hidden": [4]}, "rounds": 16, "budget": 8000},
    "auto, algorithm 2": AUTO | {"algorithm": 2, "local_iterations": 1},
    "auto, one party": AUTO | {"data": {"name": "wine", "parties": 1, "test_share": 0.0}},
    "private labels": {"privacy": {"labels": "server"}, "local_iterations": 3, "gradient_compressor": "auto"},
    "private labels, squared loss": {
        "data": {"name": "diabetes", "parties": 3},
        "batch_size": 100,
        "step_size": {"eta": 0.02},
        "privacy": {"labels": "server"},
        "local_iterations": 3,
    },
    "private labels, mlp": AUTO
    | {"privacy": {"labels": "server"}, "server_model": {"name": "mlp", "hidden": [5]}, "precision": "float64"},
    "secure": SECURE,
    "secure, private labels": SECURE
    | {
        "compressor": "auto",
        "server_model": {"name": "sum"},
        "gradient_compressor": "scalar:bits=6",
        "privacy": {"aggregation": "secure", "labels": "server"},
    },
    "labels at a party": {"data": {"name": "wine", "parties": 3}, "privacy": {"labels": "bank"}, "local_iterations": 1},
    "labels at a party, auto": AUTO | {"privacy": {"labels": "hospital"}, "evaluate_every": 3},
    "secure, labels at a party": SECURE
    | {
        "server_model": {"name": "sum"},
        "privacy": {"aggregation": "secure", "labels": "insurer"},
    },
    "told labels": AUTO
    | {
        "data": {"name": "wine", "parties": 3},
        "privacy": {"labels": "bank", "label_epsilon": 2.0},
        "class_weight": "balanced",
    },
    "told labels of two classes": AUTO
    | {
        "data": {"name": "breast_cancer", "parties": 2},
        "privacy": {"labels": "server", "label_epsilon": 1.0},
        "class_weight": "balanced",
        "server_model": {"name": "mlp", "hidden": [5]},
    },
    "told labels, private model": AUTO
    | {
        "data": {"name": "wine", "parties": 3},
        "privacy": {"labels": "bank", "label_epsilon": 2.0, "private_model": True},
    },
    "told labels, private model, secure": SECURE
    | {"privacy": {"aggregation": "secure", "labels": "insurer", "label_epsilon": 2.0, "private_model": True}},
    "told quantities, private model": {
        "data": {"name": "diabetes", "parties": 3},
        "batch_size": 100,
        "privacy": {
            "labels": "hospital",
            "label_epsilon": 4.0,
            "label_range": [-2.0, 3.0],
            "private_model": True,
        },
    },
    "told quantities, algorithm 2": {
        "data": {"name": "diabetes", "parties": 3},
        "batch_size": 100,
        "algorithm": 2,
        "local_iterations": 1,
        "privacy": {"labels": "hospital", "label_epsilon": 4.0, "label_range": [-2.0, 3.0]},
    },
    "reconstruction penalty": AUTO
    | {
        "data": {"name": "wine", "parties": 3},
        "party_model": {"name": "tabular", "width": 6, "hidden": [8], "dropout": 0.3},
        "privacy": {"reconstruction_penalty": 0.5},
    },
    "secure, reconstruction penalty": SECURE
    | {
        "party_model": {"width": 2, "hidden": [4]},
        "privacy": {"aggregation": "secure", "reconstruction_penalty": 2.0},
        "optimizer": {"name": "adam"},
    },
    "labels at a party, reconstruction penalty": {
        "data": {"name": "wine", "parties": 3},
        "party_model": {"name": "conformance.cases:restless", "width": 4},
        "privacy": {"labels": "bank", "reconstruction_penalty": 0.5},
    },
    "absence": AUTO | {"data": {"name": "wine", "parties": 3}, "local_iterations": 3, "absence": {"rate": 0.3}},
    "absence, quiet, first layer at the server": AUTO
    | {
        "party_model": {"name": "tabular", "width": 6, "hidden": [8], "dropout": 0.3},
        "server_model": {"name": "wide_deep", "hidden": [8]},
        "quiet_messages": True,
        "first_layer": "server",
        "absence": {"rate": 0.2},
    },
    "absence, labels at a party": AUTO
    | {"privacy": {"labels": "bank"}, "local_iterations": 2, "absence": {"rate": 0.3}},
    "each its own": AUTO
    | {
        "compressor": "feedback(entropy(lattice:bits=3))",
        "partial_compressor": "feedback(scalar:bits=4)",
        "party": {"hospital": {"compressor": "topk:bits=8"}, "bank": {"compressor": "auto", "model": {"width": 3}}},
        "data": {"name": "wine", "parties": 3},
    },
}


def restless(shape: tuple[int, ...], width: int) -> nn.Module:
    """A party model with statistics that move in training and with dropout."""
    inputs = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(8, width),
        nn.Tanh(),
    )


def residual(shape: tuple[int, ...], width: int) -> nn.Module:
    """A small residual network for an image without channels."""
    return nn.Sequential(nn.Unflatten(1, (1, shape[0])), ResNet(1, width, 4, 1, 1))


PEOPLE = 90


def write_tables(folder: Path, unlabelled: tuple[int, ...] = (), aligned: bool = False) -> None:
    """A bank with the label and a shop: each some of the people, in its own order; or the same rows in both."""
    draw = np.random.default_rng(0)
    age, income = draw.integers(18, 90, PEOPLE), draw.normal(3000, 900, PEOPLE).round(6)
    late = income + draw.normal(0, 300, PEOPLE) < 3000 + 5 * (age - 50)
    basket = draw.gamma(2, 20, PEOPLE).round(6)
    city = draw.choice(["Bonn", "Kiel", "Trier"], PEOPLE)
    label = ["" if i in unlabelled else ("overdue" if late[i] else "settled") for i in range(PEOPLE)]
    bank = [[f"person-{i:04d}", age[i], income[i], label[i]] for i in range(PEOPLE)]
    shop = [[f"person-{i:04d}", city[i], basket[i]] for i in range(PEOPLE)]
    (folder / "row_secret").write_bytes(b"what the parties agreed on")
    if not aligned:
        bank, shop = bank[:75], shop[:14:-1]
    for name, header, rows in (("bank", ["ID", "age", "income", "y"], bank), ("shop", ["ID", "city", "basket"], shop)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])


def table_settings(folder: Path, data: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
    """A configuration for `write_tables`."""
    party = {
        "bank": {"table": str(folder / "bank.csv"), "label": "y", "row_secret": str(folder / "row_secret")},
        "shop": {"table": str(folder / "shop.csv")},
    }
    section = {"id": "ID"} | dict(data or {})
    return settings(**{"data": section, "party": party, "batch_size": 16, "compressor": "lattice:bits=3"} | changes)


def write_config(path: Path, config: RunConfig) -> Path:
    """The configuration as a file that the commands read."""
    values = config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    path.write_text("\n".join(_toml(values)) + "\n", encoding="utf-8")
    assert load_config(path).model_dump(exclude={"party"}) == config.model_dump(exclude={"party"})
    return path


def _toml(values: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{key} = {json.dumps(value)}"
    for key, value in values.items():
        if isinstance(value, dict):
            yield f"[{at}{key}]"
            yield from _toml(value, f"{at}{key}.")
