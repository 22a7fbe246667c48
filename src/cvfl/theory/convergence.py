r"""Convergence of Algorithm 1: Lemma 1, Theorems 1 and 2 and the remark between them.

    m = 0 is the server, m = 1..M the parties; round t0 = 0..R-1 has Q local iterations, T = R Q
    errors[t0][m]  is the paper's E_m^{t0}, the expected squared error of the message of m in round t0

`theorem1` is the theorem as printed. `theorem1_proved` is what the proof gives once its slips are mended:
- The variance term: the proof drops 8 Q^2 L_m^2 eta^2, which is within 6 eta Q L only if L_m <= 19/8 L.
- The compression term: the printed 92 would need 1 + 2 L Q eta <= 1.07 where the step size allows 1.125,
  that is 96. Lemma 2 loses more than that (36 Q^3 suffices for its 64 Q^3), so at most 54 is enough.
- The gap: 8/3 was rounded up to 4, which is right only while F(Theta^0) >= E F(Theta^T); hence `gap` >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cvfl.errors import ConfigError
from cvfl.theory.checks import count, non_negative, positive


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 1 to 5: L for the whole model, the others one for each m = 0..M."""

    L: float
    L_m: tuple[float, ...]
    sigma_m: tuple[float, ...]
    H_m: tuple[float, ...]
    G_m: tuple[float, ...]

    def __post_init__(self) -> None:
        positive("L", self.L)
        if len(self.L_m) < 2:
            raise ConfigError(f"L_m needs one value for the server and each party, not {len(self.L_m)} in all")
        for m, value in enumerate(self.L_m):
            positive(f"L_m[{m}]", value)
        for name, values in (("sigma_m", self.sigma_m), ("H_m", self.H_m), ("G_m", self.G_m)):
            if len(values) != len(self.L_m):
                raise ConfigError(f"{name} has {len(values)} values, L_m has {len(self.L_m)}")
            for m, value in enumerate(values):
                non_negative(f"{name}[{m}]", value)

    @property
    def parties(self) -> int:
        """The paper's M; the server is not one of them."""
        return len(self.L_m) - 1


@dataclass(frozen=True)
class Terms:
    """The three terms of a convergence bound: how far to go, gradient noise, compression."""

    gap: float
    variance: float
    compression: float

    @property
    def total(self) -> float:
        """The whole right-hand side."""
        return self.gap + self.variance + self.compression


@dataclass(frozen=True)
class Conditions:
    """Which of Theorem 2's three conditions hold."""

    steps_diverge: bool
    squares_converge: bool
    errors_converge: bool

    @property
    def failed(self) -> tuple[str, ...]:
        """The conditions that do not hold, in the paper's order."""
        named = (
            (self.steps_diverge, "sum of eta must diverge"),
            (self.squares_converge, "sum of eta^2 must converge"),
            (self.errors_converge, "sum of eta * E must converge"),
        )
        return tuple(text for holds, text in named if not holds)

    @property
    def hold(self) -> bool:
        """Whether Theorem 2 promises that the smallest gradient tends to zero."""
        return not self.failed


def max_step_size(Q: int, L: float, L_m: Sequence[float]) -> float:
    """Largest eta that Theorems 1 and 2 allow: 1 / (16 Q max(L, max_m L_m))."""
    return 1 / _inverse_step(Q, L, L_m)


def min_iterations(Q: int, L: float, L_m: Sequence[float]) -> int:
    """Fewest T for which the remark's step size 1/sqrt(T) is allowed by the theorem."""
    return math.ceil(_inverse_step(Q, L, L_m) ** 2)


def lemma1(constants: Constants, m: int, errors: Sequence[float]) -> float:
    """Bound of E ||grad_m with compressed - grad_m with exact embeddings||^2, given E_j of j = 0..M."""
    if not 0 <= m <= constants.parties:
        raise ConfigError(f"m must be 0..{constants.parties}, not {m}")
    _check_round(constants, 0, errors)
    return (constants.H_m[m] * constants.G_m[m]) ** 2 * math.fsum(e for j, e in enumerate(errors) if j != m)


def theorem1(
    constants: Constants, *, eta: float, Q: int, B: int, gap: float, errors: Sequence[Sequence[float]]
) -> Terms:
    """Theorem 1 as printed: bounds the mean ||grad F||^2 of R rounds; `gap` = F(Theta^0) - E F(Theta^T)."""
    R, compression = _theorem1_inputs(constants, eta, Q, B, gap, errors)
    noise = math.fsum(s**2 for s in constants.sigma_m) / B
    return Terms(
        gap=4 * gap / (eta * R * Q),
        variance=6 * eta * Q * constants.L * noise,
        compression=92 * Q**2 * compression,
    )


