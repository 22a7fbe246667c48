"""How fast the codecs are: encode to packet bytes and decode again on one core, and how much memory a call takes.

python benchmarks/codec.py --json
"""

from __future__ import annotations

import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from shown import Steps, options, show
from torch import Tensor

from cvfl.compress import Context, build
from cvfl.rng import stream
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.wire import decode_packet, encode_packet

CODECS = (
    "identity",
    *(f"{name}:bits={bits}" for name in ("scalar", "lattice") for bits in (2, 3, 4, 8, 16)),
    "topk:bits=2",
    "topk:bits=2,by=entry",
)
CODEC_SHAPES = ((64, 4096), (1000, 256), (4096, 4096))


@dataclass(frozen=True)
class CodecSpeed:
    """GB/s of float32 input or output on one core, and the peak memory of a call over the size of its tensor."""

    compressor: str
    bits: int
    shape: tuple[int, int]
    encode_gbps: float
    decode_gbps: float
    peak_ratio: float | None


def bench_codec(spec: str, shape: tuple[int, int], seconds: float) -> CodecSpeed:
    """Encode to packet bytes and decode again, on one core."""
    compressor = build(spec)
    h = torch.from_numpy(stream(1, "bench").uniform(math.prod(shape))).float().reshape(shape) * 2 - 1

    def encode() -> bytes:
        return encode_packet(compressor.compress(h, Context(seed=1)))  # a new context draws its dither anew

    data = encode()

    def decode() -> Tensor:
        return compressor.decompress(decode_packet(data, tuple(h.shape)), Context(seed=1))

    size = h.numel() * 4
    with one_thread_a_role():
        speeds = [size / _fastest(call, seconds) / 1e9 for call in (encode, decode)]
        peaks = [_peak(encode, size, size), _peak(decode, len(data), size)]
    ratio = None if None in peaks else max(peak for peak in peaks if peak is not None)
    return CodecSpeed(spec, int(compressor.nominal_bits(0)), shape, speeds[0], speeds[1], ratio)


def _fastest(call: Callable[[], object], seconds: float) -> float:
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def _peak(call: Callable[[], object], held: int, size: int) -> float | None:
    """Peak of resident memory during a call, what it was given included, over the tensor's size; Linux only.

    What the allocator keeps is given back first, so that the call has to ask for all it needs. Below a megabyte the
    figure would be the allocator's own.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if size < 1e6 or not refs.exists():
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident(status, "VmRSS")
    refs.write_text("5")  # resets the high-water mark
    result = call()
    peak = _resident(status, "VmHWM")
    del result
    return (held + max(0, peak - before)) / size


def _resident(status: Path, key: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=0.2, help="how long each way of a case is repeated")
    given = parser.parse_args()
    cases = [(spec, shape) for spec in CODECS for shape in CODEC_SHAPES]

    def measure(steps: Steps) -> Iterator[CodecSpeed]:
        for spec, shape in cases:
            steps.next(f"{spec}, {shape[0]} x {shape[1]}")
            yield bench_codec(spec, shape, given.seconds)

    columns: dict[str, Callable[[CodecSpeed], str]] = {
        "compressor": lambda speed: speed.compressor,
        "shape": lambda speed: f"{speed.shape[0]} x {speed.shape[1]}",
        "encode GB/s": lambda speed: f"{speed.encode_gbps:.2f}",
        "decode GB/s": lambda speed: f"{speed.decode_gbps:.2f}",
        "peak memory / input": lambda speed: "-" if speed.peak_ratio is None else f"{speed.peak_ratio:.2f}",
    }
    show(given.json, len(cases), measure, columns)


if __name__ == "__main__":
    main()
