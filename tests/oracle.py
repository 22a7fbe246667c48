"""The range code of docs/wire-format.md once more, one symbol at a time: slow, and plain.

A test that compares it with `cvfl.wire.rangecode` compares that with the page, and with no library.
"""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cvfl.compress import Plane

FULL = 1 << 24
"""Probabilities are multiples of 1 / FULL."""
Column = list[int]
Head = tuple[int, bool, int, int]
"""Width, adaptive, count, columns."""


class Refused(Exception):  # noqa: N818
    """A decoder of the page refuses this."""


class Writer:
    """Low and range are numbers of 64 bits; what low has beyond them goes to the words that are already written."""

    def __init__(self) -> None:
        self.low, self.range = 0, 2**64 - 1
        self.written: list[int] = []

    def write(self, left: int, share: int) -> None:
        unit = self.range >> 24
        self.low += unit * left
        self.range = unit * share
        self._carry()
        if self.range < 2**32:
            self.written.append(self.low >> 32)
            self.low, self.range = self.low << 32 & (2**64 - 1), self.range << 32

    def _carry(self) -> None:
        place = len(self.written) - 1
        while self.low >= 2**64:
            self.written[place] = (self.written[place] + 1) % 2**32
            if self.written[place]:
                self.low -= 2**64
            place -= 1

    def words(self) -> list[int]:
        if self.range == 2**64 - 1:
            return []
        end = Writer()
        end.low, end.range, end.written = self.low + 2**32 - 1, self.range, list(self.written)
        end._carry()
        words = [*end.written, end.low >> 32]
        return [*words, 0] if (self.low + self.range) >> 32 == (self.low + 2**32 - 1) >> 32 else words

    def code(self) -> bytes:
        """The words with their highest bytes first, the last one rounded up while the interval allows it."""
        words = self.words()
        for step in (2**24, 2**16, 2**8) if words else ():
            last = (words[-1] + step - 1) // step * step
            if last < 2**32 and (last * 2**32 - self.low) % 2**64 < self.range:
                words[-1] = last
                break
        return struct.pack(f">{len(words)}I", *words).rstrip(b"\0")


class Reader:
    """Beyond its end a code goes on with zeros."""

    def __init__(self, code: bytes) -> None:
        self.code, whole = code, code + bytes(-len(code) % 4)
        self.words = iter(struct.unpack(f">{len(whole) // 4}I", whole))
        self.beyond, self.range = next(self.words, 0) << 32 | next(self.words, 0), 2**64 - 1

    def read(self, lefts: Sequence[int]) -> int:
        """The symbol whose part of the range holds the place; lefts ends with FULL."""
        unit = self.range >> 24
        place = self.beyond // unit
        if place >= FULL:
            raise Refused("no encoder wrote this")
        symbol = bisect.bisect_right(lefts, place) - 1
        self.beyond -= unit * lefts[symbol]
        self.range = unit * (lefts[symbol + 1] - lefts[symbol])
        if self.range < 2**32:
            self.beyond, self.range = self.beyond << 32 | next(self.words, 0), self.range << 32
        return symbol

    def end(self, symbols: int, bits: float) -> None:
        """Nothing may be left over of a code for so many symbols, which say so many bits."""
        if self.code.endswith(b"\0") or 8 * len(self.code) > (bits + 0.006 * symbols + 48 if symbols else 0):
            raise Refused("bytes too many")


def lefts(counts: Column) -> list[int]:
    """Where the parts of the symbols begin: floats as the page says, in one order."""
    total = sum(counts)
    shares = [count / total for count in counts]
    summed = 0.0
    for share in shares:
        summed += share
    scale, at, found = (FULL - len(counts)) / summed, 0.0, []
    for symbol, share in enumerate(shares):
        found.append(int(at * scale) + symbol)
        at += share
    return [*found, FULL]


def even(bits: int) -> range:
    """The same for symbols that are all alike."""
    return range(0, FULL + 1, FULL >> bits)


def pieces(width: int) -> list[tuple[int, int]]:
    """Where the pieces of a plain symbol start, and how wide they are."""
    return [(low, min(16, width - low)) for low in range(0, width, 16)]


def fresh(width: int) -> Column:
    """Counts before anything was seen."""
    if width <= 8:
        return [max(1, 128 >> width)] * (1 << width)
    return [max(1, 128 >> symbol) for symbol in range(32)]


