"""Refuse nonsense before it enters a formula: each check returns its value or names the symbol."""

from __future__ import annotations

import math

from cvfl.errors import ConfigError


def count(name: str, value: int, least: int = 1) -> int:
    """A whole number of at least `least`: rounds, parties, components, bits."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def positive(name: str, value: float) -> float:
    """A finite number above zero: step sizes, smoothness, targets."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a finite number above 0, not {value!r}")
    return value


def non_negative(name: str, value: float) -> float:
    """A finite number, zero allowed: errors, variances, times."""
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} must be a finite number of at least 0, not {value!r}")
    return value


def span(low: float, high: float) -> tuple[float, float]:
    """The range of the components: finite and not empty."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"low must be below high and both finite, not low={low!r}, high={high!r}")
    return low, high
