"""Frames of one direction in one message of the engine, with a number that makes it safe to send it again.

u64 number | u8 state | for each frame: u64 length, bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from cvfl.errors import DecodeError, plain
from cvfl.wire import Bytes

_HEAD = struct.Struct("<QB")
_LENGTH = struct.Struct("<Q")
MAX_PARCEL = 256 << 20
"""Bytes after which a parcel is closed and the next one opened; one frame alone may be longer."""


class State(IntEnum):
    """What the sender does now: it waits for frames, still works on some, has given up, or had no room for these."""

    WAITING = 0
    WORKING = 1
    FAILED = 2
    FULL = 3


@dataclass(frozen=True)
class Parcel:
    """A numbered list of frames; of a sender that has failed, the reason in one line takes their place."""

    number: int
    frames: tuple[Bytes, ...] = ()
    state: State = State.WAITING

    @classmethod
    def failed(cls, number: int, reason: str) -> Parcel:
        """The answer of a party that cannot go on."""
        return cls(number, (reason.encode(),), State.FAILED)

    @property
    def reason(self) -> str:
        """Why the sender has failed."""
        return plain(b"".join(self.frames).decode(errors="replace"))

    def pack(self) -> bytes:
        """The bytes of the parcel."""
        parts: list[Bytes] = [_HEAD.pack(self.number, self.state)]
        for frame in self.frames:
            parts += [_LENGTH.pack(len(frame)), frame]
        return b"".join(parts)


def unpack(data: Bytes) -> Parcel:
    """The parcel of these bytes; its frames are views of them, since copies of large ones take time."""
    view = memoryview(data)
    try:
        number, state = _HEAD.unpack_from(view)
        at, frames = _HEAD.size, list[Bytes]()
        while at < len(view):
            (length,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
            if length > len(view) - at:
                raise DecodeError(f"a parcel whose frame of {length} bytes is cut short")
            frames.append(view[at : at + length])
            at += length
        return Parcel(number, tuple(frames), State(state))
    except (struct.error, ValueError):
        raise DecodeError("a parcel that is malformed") from None


def fitting(frames: Iterable[Bytes]) -> int:
    """How many of these frames go into one parcel: at least one if there is any."""
    size = 0
    count = 0
    for count, frame in enumerate(frames, start=1):
        size += len(frame)
        if size > MAX_PARCEL:
            return max(1, count - 1)
    return count
