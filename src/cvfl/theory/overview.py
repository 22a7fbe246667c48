"""One federation, every compressor: the numbers behind `cvfl theory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cvfl.errors import ConfigError
from cvfl.theory import choice
from cvfl.theory.bounds import EXACT, ErrorBound, lattice_error, lattice_volume, scalar_error, topk_count, topk_error
from cvfl.theory.checks import count, span
from cvfl.theory.cost import FLOAT_BITS, algorithm1_traffic, algorithm2_order, authors_cost


@dataclass(frozen=True)
class Setting:
    """A federation in the paper's symbols: M parties, each with embeddings of P components in [low, high]."""

    M: int
    B: int
    P: int
    low: float
    high: float
    R: int
    Q: int
    theta_0: int

    def __post_init__(self) -> None:
        for name in ("M", "B", "P", "R", "Q"):
            count(name, getattr(self, name))
        count("theta_0", self.theta_0, 0)
        span(self.low, self.high)

    @property
    def iterations(self) -> int:
        """The paper's T: R rounds of Q."""
        return self.R * self.Q

    @property
    def n(self) -> int:
        """Components of one message."""
        return self.B * self.P

    @property
    def peak(self) -> float:
        """Largest magnitude of a component."""
        return max(abs(self.low), abs(self.high))

    @property
    def norm2_max(self) -> float:
        """Largest squared norm of an embedding, the paper's max ||h||^2."""
        return self.P * self.peak**2


@dataclass(frozen=True)
class CompressorRow:
    """A compressor at a bit width: its parameter, the error of one message, the bytes of all messages.

    Algorithm 2 has one iteration a round, so its total is over T rounds: as many steps as Algorithm 1 takes.
    """

    compressor: str
    bits: int
    symbol: str
    parameter: float
    error: ErrorBound
    table1_error: float
    algorithm1_round: float
    algorithm1_total: float
    algorithm2_round: float
    algorithm2_total: float
    authors_total: float


@dataclass(frozen=True)
class RateRow:
    """What a compressor needs for an error of at most c/sqrt(T) a message; None where 16 bits are too few."""

    compressor: str
    symbol: str
    parameter: float | None
    bits: float | None
    error: ErrorBound | None
    table1_parameter: float


def compressor_rows(setting: Setting, bits: Sequence[int]) -> list[CompressorRow]:
    """No compression first, then scalar, lattice and top-k for each bit width."""
    s, rows = setting, [_row(setting, "none", 32, "b", 32, EXACT, 0.0)]
    for b in bits:
        if count("bits", b) > choice.MAX_BITS:
            raise ConfigError(f"bits must be 1..{choice.MAX_BITS}, not {b}")
        V, k = lattice_volume(b, s.low, s.high), topk_count(s.P, b)
        scalar, paper = scalar_error(s.n, b, s.low, s.high), choice.table1_scalar_error(s.B, s.P, b, s.low, s.high)
        rows.append(_row(s, "scalar", b, "b", b, scalar, paper))
        lattice, paper = lattice_error(s.n, b, s.low, s.high), choice.table1_lattice_error(s.B, s.P, V)
        rows.append(_row(s, "lattice", b, "V", V, lattice, paper))
        topk, paper = topk_error(s.B * (s.P - k), s.peak), choice.table1_topk_error(s.B, s.P, k, s.norm2_max)
        # k is rounded, so the bytes are those of k whole 32-bit values and not of b bits a component.
        sent = _Sent(k, topk_count(s.theta_0, b), FLOAT_BITS)
        rows.append(_row(s, "top-k", b, "k", k, topk, paper, sent))
    return rows


def rate_rows(setting: Setting, c: float = 1.0) -> list[RateRow]:
    """Scalar, lattice and top-k with the cheapest parameter for the rate O(1/sqrt(T))."""
    s, T, target = setting, setting.iterations, choice.rate_target(setting.iterations, c)
    scalar, lattice = (
        choice.bits_for_error(error, s.n, s.low, s.high, target) for error in (scalar_error, lattice_error)
    )
    V, k = choice.volume_for_error(s.n, s.low, s.high, target), choice.k_for_error(s.B, s.P, s.peak, target)
    q_paper, V_paper = choice.table1_bits(T, s.B, s.P, s.low, s.high), choice.table1_volume(T, s.B, s.P)
    k_paper = choice.table1_k(T, s.B, s.P, s.norm2_max)
    return [
        RateRow("scalar", "b", scalar, scalar, _error_at(scalar_error, s, scalar), q_paper),
        RateRow("lattice", "V", V, lattice, _error_at(lattice_error, s, lattice), V_paper),
        RateRow("top-k", "k", k, FLOAT_BITS * k / s.P, topk_error(s.B * (s.P - k), s.peak), k_paper),
    ]


class _Sent(NamedTuple):
    """What a compressor leaves to send: values of an embedding, values of theta_0, bits of each."""

    P: int
    theta_0: int
    bits: float


def _row(
    s: Setting,
    name: str,
    bits: int,
    symbol: str,
    parameter: float,
    error: ErrorBound,
    paper: float,
    sent: _Sent | None = None,
) -> CompressorRow:
    """A row of a compressor that sends every component, or what `sent` says."""
    sent = sent or _Sent(s.P, s.theta_0, bits)
    P = [sent.P] * s.M
    return CompressorRow(
        compressor=name,
        bits=bits,
        symbol=symbol,
        parameter=parameter,
        error=error,
        table1_error=paper,
        algorithm1_round=algorithm1_traffic(1, s.B, P, sent.theta_0, sent.bits).total,
        algorithm1_total=algorithm1_traffic(s.R, s.B, P, sent.theta_0, sent.bits).total,
        algorithm2_round=_algorithm2(s, 1, sent),
        algorithm2_total=_algorithm2(s, s.iterations, sent),
        authors_total=authors_cost(s.R, s.M, s.B, s.P, s.theta_0, bits),
    )


def _algorithm2(s: Setting, rounds: int, sent: _Sent) -> float:
    """Compressed embeddings up, whole gradients down: those of dropped components count, too."""
    return algorithm2_order(rounds, s.B, [sent.P] * s.M, sent.bits) + algorithm2_order(rounds, s.B, [s.P] * s.M)


def _error_at(error: choice.QuantizerError, s: Setting, bits: int | None) -> ErrorBound | None:
    return None if bits is None else error(s.n, bits, s.low, s.high)
