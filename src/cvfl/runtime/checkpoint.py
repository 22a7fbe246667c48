"""A role's complete state on disk: safetensors for tensors, JSON for the rest, in one file a round.

    FOLDER/round-00000120.safetensors   metadata: {"state": JSON with places for tensors, "of": whose, "sha256": of all}
    FOLDER/rows/                        what is known of rows, as far as it is kept on disk: see memory.py

A file is written beside its place, brought to the disk and moved there, so that a crash at any moment leaves the old
files as they were. A torn or changed file is noticed when it is read, and counts as absent. One of another role or run
is refused: somebody has put it there. A state that nobody else can bring back is kept twice, in a second file `.again`.
What is known of rows on disk is there already: a checkpoint names the pieces that it needs, and has them brought to the
disk. It is whole if they are, and a piece that no checkpoint names is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from cvfl.descriptors import with_descriptor
from cvfl.errors import ExhaustedError, OutputError, exhausted, writing
from cvfl.memory import Log, Piece, is_whole
from cvfl.wire import Bytes

_NAME = re.compile(r"round-(\d{8,})(?:\.again)?\.safetensors")
_PIECE = re.compile(r"[0-9a-f]{32}\.rows")
_COPIES = ("", ".again")
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""As safetensors spells them."""
KEEP = 3
"""Checkpoints that are kept: roles are never further apart than one."""


class CheckpointError(OutputError):
    """A checkpoint cannot be written, or what is there cannot be used."""


