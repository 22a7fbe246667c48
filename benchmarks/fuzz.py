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
from collections.abc import Iterator
from pathlib import Path

import atheris
import torch

INSTRUMENTED = ["wire", "compress", "protocol.codec", "protocol.aggregate", "federation", "privacy.keys"]
INSTRUMENTED += ["runtime.checkpoint"]

with atheris.instrument_imports(include=["fuzz_targets", *(f"cvfl.{name}" for name in INSTRUMENTED)]):
    from fuzz_grammar import dictionary, messages
    from fuzz_targets import CHOICES, RECEIVERS, SHARE, TARGETS, tried

    from cvfl.runtime.checkpoint import Checkpoints
    from cvfl.wire.frame import unseal

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"


def golden() -> Iterator[tuple[str, bytes]]:
    for path in GOLDEN.glob("*.hex"):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield path.stem, bytes.fromhex("".join(line.split(";")[0] for line in lines if not line.startswith("#")))


def examples(target: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Inputs to start from, each with a name."""
    if target == "setup":
        for name, data in golden():
            if name.startswith(("control-", "setup-")):
                kind, sender, _, body = unseal(data)
                yield name, bytes([kind - 5 + 4 * sender]) + body
        yield from ((name, bytes([2]) + data) for name, data in messages())
    if target == "wire":
        for which, data in enumerate([*(data for _, data in RECEIVERS), SHARE]):
            yield f"packet-{which}", bytes([which, 0]) + data
            yield f"embedding-{which}", bytes([which, 2]) + data
        frames = [data for name, data in golden() if name.startswith("frame-")]
        for i, data in enumerate(frames):
            yield f"frame-{i}", bytes([i % CHOICES, 1]) + data
            kind, _, _, body = unseal(data)
            yield f"body-{i}", bytes([i % CHOICES, kind + 1]) + body
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
    options = sys.argv[2:]
    if target == "setup":
        words = folder.with_name(f"{folder.name}.words")
        words.write_text(dictionary(), encoding="utf-8")
        options.append(f"-dict={words}")
    sys.argv = [target, *options]
    atheris.Setup(sys.argv, lambda data: tried(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
