"""Randomised response: what the holder of labels tells instead of them, drawn once a row from a secret of its own.

    HMAC-SHA256(HMAC-SHA256(secret, release), id, label)  ──▶  u, uniform over (0, 1)  ──▶  what is told

The same row of the same release is told alike in every run, so that runs do not add up; a row whose label has changed
is drawn anew. A release is its epsilon, the column and the labels that may be told: draws of two releases have nothing
to do with each other, or together they would say more than both epsilons allow.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cvfl.protocol.learning.randomised import GRID, Randomised

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
_HASH = "sha256"


def tell_classes(
    secret: bytes, noise: Randomised, column: str, ids: Iterable[str], codes: Whole, names: Sequence[str]
) -> Whole:
    """For every row a class: its own, or any other with equal probability. The order of the classes does not matter."""
    inwards, count = np.argsort(np.argsort(names)), len(names)
    places = inwards[codes]
    u = _uniform(secret, noise, column, sorted(names), ids, (names[code] for code in codes.tolist()))
    keep = noise.keep(count)
    other = np.minimum(((u - keep) / (1 - keep) * (count - 1)).astype(np.int64), count - 2)
    told = np.where(u < keep, places, other + (other >= places))
    return np.argsort(names)[told].astype(np.int64)


def tell_quantities(secret: bytes, noise: Randomised, column: str, ids: Iterable[str], values: Floats) -> Floats:
    """For every row its value within the limits, with noise of Laplace's law: a whole number of steps of a grid.

    On a grid what is told has no last digits in which floats would betray the value.
    """
    assert noise.range is not None
    low, high = noise.range
    steps = np.rint((np.clip(values, low, high) - low) / (high - low) * GRID).astype(np.int64)
    u = _uniform(secret, noise, column, [low, high], ids, (str(step) for step in steps.tolist()))
    told = (steps + _geometric(u, noise.epsilon / GRID)).astype(np.float64)
    return low + told * ((high - low) / GRID)


def _uniform(
    secret: bytes, noise: Randomised, column: str, may: Sequence[str | float], ids: Iterable[str], labels: Iterable[str]
) -> Floats:
    """A number for every row, which nobody without the secret can tell from a random one."""
    release = json.dumps(["cvfl labels", repr(float(noise.epsilon)), column, list(may)])
    key = hmac.digest(secret, release.encode(), _HASH)
    digests = b"".join(
        hmac.digest(key, f"{len(one)}:{one}:{label}".encode(), _HASH)[:8]
        for one, label in zip(ids, labels, strict=True)
    )
    return ((np.frombuffer(digests, dtype="<u8") >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _geometric(u: Floats, rate: float) -> Whole:
    """Whole numbers z with probability proportional to e^(-rate |z|), by the inverse of their distribution."""
    scale = 1 + np.exp(-rate)
    upper = u <= 1 / scale
    size = np.floor(-np.log(np.where(upper, u, 1 - u) * scale) / rate)
    found: Whole = np.where(upper, size, -size).astype(np.int64)
    return found