def theorem1_proved(
    constants: Constants, *, eta: float, Q: int, B: int, gap: float, errors: Sequence[Sequence[float]]
) -> Terms:
    """Theorem 1 with the constants that its proof supports for any L and L_m (see the top of this file)."""
    R, compression = _theorem1_inputs(constants, eta, Q, B, gap, errors)
    L, step = constants.L, eta * Q
    noise = math.fsum(
        (L + 8 * step * L_m**2 + 16 * step**2 * L * L_m**2) * s**2
        for L_m, s in zip(constants.L_m, constants.sigma_m, strict=True)
    )
    return Terms(
        gap=8 / 3 * gap / (eta * R * Q),
        variance=8 / 3 * step * noise / B,
        compression=48 * (1 + 2 * L * step) * Q**2 * compression,
    )


def average_error(errors: Sequence[Sequence[float]]) -> float:
    """The remark's E: the errors of all messages of a round, summed, and averaged over the rounds."""
    _check_rounds(errors)
    return math.fsum(non_negative("error", e) for sent in errors for e in sent) / len(errors)


def remark_rate(T: int, error: float) -> float:
    """The remark's rate for eta = 1/sqrt(T), without its constants: 1/sqrt(T) + E."""
    return 1 / math.sqrt(count("T", T)) + non_negative("error", error)


def theorem2(eta: Sequence[float], errors: Sequence[float]) -> Terms:
    """The three O() terms of Theorem 2; errors[t0] is the sum over m of E_m^{t0}."""
    if not eta or len(eta) != len(errors):
        raise ConfigError(f"one step size and one error a round: {len(eta)} steps, {len(errors)} errors")
    for t0, (step, error) in enumerate(zip(eta, errors, strict=True)):
        non_negative(f"errors[{t0}]", error)
        if positive(f"eta[{t0}]", step) >= 1:
            raise ConfigError(f"eta[{t0}] must be below 1, not {step!r}")
    steps = math.fsum(eta)
    return Terms(
        gap=1 / steps,
        variance=math.fsum(step**2 for step in eta) / steps,
        compression=math.fsum(step * error for step, error in zip(eta, errors, strict=True)) / steps,
    )


def power_law_conditions(a: float, p: float, c: float, r: float) -> Conditions:
    """Theorem 2's conditions for eta = a/(t0+1)^p, E = c/(t0+1)^r: 1/2 < p <= 1, and p + r > 1 or c = 0."""
    positive("a", a)
    non_negative("c", c)
    if not (math.isfinite(p) and math.isfinite(r)):
        raise ConfigError(f"p and r must be finite, not p={p!r}, r={r!r}")
    return Conditions(
        steps_diverge=p <= 1,
        squares_converge=2 * p > 1,
        errors_converge=c == 0 or r > 1 - p,  # not p + r > 1: the sum would round a small r away
    )


def _inverse_step(Q: int, L: float, L_m: Sequence[float]) -> float:
    for m, value in enumerate(L_m):
        positive(f"L_m[{m}]", value)
    return 16 * count("Q", Q) * max([positive("L", L), *L_m])


def _theorem1_inputs(
    constants: Constants, eta: float, Q: int, B: int, gap: float, errors: Sequence[Sequence[float]]
) -> tuple[int, float]:
    """Check what Theorem 1 assumes; return R and the mean over rounds of the sum of `lemma1` over m."""
    count("B", B)
    non_negative("gap", gap)
    largest = max_step_size(Q, constants.L, constants.L_m)
    if positive("eta", eta) > largest:
        raise ConfigError(f"eta = {eta:g} is above {largest:g} = 1/(16 Q max(L, L_m)), the largest allowed")
    _check_rounds(errors)
    for t0, sent in enumerate(errors):
        _check_round(constants, t0, sent)
    R = len(errors)
    mean = [math.fsum(sent[j] for sent in errors) / R for j in range(constants.parties + 1)]
    return R, math.fsum(lemma1(constants, m, mean) for m in range(constants.parties + 1))


def _check_rounds(errors: Sequence[Sequence[float]]) -> None:
    if not errors:
        raise ConfigError("errors must hold at least one round")


def _check_round(constants: Constants, t0: int, errors: Sequence[float]) -> None:
    if len(errors) != constants.parties + 1:
        raise ConfigError(f"round {t0} has {len(errors)} errors, not {constants.parties + 1} (server and parties)")
    for m, error in enumerate(errors):
        non_negative(f"E_{m} of round {t0}", error)
