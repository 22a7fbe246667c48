"""Everything numeric that the paper states: numbers in, numbers out. Here is what other rooms compute with."""

from cvfl.theory.bounds import (
    EXACT,
    ErrorBound,
    deadzone_error,
    lattice_error,
    lattice_spacing,
    scalar_error,
    scalar_step,
    topk_count,
    topk_error,
)
from cvfl.theory.choice import diminished, extra_bits, kept_for_factor
from cvfl.theory.cost import Traffic, algorithm2_traffic, authors_cost, computing, latency, transfer

__all__ = [
    "EXACT",
    "ErrorBound",
    "Traffic",
    "algorithm2_traffic",
    "authors_cost",
    "computing",
    "deadzone_error",
    "diminished",
    "extra_bits",
    "kept_for_factor",
    "latency",
    "lattice_error",
    "lattice_spacing",
    "scalar_error",
    "scalar_step",
    "topk_count",
    "topk_error",
    "transfer",
]
