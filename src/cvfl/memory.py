"""What a role remembers of every row, such as its last embedding: in memory up to a limit, beyond it on disk.

    put(rows, values) ──▶ (row, value) (row, value) ...       appended to the newest piece of a log
                               ▲
    get(rows) ── place[row] ───┘                              where each row was put last, in memory

    FOLDER/3f9c....rows     a piece: at most an eighth of the rows, in the order in which they were put

What is read is what was put, to the bit, wherever it was kept. A piece is appended to by the object that began it, and
never changed: its beginning, by length and SHA-256, is what a state needs of it. Going back to a state therefore
changes no file, whatever was written since or torn off; whoever goes on begins a piece of its own. A piece none of
whose rows is the last of its kind is of no use any more. Rows are put in epochs, each once, so that happens to a piece
when the next epoch is over: there are never more than two epochs of them, and nothing has to be copied.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.descriptors import with_descriptor
from cvfl.errors import OutputError, writing
from cvfl.scratch import Scratch

PIECES = 8
"""Pieces that all rows fill once."""
_RECORDS = 1 << 16
"""Records that are read at a time."""
_DENSE = 4
"""Of so many rows one is asked for, at least, when all are read in passing instead."""


class Piece(NamedTuple):
    """The beginning of a file that belongs to a state."""

    name: str
    length: int
    sha256: str


@dataclass(frozen=True)
class Log:
    """A state of values on disk: their shape and type, and the pieces that have them, in the order of writing."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


class Values(Protocol):
    """Values by row, the same in memory and on disk."""

    shape: tuple[int, ...]
    """Number of rows, then the shape of one."""

    def get(self, rows: Tensor | None = None) -> Tensor:
        """The last values of these rows, or of all; not to be changed."""

    def put(self, rows: Tensor | None, values: Tensor) -> None:
        """New values of these rows, none of them twice, or of all."""

    def state(self) -> Tensor | Log:
        """What `Memory.restored` needs."""


class Memory:
    """Where values by row are kept: in at most `limit` bytes of memory, then in a folder, or a temporary one."""

    def __init__(self, limit: float = math.inf, folder: Path | None = None) -> None:
        self.limit = limit
        self._folder = folder
        self._scratch: Scratch | None = None
        self._held: WeakSet[InMemory] = WeakSet()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Memory:
        """Whoever is copied goes on to keep things in the same place."""
        return self

    def values(self, shape: tuple[int, ...], dtype: torch.dtype, fill: float = 0.0) -> Values:
        """New values, which are all `fill`."""
        return self._in_memory(shape, dtype, fill) or OnDisk(self.folder, shape, dtype, fill)

    def restored(self, state: Tensor | Log, fill: float = 0.0) -> Values:
        """The values of a state, in the place that they have by today's limit."""
        shape = tuple(state.shape)
        dtype = getattr(torch, state.dtype) if isinstance(state, Log) else state.dtype
        held = self._in_memory(shape, dtype, fill)
        if isinstance(state, Log):
            logged = OnDisk(self.folder, shape, dtype, fill, state.pieces)
            if held is None:
                return logged
            state = logged.get()
        values = held or OnDisk(self.folder, shape, dtype, fill)
        values.put(None, state)
        return values

    @property
    def folder(self) -> Path:
        """Where pieces are."""
        with self._lock:
            if self._folder is None:
                self._scratch = Scratch()
                self._folder = self._scratch.path
            return self._folder

    def _in_memory(self, shape: tuple[int, ...], dtype: torch.dtype, fill: float) -> InMemory | None:
        with self._lock:
            if math.prod(shape) * dtype.itemsize + sum(values.size for values in self._held) > self.limit:
                return None
            held = InMemory(torch.full(shape, fill, dtype=dtype))
            self._held.add(held)
            return held


