"""What a federation is compared with: usual models of the joined table, and of every party's table alone.

They see the rows of the run, each for what it is there, and the columns as each party has prepared them. Boosting ends
by the validation rows, if there are any. Of two classes, F1 is at the threshold that is best on them.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from cvfl.data import VerticalData
from cvfl.errors import ConfigError
from cvfl.lazy import lazy
from cvfl.protocol import Loss
from cvfl.protocol.learning.decision import Decided, Decision
from cvfl.protocol.learning.metrics import evaluate
from cvfl.protocol.learning.units import Units
from cvfl.rng import stream
from cvfl.runs.directory import PARTS
from cvfl.runs.journal import write_whole
from cvfl.runs.record import Reference, Scores
from cvfl.types import OnStep

ensemble, exceptions, linear_model = (lazy(f"sklearn.{part}") for part in ("ensemble", "exceptions", "linear_model"))
compose, pipeline, preprocessing = (lazy(f"sklearn.{part}") for part in ("compose", "pipeline", "preprocessing"))

MOST_TREES = 500
"""Trees of boosting that ends by the validation rows."""
MOST_VALUES = 255
"""Categories that boosting can tell apart; a column with more is a number to it."""
Columns = NDArray[np.float64]


class _Table:
    """Columns of some parties side by side: numbers first, then codes of categories."""

    def __init__(self, data: VerticalData, parties: Sequence[int]) -> None:
        counts = data.categories or ((),) * len(data.names)
        self.categories = [values for m in parties for values in counts[m]]
        held = {"train": data.train, "validation": data.validation, "test": data.test}
        self.parts = {
            part: _joined([(rows[m], len(counts[m])) for m in parties]) for part, rows in held.items() if rows
        }
        y = {"train": data.train_labels, "validation": data.validation_labels, "test": data.test_labels}
        self.units = data.units
        self.labels = {part: y[part] for part in self.parts}

    @property
    def columns(self) -> int:
        """How many there are."""
        return len(self.parts["train"][0])

    @property
    def coded(self) -> list[int]:
        """Places of the columns with codes."""
        return list(range(self.columns - len(self.categories), self.columns))


def _joined(held: Sequence[tuple[Any, int]]) -> Columns:
    flat = [(rows.flatten(1).double().numpy(), rows[0].numel() - codes) for rows, codes in held]
    return np.hstack([*(x[:, :numbers] for x, numbers in flat), *(x[:, numbers:] for x, numbers in flat)])


def check_comparable(data: VerticalData) -> None:
    """Refuse data that usual models cannot be compared on."""
    if not len(data.test_labels):
        raise ConfigError("--compare needs test rows to compare on; set data.test_share")
    if not all(isinstance(rows, Tensor) for rows in data.train):
        raise ConfigError("--compare is for tables: rows of this data set are too large to be held in memory together")


def fit_references(data: VerticalData, seed: int, on_step: OnStep = lambda *_: None) -> list[Reference]:
    """Fit both models to the joined table and to every party's alone; the same every time."""
    check_comparable(data)
    tables = [(None, range(len(data.names))), *((name, [m]) for m, name in enumerate(data.names))]
    kinds = {"boosting": _boosting, "ridge" if data.loss is Loss.SQUARED else "logistic": _linear}
    wanted = [(party, parties, kind) for party, parties in tables for kind in kinds]
    found = []
    for done, (party, parties, kind) in enumerate(wanted):
        on_step("comparing with usual models", done, len(wanted))
        found.append(_fitted(party, kind, kinds[kind], _Table(data, parties), data.loss, seed))
    return found


def _fitted(party: str | None, kind: str, make: Callable[..., Any], table: _Table, loss: Loss, seed: int) -> Reference:
    began = time.perf_counter()
    with threadpool_limits(1), warnings.catch_warnings():  # figures do not depend on the number of cores
        warnings.simplefilter(
            "ignore", exceptions.ConvergenceWarning
        )  # a model that could be a little better still is one
        model = make(table, loss, stream(seed, "reference", party or "", kind).seed() % 2**32)
        outputs = {part: _outputs(model, x, loss) for part, x in table.parts.items()}
    seconds, scores = time.perf_counter() - began, Scores(**dict(_scores(outputs, table.labels, loss, table.units)))
    return Reference(party=party, model=kind, columns=table.columns, metrics=scores, seconds=seconds)


def _linear(table: _Table, loss: Loss, seed: int) -> Any:
    x, y = table.parts["train"], table.labels["train"].numpy()
    one_hot = (preprocessing.OneHotEncoder(handle_unknown="ignore"), table.coded)
    columns = compose.make_column_transformer(one_hot, remainder="passthrough")
    model = (
        linear_model.Ridge()
        if loss is Loss.SQUARED
        else linear_model.LogisticRegression(max_iter=1000, random_state=seed)
    )
    return pipeline.make_pipeline(columns, model).fit(x, y)


def _boosting(table: _Table, loss: Loss, seed: int) -> Any:
    kind = ensemble.HistGradientBoostingRegressor if loss is Loss.SQUARED else ensemble.HistGradientBoostingClassifier
    few = [at for at, values in zip(table.coded, table.categories, strict=True) if values <= MOST_VALUES]
    x, y = table.parts["train"], table.labels["train"].numpy()
    if "validation" not in table.parts:
        return kind(categorical_features=few, random_state=seed).fit(x, y)
    model = kind(categorical_features=few, random_state=seed, early_stopping=True, max_iter=MOST_TREES)
    return model.fit(x, y, X_val=table.parts["validation"], y_val=table.labels["validation"].numpy())


def _outputs(model: Any, x: Columns, loss: Loss) -> Tensor:
    """What a server model would give: logits, or numbers."""
    match loss:
        case Loss.SQUARED:
            outputs = model.predict(x)
        case Loss.BINARY:
            outputs = model.decision_function(x)
        case Loss.MULTICLASS:
            outputs = np.log(np.maximum(model.predict_proba(x), np.finfo(np.float64).tiny))
    return torch.from_numpy(np.asarray(outputs, dtype=np.float64))


def _scores(
    outputs: dict[str, Tensor], labels: dict[str, Tensor], loss: Loss, units: Units
) -> Iterator[tuple[str, dict[str, float]]]:
    """Metrics by kind of rows, as of a run: at the threshold that validation rows choose, in the label's units."""
    y = {part: loss.labels(labels[part], torch.float64) for part in outputs}
    held_out = "validation" in outputs
    decided = Decision().fit(loss, outputs["validation"], y["validation"]) if held_out else Decided()
    for part in (part for part in PARTS if part in outputs):
        yield part, evaluate(loss, outputs[part], y[part], decided, units)


def add_references(run: Path, references: Sequence[Reference]) -> dict[str, Any]:
    """Put them into a run's summary and report; the summary."""
    path = run / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    summary["references"] = [one.model_dump(exclude_unset=True) for one in references]
    write_whole(path, json.dumps(summary, indent=2) + "\n")
    from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

    write_report([run], run / "report.html")
    return summary
