"""Coverage-guided fuzzing of everything that reads bytes: frames, packets and decompressors.

    python benchmarks/fuzz_wire.py CORPUS -max_total_time=60

CORPUS is a directory: it gets the examples of tests/golden to start from, and keeps what reached new code. Any
exception other than DecodeError stops the run and leaves the input in a file. All other options are libFuzzer's.
atheris is in the `dev` extra, for Python 3.11.
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import atheris
import torch

with atheris.instrument_imports(include=["cvfl.wire", "cvfl.compress"]):
    from cvfl.compress import Compressor, Context, build
    from cvfl.errors import DecodeError
    from cvfl.wire import Broadcast, Folded, Message, Passed, Report, decode, decode_packet
    from cvfl.wire.message import FROM_SERVER

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SPECS = ["identity", "scalar:bits=3", "scalar:bits=11,low=-1,high=1", "lattice:bits=3", "lattice:bits=9,low=-1,high=1"]
SPECS += ["topk:bits=8", "topk:bits=16", "topk:bits=8,by=entry", "topk:bits=1,by=entry", "schedule(lattice:bits=1)"]
COMPRESSORS = [build(spec) for spec in SPECS]


def open_packet(data: bytes | memoryview, compressor: Compressor) -> None:
    h = compressor.decompress(decode_packet(data), Context(seed=7, t0=3, m=1))
    assert h.numel() * h.element_size() <= 64 * len(data), "more memory than the bytes pay for"


def one_input(data: bytes) -> None:
    """The first byte says how to read the rest: as a packet, a frame, or the body of a sound frame of some kind."""
    if not data:
        return
    compressor, how, rest = COMPRESSORS[data[0] % len(COMPRESSORS)], data[0] // len(COMPRESSORS), data[1:]
    try:
        if how % 14 == 0:
            open_packet(rest, compressor)
            return
        if how % 14 > 1:
            kind = how % 14 - 1
            head = struct.pack("<4sBBHII", b"cvfl", 1, kind, int(kind not in FROM_SERVER), 3, len(rest))
            rest = head + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head))) + rest
        for packet in packets(decode(rest)):
            open_packet(packet, compressor)
    except DecodeError:
        return


def packets(message: Message) -> tuple[bytes | memoryview, ...]:
    match message:
        case Broadcast():
            return *message.model, *(packet for _, packet in message.embeddings)
        case Folded():
            return message.partial, *message.model
        case Passed() | Report():
            return ()
    return (message.packet,)


def seeds(folder: Path) -> None:
    """The golden packets for every compressor, frames whole and as bodies."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in GOLDEN.glob("*.hex"):
        lines = path.read_text(encoding="utf-8").splitlines()
        data = bytes.fromhex("".join(line.split(";")[0] for line in lines if not line.startswith("#")))
        for i in range(len(COMPRESSORS)):
            if path.name.startswith("packet-"):
                (folder / f"{path.stem}-{i}").write_bytes(bytes([i]) + data)
            if path.name.startswith("frame-"):
                (folder / f"{path.stem}-{i}").write_bytes(bytes([i + len(COMPRESSORS)]) + data)
                (folder / f"{path.stem}-body-{i}").write_bytes(
                    bytes([i + (data[5] + 1) * len(COMPRESSORS)]) + data[20:]
                )


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python benchmarks/fuzz_wire.py CORPUS [-max_total_time=60]")
    torch.set_num_threads(1)
    seeds(Path(sys.argv[1]))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
