"""Named random streams: the same address gives the same numbers on every machine, in any order.

    stream(seed, "dither", t0, m)  --BLAKE2b-->  128-bit key  --Philox4x64-10-->  words

Randomness in the protocol is addressed, not ambient: the two ends of a message compute the same
dither without sending it, all parties compute the same batches, and a restarted role continues in
the same bits. Philox is a counter-based generator with published test vectors; NumPy guarantees its
raw words, so nothing here depends on a version's idea of a distribution.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

ABSENCE = "absence"
BATCH = "batch"
DITHER = "dither"
DRAW = "draw"
GUARD = "guard"
INIT = "init"
LAYERS = "layers"
LOCAL = "local"
NOISE = "noise"
SPLIT = "split"


def _key(seed: int, address: tuple[str | int, ...]) -> int:
    # Every part is written with its type and length, so no two addresses share a key.
    named = (("str" if isinstance(part, str) else "int", str(part)) for part in (seed, *address))
    text = "".join(f"{kind}:{len(part)}:{part};" for kind, part in named)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16, person=b"cvfl.stream").digest(), "little")


_generators = threading.local()


def _philox(key: NDArray[np.uint64], block: int) -> np.random.Philox:
    """This thread's generator, moved to a block of a stream: many times cheaper than a new generator."""
    if not hasattr(_generators, "philox"):
        _generators.philox = np.random.Philox(0)
    philox: np.random.Philox = _generators.philox
    philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": np.array([block, 0, 0, 0], dtype=np.uint64), "key": key},
        "buffer": np.zeros(4, dtype=np.uint64),
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    return philox


class Stream:
    """An endless sequence of random words at one address."""

    def __init__(self, seed: int, *address: str | int) -> None:
        key = _key(seed, address)
        self._key = np.array([key % 2**64, key >> 64], dtype=np.uint64)
        self._at = 0

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        return self._at > 0

    def words(self, n: int) -> NDArray[np.uint64]:
        """The next n uniform 64-bit words."""
        block, skipped = divmod(self._at, 4)
        self._at += n
        words: NDArray[np.uint64] = _philox(self._key, block).random_raw(skipped + n)
        return words[skipped:]

    def int16(self, n: int) -> NDArray[np.int16]:
        """The next n uniform integers from -32768 to 32767, four from each word."""
        return self.words((n + 3) // 4).astype("<u8", copy=False).view("<i2")[:n]

    def uniform(self, n: int) -> NDArray[np.float64]:
        """The next n numbers uniform over [0, 1), 53 bits each."""
        return (self.words(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def seed(self) -> int:
        """One 63-bit integer, for a library that wants a seed of its own."""
        return int(self.words(1)[0] >> np.uint64(1))

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A random order of 0..n-1: the ranks of n random words, ties broken by position."""
        return np.argsort(self.words(n), kind="stable").astype(np.int64, copy=False)


def stream(seed: int, *address: str | int) -> Stream:
    """Open the stream at an address, e.g. ``stream(seed, DITHER, t0, m)``."""
    return Stream(seed, *address)