class Checkpoints:
    """The checkpoints of one role in one folder; `of` says of which role, and of which run."""

    def __init__(self, folder: Path, of: str = "") -> None:
        self.folder, self.of, self.logs = folder, of, logs_in(folder)
        self._needed: dict[int, set[Piece]] = {}
        """Pieces by checkpoint, as far as it was written or read here."""
        self._checked: set[tuple[Piece, int]] = set()
        """Pieces that were read and found whole, when they were changed last."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def rounds(self) -> list[int]:
        """The rounds of which there is a whole checkpoint, ascending."""
        return [t0 for t0 in self._numbers() if self._read(t0) is not None]

    def save(self, t0: int, state: Mapping[str, Any], twice: bool = False) -> None:
        """Write the state before round t0, in one file or in two; older ones beyond KEEP are removed."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(_flattened(state, tensors))
        metadata = {"state": text, "of": self.of, "sha256": digest(self.of + text, tensors)}
        partial = self._path(t0).with_suffix(".partial")
        try:
            self._bring_to_disk(t0, {*_pieces(state)})
            for copy in _COPIES if twice else _COPIES[:1]:
                with with_descriptor(lambda: open(partial, "wb", opener=_private)) as file:
                    file.writelines(_serialised(tensors, metadata))
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(self._path(t0, copy))
            _sync_entries(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            kind = ExhaustedError if exhausted(error) else CheckpointError
            raise kind(
                f"{self.folder}: the checkpoint of round {t0} cannot be written ({error.strerror}); older ones stay"
            ) from None
        self._forget(keep_through=t0)

    def load(self, t0: int) -> dict[str, Any]:
        """The state before round t0."""
        state = self._read(t0)
        if state is None:
            raise CheckpointError(f"{self.folder}: there is no whole checkpoint of round {t0}")
        return state

    def drop_after(self, t0: int) -> None:
        """Forget what belongs to a future that is given up."""
        self._remove(later for later in self._numbers() if later > t0)

    def _bring_to_disk(self, t0: int, pieces: set[Piece]) -> None:
        there = set[Piece]().union(*self._needed.values())
        for piece in pieces - there:
            _sync(self.logs / piece.name)
        if pieces - there:
            _sync_entries(self.logs)
        self._needed[t0] = pieces

    def _are_whole(self, pieces: Iterable[Piece]) -> bool:
        """Whether what a checkpoint needs of its pieces is there; read again only when a file has changed."""
        for piece in pieces:
            try:
                key = piece, (self.logs / piece.name).stat().st_mtime_ns
                if key not in self._checked and not is_whole(self.logs / piece.name, piece):
                    return False
            except (OSError, OutputError):
                return False
            self._checked.add(key)
        return True

    def _forget(self, keep_through: int) -> None:
        self._remove([number for number in self._numbers() if number <= keep_through][:-KEEP])
        if self.logs.exists():
            for number in (kept := self._numbers()):
                if number not in self._needed:
                    self._read(number)
            needed = {piece.name for number in kept for piece in self._needed.get(number, ())}
            for path in with_descriptor(lambda: list(self.logs.glob("*.rows"))):
                if path.name not in needed:
                    path.unlink(missing_ok=True)

    def _remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._needed.pop(number, None)
            for copy in _COPIES:
                self._path(number, copy).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        names = with_descriptor(lambda: os.listdir(self.folder) if self.folder.exists() else [])
        return sorted({int(match[1]) for name in names if (match := _NAME.fullmatch(name))})

    def check_none(self) -> None:
        """Refuse checkpoints of which it is not known what they are of."""
        if self._numbers():
            raise CheckpointError(
                f"{self.folder}: checkpoints without the setup that they belong to; "
                "bring it back, or begin anew with --restart at every role"
            )

    def _path(self, t0: int, copy: str = "") -> Path:
        return self.folder / f"round-{t0:08d}{copy}.safetensors"

    def _read(self, t0: int) -> dict[str, Any] | None:
        for copy in _COPIES:
            if (state := self._read_file(self._path(t0, copy))) is not None:
                self._needed[t0] = {*_pieces(state)}
                return state if self._are_whole(self._needed[t0]) else None
        return None

    def _read_file(self, path: Path) -> dict[str, Any] | None:
        try:
            found = parsed(with_descriptor(path.read_bytes))
        except OSError as error:
            if exhausted(error):  # it may be whole, and what counts as absent is forgotten
                raise ExhaustedError(f"{path}: cannot be read: {error.strerror}") from None
            return None
        if found is None:
            return None
        of, state = found
        if of != self.of:
            raise CheckpointError(f"{path}: a checkpoint of {of}, not of {self.of}; bring the right one back")
        return state


def parsed(data: bytes) -> tuple[str, dict[str, Any]] | None:
    """What a checkpoint is of, and the state; None if the bytes are not whole."""
    try:
        tensors = load(data)
        (length,) = struct.unpack_from("<Q", data)  # of the header, which `load` has found to be whole
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        text, of = metadata["state"], metadata["of"]
        if metadata["sha256"] != digest(of + text, tensors):
            return None
        return of, _restored(json.loads(text), tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of tensors by their names."""
    found = hashlib.sha256(text.encode())
    for key in sorted(tensors):
        value = tensors[key]
        found.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(_bytes(value))
    return found.hexdigest()


def _serialised(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[Bytes]:
    """A file of safetensors piece by piece: the library would hold all of it in memory, twice."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for key, value in tensors.items():
        start, end = end, end + value.nbytes
        header[key] = {"dtype": _TYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for value in tensors.values():
        yield _bytes(value)


def _bytes(value: Tensor) -> Bytes:
    """The bytes of a tensor, where they are; an empty one cannot be seen so."""
    if not value.numel():
        return b""
    seen: memoryview = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    return seen


def _flattened(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON with a place for every tensor; what JSON does not have is written as an object with one $key."""
    match value:
        case Tensor():
            key = str(len(tensors))
            tensors[key] = value.detach().cpu().contiguous()
            return {"$tensor": key}
        case Log():
            return {"$log": [list(value.shape), value.dtype, [list(piece) for piece in value.pieces]]}
        case bytes() | memoryview():
            key = str(len(tensors))
            tensors[key] = torch.from_numpy(np.frombuffer(bytes(value), dtype=np.uint8).copy())
            return {"$bytes": key}
        case Mapping():
            return {"$pairs": [[_flattened(k, tensors), _flattened(v, tensors)] for k, v in value.items()]}
        case tuple():
            return {"$tuple": [_flattened(item, tensors) for item in value]}
        case list():
            return [_flattened(item, tensors) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a state holds {type(value).__name__}, which a checkpoint cannot")


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case {"$tensor": key}:
            return tensors[key]
        case {"$log": [shape, dtype, pieces]}:
            return _log(shape, dtype, pieces)
        case {"$bytes": key}:
            return tensors[key].numpy().tobytes()
        case {"$pairs": pairs}:
            return {_restored(k, tensors): _restored(v, tensors) for k, v in pairs}
        case {"$tuple": items}:
            return tuple(_restored(item, tensors) for item in items)
        case list():
            return [_restored(item, tensors) for item in value]
    return value


def _log(shape: list[int], dtype: str, pieces: list[tuple[str, int, str]]) -> Log:
    if not all(_PIECE.fullmatch(name) for name, _, _ in pieces):
        raise ValueError("a piece of another name")
    return Log(tuple(shape), dtype, tuple(Piece(*piece) for piece in pieces))


def _pieces(state: Any) -> Iterator[Piece]:
    """All pieces that a state needs."""
    match state:
        case Log():
            yield from state.pieces
        case Mapping():
            for value in state.values():
                yield from _pieces(value)
        case tuple() | list():
            for value in state:
                yield from _pieces(value)


def logs_in(folder: Path) -> Path:
    """Where a role that has its checkpoints in this folder keeps what it knows of rows, as far as it is on disk."""
    return folder / "rows"


def _private(path: str, flags: int) -> int:
    """Open a file that nobody else can read."""
    return os.open(path, flags, 0o600)


def _sync(path: Path) -> None:
    """Bring a file to the disk."""
    handle = with_descriptor(lambda: os.open(path, os.O_RDONLY))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_entries(folder: Path) -> None:
    """Bring a folder's entries to the disk, where the system can."""
    with contextlib.suppress(OSError):
        _sync(folder)
