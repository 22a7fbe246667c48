"""Gaussian noise for what leaves a party: secret to it, and the same again when a round is repeated.

    (secret, purpose, t0, h) ──BLAKE2b──▶ key ──ChaCha20──▶ words ──normal quantile──▶ z
    h ──(+)── sigma z ──▶ nearest multiple of a step ──▶ clamped to a fixed range ──▶ the compressor

A restarted party repeats rounds. The same embedding in the same round gets the same noise, so the server learns nothing
that it did not have. Another embedding gets other noise, because its bits are part of the address: whatever made it
differ, no difference of two embeddings is ever shown without noise.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cvfl.compress import Compressor
from cvfl.compress.limits import limits
from cvfl.errors import ConfigError
from cvfl.protocol.release import Secret

SECRET = 32
"""Bytes of a party's secret."""
FINENESS = 10
"""Steps are at most 2^-10 of sigma: too fine to matter, far too coarse to show how a float was rounded."""


class Drawn:
    """A release whose randomness comes from the party's secret, the purpose, the round and the embedding itself."""

    person = b"cvfl.noise"
    """What keeps the keys of one kind of noise apart from those of another."""

    def __init__(self, secret: Secret | None = None) -> None:
        secret = secret or Secret(os.urandom(SECRET))
        self._secret, self._note = _checked(secret.key), secret.note

    def state_dict(self) -> dict[str, Any]:
        """The secret."""
        return {"secret": self._secret}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Draw from the same secret."""
        self._secret = _checked(state["secret"])

    def key(self, h: Tensor, purpose: str, t0: int, more: str = "") -> bytes:
        """The key for this embedding, of which note is taken."""
        digest = hashlib.blake2b(key=self._secret, digest_size=32, person=self.person)
        digest.update(f"{purpose}:{t0}:{h.dtype}:{tuple(h.shape)}{more};".encode())
        digest.update(h.cpu().contiguous().numpy().data)
        key = digest.digest()
        self._note(purpose, t0, hashlib.blake2b(key, digest_size=16).digest())
        return key


class Noise(Drawn):
    """Adds noise of standard deviation sigma to each component of what leaves one party."""

    def __init__(self, sigma: float, interval: tuple[float, float] | None = None, secret: Secret | None = None) -> None:
        super().__init__(secret)
        self.sigma, self.interval = sigma, interval
        self._step = 2.0 ** (math.floor(math.log2(sigma)) - FINENESS)

    def __call__(self, h: Tensor, purpose: str, t0: int) -> Tensor:
        """h with noise, on a grid that does not depend on it, and in the range that its compressor takes."""
        x = h.detach().cpu().double()
        # Of another size the noise is another: two sizes of the same would show what is under both.
        z = normal(self.key(h.detach(), purpose, t0, f":{self.sigma!r}"), x.numel()).reshape(x.shape)
        # The sum of two floats has low bits that tell the summands apart (Mironov, 2012). On a grid they are gone: near
        # every multiple of the step there is a sum for every h that clipping allows.
        noisy = ((x + self.sigma * z) / self._step).round_() * self._step
        if self.interval is not None:
            noisy.clamp_(*self.interval)
        return noisy.to(h)


def noise_for(sigma: float, model: nn.Module, compressor: Compressor, secret: Secret | None = None) -> Noise:
    """The noise of a party with this model and compressor; a model that mixes rows is refused."""
    check_rows_apart(model)
    return Noise(sigma, limits(compressor), secret)


def check_rows_apart(model: nn.Module) -> None:
    """Refuse a model that mixes rows."""
    if any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        raise ConfigError(
            "privacy.noise counts what is released of each row, and batch normalisation mixes rows; take another model"
        )


def normal(key: bytes, n: int) -> Tensor:
    """n standard normal numbers from the key stream; a key serves once.

    One bit of a word is the sign and 52 bits say k, for a magnitude that (k + 1/2) 2^-52 of all magnitudes exceed. All
    steps are exact up to the quantile, so both signs have the same magnitudes. The largest is 8.29, which a normal
    number exceeds once in 10^16; beyond 7.6, once in 10^13 or so, neighbouring magnitudes are further apart than 2^-10.
    """
    words = words_of(key, n)
    k = torch.from_numpy((words >> np.uint64(12)).astype(np.float64))
    magnitude = torch.special.ndtri((k + 0.5) * 2.0**-53).neg_()
    return torch.where(torch.from_numpy((words & np.uint64(1)).astype(np.bool_)), magnitude, -magnitude)


def words_of(key: bytes, n: int) -> NDArray[np.uint64]:
    """n words of 64 bits from the key stream."""
    return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * n)), dtype="<u8")


def _checked(secret: bytes) -> bytes:
    if len(secret) != SECRET:
        raise ConfigError(f"a secret of noise has {SECRET} bytes, not {len(secret)}")
    return secret
