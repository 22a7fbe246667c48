"""A model at rest: the outputs of a row, in the same bits whichever rows are beside it.

Kernels that multiply matrices take other ways for the last few rows of an uneven number, and for rows that do not begin
where their vector instructions would like them to. A person's score would then change in its last bit with the people
who are scored together. So batches are filled up to an even number of rows, and rows to an even number of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

ROWS = 1024
"""Rows that a model is evaluated on at a time."""
_ROWS, _COLUMNS = 32, 16
"""What the number of rows, and that of columns, are multiples of."""
Inputs = TypeVar("Inputs", Tensor, Sequence[Tensor])


def outputs_of(model: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
    """The outputs of a model for rows, or for the embeddings of rows."""
    rows = len(inputs if isinstance(inputs, Tensor) else inputs[0])
    if rows == 0:
        return model(inputs)
    outputs = []
    for start in range(0, rows, ROWS):
        end = min(rows, start + ROWS)
        filled = start - (start - end) // _ROWS * _ROWS
        chosen = slice(start, end) if filled == end else _places(start, end, filled)
        batch = inputs[chosen] if isinstance(inputs, Tensor) else [part[chosen] for part in inputs]
        with _Even():
            computed = model(batch)
        outputs.append(computed[: end - start])
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


@lru_cache(maxsize=64)
def _places(start: int, end: int, filled: int) -> Tensor:
    """Rows from `start` to `end`, the last one again until there are enough; not to be changed."""
    return torch.arange(start, filled).clamp_max(end - 1)


class _Even(TorchFunctionMode):
    """Linear layers see rows that begin at even places: columns of zeros are added, which change no product."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear and len(args) > 1:
            x, weight, *bias = args
            more = (0, -x.shape[-1] % _COLUMNS)
            args = (F.pad(x, more), F.pad(weight, more), *bias) if more[1] else (x.contiguous(), weight, *bias)
        return func(*args, **(kwargs or {}))
