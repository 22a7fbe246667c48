"""What outputs mean to people: a probability and a class, or a value in the label's own units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.protocol import Loss
from cvfl.runs.bundle import ServerBundle


def numbers_of(bundle: ServerBundle, outputs: Tensor) -> Tensor:
    """Scores as numbers, a row an output: probabilities and the number of the class, or a value."""
    loss, decided, units = bundle.loss, bundle.decided, bundle.units
    if loss is Loss.SQUARED:
        return units.offset + units.scale * outputs.detach().cpu().double().reshape(-1, 1)
    p = decided.probabilities(loss, outputs).reshape(len(outputs), -1)
    chosen = p >= decided.threshold if loss is Loss.BINARY else p.argmax(1)[:, None]
    return torch.from_numpy(np.hstack([p, chosen]))


def columns_for(loss: Loss, outputs: int) -> int:
    """How many numbers a row's scores are."""
    return outputs if loss is Loss.SQUARED else outputs + 1


def named_scores(loss: Loss, classes: Sequence[str], numbers: Tensor) -> dict[str, pa.Array]:
    """Columns of a table from scores as numbers.

    Two classes: `score`, the probability of the second, and the `class` at the threshold. Several: a `score_CLASS`
    each, and the most likely `class`. A quantity: its `value`. Where classes have no names, they are numbers.
    """
    columns = [pa.array(column) for column in numbers.numpy().T]
    if loss is Loss.SQUARED:
        return {"value": columns[0]}
    *scores, _ = columns
    names = [f"score_{name}" for name in classes or range(len(scores))] if loss is Loss.MULTICLASS else ["score"]
    return dict(zip(names, scores, strict=True)) | {"class": _classes(classes, numbers[:, -1].numpy())}


def scores_of(bundle: ServerBundle, outputs: Tensor) -> dict[str, pa.Array]:
    """Columns of a table from outputs."""
    return named_scores(bundle.loss, bundle.classes, numbers_of(bundle, outputs))


def by_whom(names: Sequence[str], held: Sequence[Tensor]) -> pa.Array:
    """For every row the names of the parties that hold it, with commas between them."""
    weights = 1 << np.arange(len(names))
    there, at = np.unique(weights @ torch.stack([*held]).numpy(), return_inverse=True)
    words = [", ".join(name for name, bit in zip(names, weights, strict=True) if code & bit) for code in there]
    return pa.array(words).take(pa.array(at))


def _classes(classes: Sequence[str], chosen: NDArray[np.float64]) -> pa.Array:
    places = pa.array(chosen.astype(np.int64))
    return pa.array(classes).take(places) if classes else places
