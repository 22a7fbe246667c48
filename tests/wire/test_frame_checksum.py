"""The checksum of frames: the fast one of the extra and the standard one are the same sum."""

from __future__ import annotations

import runpy
import sys
import zlib

import pytest

from cvfl.rng import stream
from cvfl.wire import frame

SIZES = [0, 1, 3, 15, 16, 17, 63, 64, 65, 1000, 4095, 4096, 65_537, 1_000_003]
DATA = stream(1, "test").words(SIZES[-1] // 8 + 2).tobytes()


def test_the_fast_checksum_is_the_standard_one() -> None:
    fast = pytest.importorskip("isal.isal_zlib", reason="needs: pip install 'cvfl[grpc]'").crc32
    assert frame.crc32 is fast  # type: ignore[attr-defined]
    for size in SIZES:
        for start in (0, 1, 0xFFFFFFFF, 0xDEADBEEF):
            assert fast(DATA[:size], start) == zlib.crc32(DATA[:size], start)
        view = memoryview(DATA)[3 : 3 + size]  # not aligned, as a body after its header is
        assert fast(view) == zlib.crc32(view)
        half = size // 2
        assert fast(view[half:], fast(view[:half])) == zlib.crc32(view)
    assert fast(b"123456789") == 0xCBF43926  # the check value of CRC-32


def test_without_the_extra_the_standard_checksum_makes_the_same_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    plain = runpy.run_path(str(frame.__file__))
    assert plain["crc32"] is zlib.crc32
    for size in SIZES:
        parts = [DATA[: size // 3], memoryview(DATA)[size // 3 : size]]
        sealed = frame.seal(1, 2, 7, parts)
        assert plain["seal"](1, 2, 7, parts) == sealed
        assert bytes(plain["unseal"](sealed).body) == DATA[:size]
