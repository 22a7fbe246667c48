"""Embeddings of new rows: a party's columns, prepared as in training, through its model at rest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.table import Table
from cvfl.errors import DataError
from cvfl.protocol.outputs import Inputs, outputs_of
from cvfl.runs.bundle import PartyBundle
from cvfl.runtime import one_thread_a_role
from cvfl.serving.advice import for_new_rows
from cvfl.types import OnStep

WINDOW = 1 << 17
"""Rows whose columns are in memory together."""


def at_rest(model: nn.Module, inputs: Inputs) -> Tensor:
    """What a model makes of rows, in the bits of an evaluation."""
    with one_thread_a_role(), torch.no_grad():
        return outputs_of(model, inputs)


def finite(outputs: Tensor) -> Tensor:
    """Outputs that are scores."""
    if not bool(torch.isfinite(outputs).all()):
        raise DataError("a score is not finite; look for values far outside of those that training had")
    return outputs


def embedded(
    bundle: PartyBundle,
    model: nn.Module,
    preparation: Preparation | None,
    table: Table,
    places: NDArray[np.int64],
    on_step: OnStep,
) -> Tensor:
    """h_m of the rows at these places of the table, in their order; computed in the order of the table, by windows."""
    assert preparation is not None  # since there is a table
    h, order = torch.empty(len(places), bundle.width, dtype=bundle.dtype), places.argsort(kind="stable")
    ends = places[order].searchsorted(range(0, table.rows + WINDOW, WINDOW))
    for window, (start, end) in enumerate(pairwise(ends)):
        first = window * WINDOW
        on_step(f"{bundle.role}: embedding", first, table.rows)
        if start < end:
            chosen, view = order[start:end], table.window(first, min(WINDOW, table.rows - first))
            with for_new_rows():
                x = preparation.transform(view, places[chosen] - first, bundle.dtype)
            h[torch.from_numpy(chosen)] = at_rest(model, x)
    return h
