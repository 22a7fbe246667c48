"""Bytes and seconds that the paper's formulas give; what really leaves a process is measured elsewhere.

    Algorithm 1, a round      party m --- B P_m --->  server        (M such messages)
                              party m <-- B sum P + |theta_0| ---   (to each of M parties)
    Algorithm 2, a round      party m --- B P_m --->  server
                              party m <-- B P_m ---                 (the gradient of its embedding)

Three figures for one algorithm differ, so each has a name: `_order` is the argument of the paper's O(),
`_traffic` counts what the pseudo-code sends, `authors_` is what the authors' plot script adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cvfl.errors import ConfigError
from cvfl.theory.checks import count, non_negative, positive

FLOAT_BITS = 32.0


@dataclass(frozen=True)
class Traffic:
    """Bytes to the server (all parties together) and from it."""

    up: float
    down: float

    @property
    def total(self) -> float:
        """Both directions."""
        return self.up + self.down


def algorithm1_order(R: int, B: int, P: Sequence[int], theta_0: int, bits: float = FLOAT_BITS) -> float:
    """R M (B sum P_m + |theta_0|) words of `bits`, in bytes: the paper's O(), which hides the upload."""
    return count("R", R) * len(P) * _bytes(_embeddings(B, P) + count("theta_0", theta_0, 0), bits)


def algorithm1_traffic(R: int, B: int, P: Sequence[int], theta_0: int, bits: float = FLOAT_BITS) -> Traffic:
    """Bytes that lines 6 and 9 of Algorithm 1 send in R rounds."""
    up = count("R", R) * _bytes(_embeddings(B, P), bits)
    return Traffic(up, algorithm1_order(R, B, P, theta_0, bits))


def algorithm2_order(R: int, B: int, P: Sequence[int], bits: float = FLOAT_BITS) -> float:
    """R B sum P_m words of `bits`, in bytes: the paper's O() for Algorithm 2."""
    return count("R", R) * _bytes(_embeddings(B, P), bits)


def algorithm2_traffic(
    R: int, B: int, P: Sequence[int], bits: float = FLOAT_BITS, gradient_bits: float = FLOAT_BITS
) -> Traffic:
    """Bytes that lines 5 and 9 of Algorithm 2 send in R rounds; its line 9 compresses no gradient."""
    return Traffic(algorithm2_order(R, B, P, bits), algorithm2_order(R, B, P, gradient_bits))


def authors_cost(R: int, M: int, B: int, P: int, theta_0: int, bits: float = FLOAT_BITS) -> float:
    """The plot script's bits (2 P B M^2 + |theta_0| M) a round, in bytes: counts each upload M times."""
    words = 2 * count("P", P) * count("B", B) * count("M", M) ** 2 + count("theta_0", theta_0, 0) * M
    return count("R", R) * _bytes(words, bits)


def authors_imagenet_cost(R: int, M: int, B: int, P: int, theta_0: int, bits: float = FLOAT_BITS) -> float:
    """For ImageNet the script has bits (P B M (M+1) + |theta_0| M) a round: what Algorithm 1 sends."""
    words = count("P", P) * count("B", B) * count("M", M) * (M + 1) + count("theta_0", theta_0, 0) * M
    return count("R", R) * _bytes(words, bits)


def latency(R: int, Q: int, compute: float, round_trip: float) -> float:
    """Time of R rounds as in Table 5: R (Q compute + round_trip), in the unit of the two times."""
    return count("R", R) * (count("Q", Q) * non_negative("compute", compute) + non_negative("round_trip", round_trip))


def computing(relay: float, train: float, parties: Sequence[float]) -> float:
    """Time of a round's computing with a machine a role: the server relays, then trains beside the slowest party."""
    beside = [non_negative("train", train), *(non_negative("parties", value) for value in parties)]
    return non_negative("relay", relay) + max(beside)


def transfer(sent: Traffic, bandwidth: float) -> float:
    """Seconds that bytes need on the server's link of `bandwidth` bits a second each way, up and down in turn."""
    return 8 * non_negative("sent", sent.total) / positive("bandwidth", bandwidth)


def _embeddings(B: int, P: Sequence[int]) -> int:
    """Components of all embeddings of a batch: B sum P_m."""
    if not P:
        raise ConfigError("P must hold the embedding size of at least one party")
    return count("B", B) * sum(count(f"P[{m}]", size) for m, size in enumerate(P, start=1))


def _bytes(words: int, bits: float) -> float:
    return words * positive("bits", bits) / 8
