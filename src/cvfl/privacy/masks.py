"""Masks that cancel in the sum over all parties: ChaCha20 key streams that each two of them share.

    mask_m = sum of stream(m, j) for j > m  -  sum of stream(j, m) for j < m      mod 2^16, cut to w bits by the sender

The key of a pair comes from its X25519 secret of this session, the nonce from the kind of message and the round: no
stream is used twice, in no round, run or session.
"""

from __future__ import annotations

import struct

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from cvfl.privacy.keys import PairSecrets

_PARTS = {"embedding": 0, "test embedding": 1}


class Masks:
    """Party m's masks of one session."""

    def __init__(self, secrets: PairSecrets) -> None:
        self._m, self._keys = secrets.m, {j: secrets.key(j, "masks") for j in secrets.others}
        self._drawn: dict[tuple[str, int, int], NDArray[np.uint16]] = {}

    def __call__(self, part: str, t0: int, n: int) -> NDArray[np.uint16]:
        """n numbers for this message; drawn once, not to be changed."""
        if (part, t0, n) not in self._drawn:
            self._drawn = {(part, t0, n): self._mask(part, t0, n)}
        return self._drawn[part, t0, n]

    def _mask(self, part: str, t0: int, n: int) -> NDArray[np.uint16]:
        nonce = struct.pack("<IIQ", 0, _PARTS[part], t0)  # the cipher's counter starts at 0
        zeros, mask = bytes(2 * n), np.zeros(n, dtype=np.uint16)
        for j, key in self._keys.items():
            words = np.frombuffer(Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(zeros), dtype="<u2")
            mask = mask + words if j > self._m else mask - words
        return mask
