"""Choosing a compressor's parameter: Table 1 as printed, and the same choice for the quantizers of `bounds`.

Table 1 gives orders, Omega(...) and O(...). Here the choice is a number: the cheapest parameter whose
`expected` bound is at most a target. The target for the rate O(1/sqrt(T)) is c / sqrt(T) for each message;
the constant c is the caller's, since the theorem says nothing about it.

For a diminishing error (Theorem 2 with eta = O(1/t0)) `diminished` says how much the error must have shrunk
by round t0, and `extra_bits` and `kept_for_factor` say what that costs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from cvfl.errors import ConfigError
from cvfl.theory.bounds import ErrorBound, lattice_error, lattice_volume, topk_error
from cvfl.theory.checks import count, non_negative, positive, span

MAX_BITS = 16
QuantizerError = Callable[[int, int, float, float], ErrorBound]
"""`scalar_error` or `lattice_error`: n, bits, low, high -> bounds of a message's error."""


# --- Table 1 as printed ------------------------------------------------------------


def table1_scalar_error(B: int, P: int, bits: int, low: float, high: float) -> float:
    """B P (high - low)^2 / 12 * 2^(-2q)."""
    low, high = span(low, high)
    return count("B", B) * count("P", P) * (high - low) ** 2 / 12 * 4.0 ** -count("bits", bits)


def table1_lattice_error(B: int, P: int, V: float) -> float:
    """V B P / 24; too low by half, see `bounds`. V is in the unit of the components, squared."""
    return positive("V", V) * count("B", B) * count("P", P) / 24


def table1_topk_error(B: int, P: int, k: int, norm2_max: float) -> float:
    """B (1 - k/P) max ||h||^2; holds only if the largest components are the ones kept."""
    return count("B", B) * (1 - _kept(P, k) / P) * non_negative("norm2_max", norm2_max)


def table1_bits(T: int, B: int, P: int, low: float, high: float) -> float:
    """The argument of q = Omega(log2(B P (high - low)^2 sqrt(T))): twice what the error bound asks for."""
    low, high = span(low, high)
    return math.log2(count("B", B) * count("P", P) * (high - low) ** 2 * math.sqrt(count("T", T)))


def table1_volume(T: int, B: int, P: int) -> float:
    """The argument of V = O(1 / (B P sqrt(T)))."""
    return 1 / (count("B", B) * count("P", P) * math.sqrt(count("T", T)))


def table1_k(T: int, B: int, P: int, norm2_max: float) -> float:
    """The argument of k = Omega(P - P / (B max ||h||^2 sqrt(T))); negative where any k will do."""
    scale = count("B", B) * positive("norm2_max", norm2_max) * math.sqrt(count("T", T))
    return count("P", P) * (1 - 1 / scale)


# --- Cheapest parameter for a target error, such as that of the 1/sqrt(T) rate -----


def bits_for_error(error: QuantizerError, n: int, low: float, high: float, target: float) -> int | None:
    """Fewest bits, 1..16, with an expected error of n components of at most `target`; None if 16 fail."""
    count("n", n)
    positive("target", target)
    low, high = span(low, high)
    return next((b for b in range(1, MAX_BITS + 1) if error(n, b, low, high).expected <= target), None)


def volume_for_error(n: int, low: float, high: float, target: float) -> float | None:
    """Largest cell area V among the lattices of 1..16 bits whose expected error is at most `target`."""
    bits = bits_for_error(lattice_error, n, low, high, target)
    return None if bits is None else lattice_volume(bits, low, high)


def k_for_error(B: int, P: int, peak: float, target: float) -> int:
    """Fewest components of each embedding to keep for an error of at most `target`, whichever are kept."""
    count("B", B)
    count("P", P)
    non_negative("peak", peak)
    positive("target", target)
    # Searched rather than solved: the quotient could round and drop one component too many.
    return 1 + bisect_left(range(1, P), True, key=lambda k: topk_error(B * (P - k), peak).expected <= target)


def rate_target(T: int, c: float = 1.0) -> float:
    """Error of a message that keeps the rate O(1/sqrt(T)): c / sqrt(T)."""
    return positive("c", c) / math.sqrt(count("T", T))


# --- Errors that diminish from round to round --------------------------------------


def diminished(t0: int, rate: float = 0.5) -> float:
    """Factor (t0 + 1)^-rate to which the error must have shrunk by round t0; Theorem 2 asks for rate > 0."""
    return float((count("t0", t0, 0) + 1) ** -non_negative("rate", rate))


def extra_bits(factor: float) -> int:
    """Bits to add so that a quantizer's bounds shrink at least to `factor`: fewest e with 4^-e <= factor.

    Scalar: ((2^b - 1) / (2^(b+e) - 1))^2 <= 4^-e. Lattice: s^2 shrinks to 4^-e, the border term never grows.
    """
    _check_factor(factor)
    _, exponent = math.frexp(factor)  # exact where log2 rounds: 2^(exponent - 1) <= factor < 2^exponent
    return (2 - exponent) // 2


def kept_for_factor(P: int, k: int, factor: float) -> int:
    """Components to keep instead of k so that top-k's bound shrinks at least to `factor`."""
    _check_factor(factor)
    return P - math.floor(factor * (P - _kept(P, k)))


def _kept(P: int, k: int) -> int:
    if count("k", k) > count("P", P):
        raise ConfigError(f"k = {k} is more than the P = {P} components there are")
    return k


def _check_factor(factor: float) -> None:
    if positive("factor", factor) > 1:
        raise ConfigError(f"factor must be at most 1, not {factor!r}: an error that grows needs no bits")
