"""The label's own units: models learn a quantity as a number around 0, people read it as it was in the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Units:
    """Of a quantity in the table and the number that a model learns of it: quantity = offset + scale * number."""

    offset: float = 0.0
    scale: float = 1.0
