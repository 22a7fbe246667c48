"""Numbers in as few bytes as they need: seven bits a byte, lowest first; the top bit says that more follow."""

from __future__ import annotations

from cvfl.errors import DecodeError


def varint(value: int) -> bytes:
    """The bytes of a number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number that starts at this place, and the place after it."""
    value = 0
    for place in range(5):
        if at + place >= len(data):
            raise DecodeError("the data end within a number")
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte == 0 and place:
            raise DecodeError("a number in more bytes than it needs")
        if byte < 128:
            return value, at + place + 1
    raise DecodeError("a number of more than 35 bits")
