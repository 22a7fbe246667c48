"""Small real data sets that ship with scikit-learn, divided among parties: for the demo, for trying out, for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from cvfl.data.vertical import VerticalData, quadrants, split_columns
from cvfl.lazy import lazy
from cvfl.protocol import Loss, Units
from cvfl.rng import SPLIT, stream

datasets = lazy("sklearn.datasets")

BUILTIN = {
    "digits": Loss.MULTICLASS,
    "breast_cancer": Loss.BINARY,
    "wine": Loss.MULTICLASS,
    "diabetes": Loss.SQUARED,
}
_ORGANISATIONS = ("hospital", "bank", "insurer", "registry")


def load_builtin(name: str, parties: int, seed: int, test_share: float, dtype: torch.dtype) -> VerticalData:
    """A built-in data set, standardised on its training rows and divided by columns.

    The digits go by quadrant of the image when there are four parties.
    """
    loss = BUILTIN[name]
    table, target = getattr(datasets, f"load_{name}")(return_X_y=True)
    x, y = torch.from_numpy(table).to(dtype), torch.from_numpy(target)
    order = torch.from_numpy(stream(seed, SPLIT, name).permutation(len(x)))
    held_out = round(test_share * len(x))
    test, train = order[:held_out], order[held_out:]
    x = _standardised(x, train)
    labels = loss.labels(_standardised(y.to(dtype)[:, None], train)[:, 0] if loss is Loss.SQUARED else y, dtype)
    known = y.to(dtype)[train]
    parts = quadrants(x.reshape(-1, 8, 8)) if name == "digits" and parties == 4 else split_columns(x, parties)
    return VerticalData(
        names=_ORGANISATIONS[:parties] if parties <= 4 else tuple(f"party{m}" for m in range(1, parties + 1)),
        train=tuple(part[train].contiguous() for part in parts),
        test=tuple(part[test].contiguous() for part in parts),
        train_labels=labels[train],
        test_labels=labels[test],
        loss=loss,
        units=Units(float(known.mean()), float(known.std())) if loss is Loss.SQUARED else Units(),
    )


def _standardised(x: Tensor, train: Tensor) -> Tensor:
    mean, deviation = x[train].mean(0), x[train].std(0)
    return (x - mean) / torch.where(deviation > 0, deviation, 1.0)
