"""Coverage-guided fuzzing of everything that reads bytes of others, or of a disk.

    python benchmarks/fuzz.py TARGET CORPUS -max_total_time=60

    TARGET       wire: frames of rounds, packets and decompressors
                 setup: frames of the handshake and of the alignment, facts, targets
                 checkpoint: the state of a role as it lies on the disk
    CORPUS       a folder: it gets examples to start from, and keeps what reached new code

Any exception other than the typed refusal of that target stops the run and leaves the input in a file. All other
options are libFuzzer's. atheris is in the `dev` extra, for Python 3.11.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris
import torch
from safetensors.torch import save

with atheris.instrument_imports(include=["cvfl.wire", "cvfl.compress", "cvfl.federation", "cvfl.runtime.checkpoint"]):
    from cvfl.compress import Compressor, Context, build
    from cvfl.config.schema import DataConfig
    from cvfl.data.tables.split import Part
    from cvfl.errors import DecodeError, RemoteProtocolError
    from cvfl.federation.targets import read_targets
    from cvfl.federation.terms import read_facts
    from cvfl.runtime.checkpoint import Checkpoints, digest, parsed
    from cvfl.wire import Broadcast, Folded, Message, Passed, Report, decode, decode_packet
    from cvfl.wire.control import Begin, Targets
    from cvfl.wire.frame import seal
    from cvfl.wire.message import FROM_SERVER
    from cvfl.wire.read import read_frame

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SPECS = ["identity", "scalar:bits=3", "scalar:bits=11,low=-1,high=1", "lattice:bits=3", "lattice:bits=9,low=-1,high=1"]
SPECS += ["topk:bits=8", "topk:bits=16", "topk:bits=8,by=entry", "topk:bits=1,by=entry", "schedule(lattice:bits=1)"]
COMPRESSORS = [build(spec) for spec in SPECS]
SHARES = DataConfig(test_share=0.25)


def open_packet(data: bytes | memoryview, compressor: Compressor) -> None:
    h = compressor.decompress(decode_packet(data), Context(seed=7, t0=3, m=1))
    assert h.numel() * h.element_size() <= 64 * len(data), "more memory than the bytes pay for"


def wire(data: bytes) -> None:
    """The first byte says how to read the rest: as a packet, a frame, or the body of a sound frame of some kind."""
    compressor, how, rest = COMPRESSORS[data[0] % len(COMPRESSORS)], data[0] // len(COMPRESSORS), data[1:]
    if how % 14 == 0:
        open_packet(rest, compressor)
        return
    if how % 14 > 1:
        kind = how % 14 - 1
        head = struct.pack("<4sBBHII", b"cvfl", 1, kind, int(kind not in FROM_SERVER), 3, len(rest))
        rest = head + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head))) + rest
    for packet in packets(decode(rest)):
        open_packet(packet, compressor)


def packets(message: Message) -> tuple[bytes | memoryview, ...]:
    match message:
        case Broadcast():
            return *message.model, *(packet for _, packet in message.embeddings)
        case Folded():
            return message.partial, *message.model
        case Passed() | Report():
            return ()
    return (message.packet,)


def setup(data: bytes) -> None:
    """The first byte is the kind and the sender of a sound frame, the rest its body."""
    message = read_frame(seal(5 + data[0] % 4, data[0] // 4 % 4, 0, [data[1:]]))
    match message:
        case Begin(facts=facts):
            read_facts(facts)
        case Targets():
            read_targets(message, "bank", SHARES, (Part.TRAIN,) if message.m else tuple(Part))


def checkpoint(data: bytes) -> None:
    """The file itself, or a text with the right digest in a file that is whole."""
    if data[0] % 2:
        parsed(data[1:])
        return
    text = data[1:].decode("utf-8", "replace")
    tensors = {"0": torch.zeros(2, 3)}
    parsed(save(tensors, {"state": text, "of": "", "sha256": digest(text, tensors)}))


TARGETS: dict[str, Callable[[bytes], None]] = {"wire": wire, "setup": setup, "checkpoint": checkpoint}


def one_input(data: bytes) -> None:
    if not data:
        return
    try:
        TARGETS[sys.argv[0]](data)
    except (DecodeError, RemoteProtocolError):
        return


def golden() -> Iterator[tuple[str, bytes]]:
    for path in GOLDEN.glob("*.hex"):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield path.stem, bytes.fromhex("".join(line.split(";")[0] for line in lines if not line.startswith("#")))


def examples(target: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Inputs to start from, each with a name."""
    for name, data in golden():
        if target == "setup" and name.startswith(("control-", "setup-")):
            yield name, bytes([data[5] - 5 + 4 * data[6]]) + data[20:]
        for i in range(len(COMPRESSORS) if target == "wire" else 0):
            if name.startswith("packet-"):
                yield f"{name}-{i}", bytes([i]) + data
            if name.startswith("frame-"):
                yield f"{name}-{i}", bytes([i + len(COMPRESSORS)]) + data
                yield f"{name}-body-{i}", bytes([i + (data[5] + 1) * len(COMPRESSORS)]) + data[20:]
    if target == "setup":
        facts = {"names": ["a"], "widths": [4], "compressors": ["auto"], "rows": [3, 0, 1]}
        facts |= {"loss": "binary", "outputs": 1}
        for name, value in (("begin", {"session": 1, "m": 1, "t0": 0, "facts": facts}), ("have", {"session": 1})):
            yield name, bytes([2]) + json.dumps({"type": name} | value).encode()
    if target == "checkpoint":
        kept = Checkpoints(folder.with_name(f"{folder.name}.states"), "bank in run ab")
        kept.save(1, {"w": torch.zeros(2, 3), "n": 1, "list": [1.5, None], "pair": (b"x", {7: "y"})})
        data = next(kept.folder.iterdir()).read_bytes()
        yield "file", b"\1" + data
        found = json.loads(data[8 : 8 + struct.unpack_from("<Q", data)[0]])["__metadata__"]["state"]
        yield "text", b"\0" + found.encode()


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in TARGETS or sys.argv[2].startswith("-"):
        sys.exit("usage: python benchmarks/fuzz.py wire|setup|checkpoint CORPUS [-max_total_time=60]")
    torch.set_num_threads(1)
    target, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in examples(target, folder):
        (folder / name).write_bytes(data)
    sys.argv = [target, *sys.argv[2:]]
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
