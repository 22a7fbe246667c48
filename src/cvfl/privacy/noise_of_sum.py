"""Noise that M parties share: each adds its part, and what can be read is the sum with the parts of all.

    h ──nearest multiples of a step──▶ n ──(+)── z of the party's own ──▶ (n + z) step ──masks──▶ packet
    sum over all parties = sum of n + Z        Z is the sum of all z, of variance mu

z is whole and has a Skellam distribution, that of a difference of two Poisson numbers, of variance mu / M. A sum of
such numbers has one, too: what is known of Z is exact, also of what is left of it when some parties tell theirs.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from cvfl.compress import Compressor, Wrapped
from cvfl.compress.masked import MAX_WIDTH
from cvfl.errors import ConfigError
from cvfl.privacy.noise import Drawn, check_rows_apart, words_of
from cvfl.protocol.release import Secret, clipped

_RARE = math.log(2e12)
"""A number of a sum leaves its w bits once in 10^12 times: it is then a wrong one, and tells no more."""
_NEVER = math.log(2.0**62)
"""What is less likely than 2^-61 is never drawn: words have 52 bits for it."""
_SHORTER = 63 / 64


class Shared(BaseModel):
    """The noise of all parties together, and the grid that it is added on."""

    model_config = ConfigDict(frozen=True, strict=True)
    parties: int
    numbers: int
    """P, how many numbers a row has."""
    step: float
    length: int
    """The largest sum of squares of a row, in squared steps: the square of `clip`, rounded down."""
    variance: float
    """mu, the variance of the sum of all noise, in squared steps."""

    @classmethod
    def of(cls, clip: float, noise: float, step: float, parties: int, numbers: int) -> Shared:
        """Noise of `noise` times `clip` in the sum, on a grid of this step; refuses what no 16 bits can hold."""
        if parties < 2:
            raise ConfigError("privacy.noise_shared needs two parties or more: one has nobody to share it with")
        length = math.floor((clip / step) ** 2)
        if length < 1:
            raise ConfigError(
                f"privacy.noise_shared: a step of the compressor's grid is {step:.3g}, more than privacy.clip of "
                f"{clip:g}; give it more bits, or a narrower range"
            )
        variance = (noise * clip / step) ** 2
        found = cls(parties=parties, numbers=numbers, step=step, length=length, variance=variance)
        if found.width > MAX_WIDTH:
            raise ConfigError(
                f"privacy.noise_shared: sums of {parties} parties with noise need {found.width} bits, over "
                f"{MAX_WIDTH}; give the compressor fewer bits, or take less noise"
            )
        return found

    @property
    def width(self) -> int:
        """The bits that hold a number of the sum with its noise."""
        return (self.parties * math.isqrt(self.length) + _reach(self.variance, _RARE)).bit_length() + 1

    @property
    def grid(self) -> Wrapped:
        """The grid that embeddings and their sums are sent on."""
        return Wrapped(self.step, self.width)


class SharedNoise(Drawn):
    """Adds one party's part of the noise to its embeddings."""

    person = b"cvfl.shared"

    def __init__(self, shared: Shared, secret: Secret | None = None) -> None:
        super().__init__(secret)
        self._shared, self._part = shared, shared.variance / shared.parties
        self._tails = tails(self._part)

    def __call__(self, h: Tensor, purpose: str, t0: int) -> Tensor:
        """h on the grid, with whole numbers of steps added."""
        step, length = self._shared.step, self._shared.length
        # With another grid or another size the noise is another: two sizes of the same would show what is under both.
        key = self.key(h.detach(), purpose, t0, f":{step!r}:{length}:{self._part!r}")
        n = whole(h.detach().cpu(), step, length)
        return ((n + skellam(key, n.numel(), self._tails).reshape(n.shape)) * step).to(h)


def shared_noise_for(shared: Shared, model: nn.Module, compressor: Compressor, secret: Secret | None) -> SharedNoise:
    """The noise of a party with this model; a model that mixes rows is refused."""
    check_rows_apart(model)
    return SharedNoise(shared, secret)


def whole(h: Tensor, step: float, length: int) -> Tensor:
    """Rows as whole numbers of steps whose squares add up to at most `length`.

    Rounding makes some rows longer than the norm allows: these are scaled down until they are not.
    """
    x = clipped(h.double() / step, math.sqrt(length))
    n = x.round()
    while bool((long := n.square().sum(-1, keepdim=True) > length).any()):
        x = torch.where(long, x * _SHORTER, x)
        n = x.round()
    return n


def tails(variance: float) -> NDArray[np.float64]:
    """How likely a Skellam number is of a magnitude beyond 0, 1, 2, ...; as far as words can tell."""
    from scipy.special import ive  # noqa: PLC0415  slow to load

    each = 2 * ive(np.arange(1.0, _reach(variance, _NEVER) + 2), variance)  # P[k] = e^-mu I_k(mu)
    return np.cumsum(each[::-1])[::-1]


def skellam(key: bytes, n: int, tails: NDArray[np.float64]) -> Tensor:
    """n Skellam numbers from the key stream, by their tails; a key serves once.

    One bit of a word is the sign and 52 bits say u: the magnitude is how many tails are above u. Both signs have the
    same magnitudes. What is less likely than 2^-53 is never drawn.
    """
    words = words_of(key, n)
    u = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    magnitude = len(tails) - np.searchsorted(tails[::-1], u, side="right")
    return torch.from_numpy(np.where(words & np.uint64(1), magnitude, -magnitude).astype(np.float64))


def _reach(variance: float, rare: float) -> int:
    """A magnitude that a Skellam number exceeds no more often than 2 e^-rare, by Bernstein's bound."""
    return math.ceil(rare / 3 + math.sqrt((rare / 3) ** 2 + 2 * rare * variance))