class InMemory:
    """Values in memory; their rows may also be those of a matrix, or none."""

    def __init__(self, values: Tensor) -> None:
        self._values, self.shape, self.size = values, tuple(values.shape), values.nbytes

    def get(self, rows: Tensor | None = None) -> Tensor:
        """By indexing."""
        return self._values if rows is None else self._values.index_select(0, rows)

    def put(self, rows: Tensor | None, values: Tensor) -> None:
        """By indexing."""
        if rows is None:
            self._values.copy_(values)
        else:
            self._values.index_copy_(0, rows, values.to(self._values))

    def state(self) -> Tensor:
        """The values themselves."""
        return self._values


@dataclass(eq=False)
class _Piece:
    """A piece: how many records it has, how many of them are the last of their row, and whether a state needs it."""

    name: str = field(default_factory=lambda: f"{secrets.token_hex(16)}.rows")
    records: int = 0
    last: int = 0
    told: bool = False
    digest: Any = field(default_factory=hashlib.sha256)


class OnDisk:
    """Values in the pieces of a log, and in memory where each row was put last: 4 bytes a row."""

    def __init__(
        self, folder: Path, shape: tuple[int, ...], dtype: torch.dtype, fill: float = 0.0, log: tuple[Piece, ...] = ()
    ) -> None:
        self.shape, self._folder, self._dtype, self._fill = shape, folder, dtype, fill
        number = np.dtype(str(dtype).removeprefix("torch."))
        self._record = np.dtype([("row", np.int64), ("value", number, (math.prod(shape[1:]),))])
        lengths = [piece.length // self._record.itemsize for piece in log]
        self._room = max(1, -(-shape[0] // PIECES), *lengths)
        self._place: NDArray[np.signedinteger[Any]] = np.full(shape[0], -1, dtype=np.int32)
        """Slot of the piece times the room of a piece, and the record in it."""
        self._pieces: dict[int, _Piece] = {}
        """By slot, in the order of writing."""
        self._newest: _Piece | None = None
        for told, records in zip(log, lengths, strict=True):
            self._take_up(told, records)
        for slot, last in enumerate(np.bincount(self._place[self._place >= 0] // self._room)):
            self._pieces[slot].last = int(last)

    def _take_up(self, told: Piece, records: int) -> None:
        """Read the beginning of a piece that a state needs."""
        piece = _Piece(told.name, records, told=True)
        slot = self._slot(piece)
        for start, found in self._records(piece):
            piece.digest.update(found)
            rows = found["row"] % self.shape[0]  # a row that there is not shows in the digest
            self._place[rows] = slot * self._room + start + np.arange(len(found))
        if piece.digest.hexdigest() != told.sha256:
            raise OutputError(f"{self._folder / piece.name}: is damaged; started again, the role uses an older state")

    def get(self, rows: Tensor | None = None) -> Tensor:
        """By one small read a row, or, if there are many, by reading all."""
        if rows is None or _DENSE * len(rows) > self.shape[0]:
            return self._all() if rows is None else self._all()[rows]
        place, values = self._place[rows.cpu().numpy()], self._blank(len(rows))
        size = self._record.itemsize
        for slot, piece in self._pieces.items():
            at = np.flatnonzero(place // self._room == slot)
            at = at[np.argsort(place[at])]
            if len(at):
                with writing(self._folder / piece.name, "read"), self._open(piece) as file:
                    offsets = ((place[at] - slot * self._room).astype(np.int64) * size).tolist()
                    data = b"".join([os.pread(file.fileno(), size, offset) for offset in offsets])
                values[at] = self._whole(piece, data, len(at))["value"]
        return self._tensor(values)

    def put(self, rows: Tensor | None, values: Tensor) -> None:
        """By appending."""
        todo = np.arange(self.shape[0]) if rows is None else rows.cpu().numpy()
        given = values.detach().to("cpu", self._dtype).reshape(len(todo), *self._record["value"].shape).numpy()
        while len(todo):
            slot, piece = self._with_room()
            n = min(len(todo), self._room - piece.records)
            new = np.empty(n, dtype=self._record)
            new["row"], new["value"] = todo[:n], given[:n]
            with writing(self._folder), self._open(piece) as file:
                file.seek(piece.records * self._record.itemsize)
                file.write(new.data)
            piece.digest.update(new)
            self._replaced(self._place[todo[:n]])
            self._place[todo[:n]] = slot * self._room + piece.records + np.arange(n)
            piece.records, piece.last = piece.records + n, piece.last + n
            todo, given = todo[n:], given[n:]
        self._drop_dead()

    def state(self) -> Log:
        """What there is of every piece now."""
        size, told = self._record.itemsize, []
        for piece in self._pieces.values():
            if piece.records:  # or its file could not be made
                piece.told = True
                told.append(Piece(piece.name, piece.records * size, piece.digest.hexdigest()))
        return Log(self.shape, str(self._dtype).removeprefix("torch."), tuple(told))

    def _all(self) -> Tensor:
        values = self._blank(self.shape[0])
        for slot, piece in self._pieces.items():
            for start, found in self._records(piece):
                last = self._place[found["row"]] == slot * self._room + start + np.arange(len(found))
                values[found["row"][last]] = found["value"][last]
        return self._tensor(values)

    def _blank(self, rows: int) -> NDArray[np.floating[Any]]:
        number = self._record["value"]
        return np.full((rows, *number.shape), self._fill, dtype=number.base)

    def _tensor(self, values: NDArray[np.floating[Any]]) -> Tensor:
        return torch.from_numpy(values).reshape(len(values), *self.shape[1:])

    def _records(self, piece: _Piece) -> Iterator[tuple[int, NDArray[np.void]]]:
        """All records of a piece, some at a time, each time with the number of the first one."""
        with writing(self._folder / piece.name, "read"), self._open(piece) as file:
            for start in range(0, piece.records, _RECORDS):
                n = min(_RECORDS, piece.records - start)
                yield start, self._whole(piece, file.read(n * self._record.itemsize), n)

    def _whole(self, piece: _Piece, data: bytes, records: int) -> NDArray[np.void]:
        if len(data) != records * self._record.itemsize:
            raise OutputError(f"{self._folder / piece.name}: ends too early")
        return np.frombuffer(data, dtype=self._record)

    def _with_room(self) -> tuple[int, _Piece]:
        """The newest piece, or one that begins."""
        if self._newest is None or self._newest.records == self._room:
            with writing(self._folder):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._newest = _Piece()
            return self._slot(self._newest), self._newest
        return next(reversed(self._pieces)), self._newest

    def _slot(self, piece: _Piece) -> int:
        """The first free slot, for a piece that comes."""
        slot = next(slot for slot in count() if slot not in self._pieces)
        if (slot + 1) * self._room > np.iinfo(self._place.dtype).max:
            self._place = self._place.astype(np.int64)
        self._pieces[slot] = piece
        return slot

    def _replaced(self, places: NDArray[np.signedinteger[Any]]) -> None:
        for slot, n in enumerate(np.bincount(places[places >= 0] // self._room)):
            if n:
                self._pieces[slot].last -= int(n)

    def _drop_dead(self) -> None:
        """Forget pieces of no use. One that a state needs stays on disk; whoever keeps states removes it."""
        for slot, piece in [*self._pieces.items()]:
            if piece.last == 0 and piece is not self._newest:
                del self._pieces[slot]
                if not piece.told:
                    (self._folder / piece.name).unlink(missing_ok=True)

    def _open(self, piece: _Piece) -> Any:
        """A descriptor for a moment: a role may have many pieces, and connections want descriptors, too."""
        path = self._folder / piece.name
        if piece is self._newest:
            return with_descriptor(lambda: open(path, "r+b", opener=_made))
        return with_descriptor(lambda: open(path, "rb"))


def is_whole(path: Path, piece: Piece) -> bool:
    """Whether a file begins with what a state needs of it."""
    digest, left = hashlib.sha256(), piece.length
    with writing(path, "read"), with_descriptor(lambda: path.open("rb")) as file:
        while left and (data := file.read(min(left, 1 << 20))):
            digest.update(data)
            left -= len(data)
    return left == 0 and digest.hexdigest() == piece.sha256


def _made(path: str, flags: int) -> int:
    """Open a file that nobody else can read, and make it if it is not there."""
    return os.open(path, flags | os.O_CREAT, 0o600)