@dataclass
class Model:
    """Counts of a plane's columns; `bits` adds up what an ideal coder would have needed."""

    width: int
    columns: int
    counts: list[Column] = field(default_factory=list)
    bits: float = 0.0

    def __post_init__(self) -> None:
        first = fresh(self.width)
        fits = [len(column) for column in self.counts] == [len(first)] * self.columns
        self.counts = [list(column) for column in (self.counts if fits else [first] * self.columns)]

    @property
    def escape(self) -> int:
        return 31 if self.width > 8 else -1

    def blocks(self, count: int) -> Iterator[list[list[int]]]:
        """The places of each block's symbols, column by column."""
        rows, step = count // self.columns, max(32, 1024 // self.columns)
        for first in range(0, rows, step):
            block = range(first, min(first + step, rows))
            yield [[row * self.columns + column for row in block] for column in range(self.columns)]

    def learn(self, seen: list[list[int]]) -> None:
        for column, symbols in zip(self.counts, seen, strict=True):
            for symbol in symbols:
                column[symbol] += 32
            if sum(column) > 16384:
                column[:] = [(count + 1) // 2 for count in column]

    def cost(self, column: int, symbol: int) -> float:
        return math.log2(sum(self.counts[column])) - math.log2(self.counts[column][symbol])


def write_plain(coder: Writer, symbols: Sequence[int], width: int) -> None:
    for low, bits in pieces(width):
        for symbol in symbols:
            piece = symbol >> low & ((1 << bits) - 1)
            coder.write(piece * (FULL >> bits), FULL >> bits)


def read_plain(coder: Reader, count: int, width: int) -> list[int]:
    symbols = [0] * count
    for low, bits in pieces(width):
        for place in range(count):
            symbols[place] |= coder.read(even(bits)) << low
    return symbols


def write(coder: Writer, model: Model, symbols: Sequence[int]) -> None:
    """Code a plane with its model, which learns from it."""
    for places in model.blocks(len(symbols)):
        seen = [[min(symbols[i], 31) if model.escape > 0 else symbols[i] for i in column] for column in places]
        for number, column in enumerate(seen):
            parts = lefts(model.counts[number])
            for symbol in column:
                coder.write(parts[symbol], parts[symbol + 1] - parts[symbol])
                model.bits += model.cost(number, symbol)
        beyond = [symbols[i] for column in places for i in column if symbols[i] >= model.escape > 0]
        write_plain(coder, beyond, model.width)
        model.bits += model.width * len(beyond)
        model.learn(seen)


def read(coder: Reader, model: Model, count: int) -> list[int]:
    """What `write` coded."""
    symbols = [0] * count
    for places in model.blocks(count):
        seen = []
        for number, column in enumerate(places):
            parts = lefts(model.counts[number])
            seen.append([coder.read(parts) for _ in column])
            model.bits += sum(model.cost(number, symbol) for symbol in seen[-1])
        flat = [i for column in places for i in column]
        for i, symbol in zip(flat, (symbol for column in seen for symbol in column), strict=True):
            symbols[i] = symbol
        beyond = [i for i in flat if symbols[i] == model.escape]
        for i, symbol in zip(beyond, read_plain(coder, len(beyond), model.width), strict=True):
            symbols[i] = symbol
        model.bits += model.width * len(beyond)
        model.learn(seen)
    return symbols


def head(
    code: bytes, shape: tuple[int, ...], scalar_size: int = 4, before: Mapping[int, Sequence[Column]] | None = None
) -> tuple[list[Head], bytes]:
    """The head of a code, read as the page says: (width, adaptive, count, columns) of each plane; and what follows.

    `before` are the counts that are remembered for each place.
    """

    def number() -> int:
        nonlocal at  # type: ignore[misc]
        value = place = 0
        while True:
            value |= (code[at] & 127) << place
            at, place = at + 1, place + 7
            if code[at - 1] < 128:
                return value

    at, planes, n, scalars = 1, list[Head](), math.prod(shape), code[0] // 4 % 4
    if scalars == 3:
        scalars, at = code[1], 2
    for place in range(code[0] // 16):
        first, at = code[at], at + 1
        if first < 128:
            planes.append((first % 64 or 64, False, number() if first & 64 else n, 1))
            continue
        columns = number() if first & 64 else len((before or {}).get(place, [[]]))
        count = [lambda: n, lambda: columns * (math.prod(shape[:-1]) + 1), number][first // 16 % 4]()  # noqa: B023
        planes.append((first % 16 + 1, True, count, columns))
    at += scalars * scalar_size
    return planes, code[at:]


def written(
    symbols: list[list[int]], planes: list[Head], counts: dict[int, list[Column]]
) -> tuple[Writer, dict[int, list[Column]], float]:
    """What the oracle writes for these planes, the counts after it, and the ideal length in bits."""
    coder, after, bits = Writer(), dict(counts), 0.0
    for index, (values, (width, adaptive, _, columns)) in enumerate(zip(symbols, planes, strict=True)):
        if adaptive:
            model = Model(width, columns, counts.get(index, []))
            write(coder, model, values)
            after[index], bits = model.counts, bits + model.bits
        else:
            write_plain(coder, values, width)
            bits += width * len(values)
    return coder, after, bits


def values_of(plane: Plane) -> list[int]:
    return [value % 2**plane.width for value in plane.symbols.tolist()]
