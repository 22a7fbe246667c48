"""Messages of online serving: scores of a few rows while somebody waits. Their frames are of one kind.

    the door's party                       server                        every other party
       Ask(t0, m, run)       ──────────▶     Ask(t0)       ──────────▶                      pseudonyms of rows
       Found(t0, m)          ──────────▶                   ◀──────────   Found(t0, m)       which are known, their h_m
                             ◀──────────     Answer(t0)                                     which are known, scores
       Runs(m)               ──────────▶                   ◀──────────   Runs(m)            runs whose models are here
                             ◀──────────     Runs                                           those that all have
                             ◀──────────     Away                                           who is missing
       Owing(t0, m)          ──────────▶                                                    who has not answered t0?
                             ◀──────────     Owing(t0)                                      these have not

t0 counts what the door asks in a session. Where labels stay with the door's party, the others' Found go to it, sealed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cvfl.errors import DecodeError
from cvfl.types import SERVER
from cvfl.wire.bits import packed_size
from cvfl.wire.frame import Bytes, head_of, unseal
from cvfl.wire.packet import Reader
from cvfl.wire.varint import varint

SERVING = 15
PSEUDONYM = 16
"""Bytes of a pseudonym."""
MAX_ROWS = 1 << 16
"""Rows of one message."""
MAX_RUNS, MAX_RUN = 16, 64
MAX_ROLES = 1 << 12
_ASK, _FOUND, _ANSWER, _RUNS, _AWAY, _OWING = 1, 2, 3, 4, 5, 6
_RUN = re.compile(r"[0-9A-Za-z._-]{1,64}")
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Ask:
    """Rows that are asked for by their pseudonyms, of the models of a run: from the door, or passed on (m = 0)."""

    t0: int
    m: int
    run: str
    pseudonyms: Bytes


@dataclass(frozen=True)
class Found:
    """Which of the `count` rows party m knows, a bit each; and the packet of their embeddings.

    Masked embeddings are of all rows, those that are not known as zeros.
    """

    t0: int
    m: int
    count: int
    known: Bytes
    packet: Bytes


@dataclass(frozen=True)
class Answer:
    """Of the `count` rows: a bit each for the server, whether it has a score, and for every party, whether it knows
    the row; and the scores, `columns` numbers of eight bytes for each row that has one.
    """

    t0: int
    count: int
    columns: int
    known: tuple[Bytes, ...]
    scores: Bytes


@dataclass(frozen=True)
class Runs:
    """The runs whose models role m has, the oldest first; from the server those that all roles have."""

    t0: ClassVar[int] = 0
    m: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Away:
    """From the server: these parties are missing, so nothing can be asked; none, if the session is about to begin."""

    t0: ClassVar[int] = 0
    parties: tuple[int, ...]


@dataclass(frozen=True)
class Owing:
    """From the door, without parties: who has not said what it found for number t0? From the server (m = 0): these."""

    t0: int
    m: int
    parties: tuple[int, ...] = ()


Serving = Ask | Found | Answer | Runs | Away | Owing


def bits_of(known: Bits) -> bytes:
    """A bit a row, as `cvfl.wire.bits` packs them; for the few of a request this is faster."""
    return np.packbits(known, bitorder="little").tobytes()


def read_bits(data: Bytes, count: int) -> Bits:
    """The same back."""
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count, bitorder="little").astype(bool)


def asked_in(frame: Bytes) -> tuple[str, int] | None:
    """Of a whole frame that asks for rows: by the models of which run, and for how many."""
    kind, sender, t0, start = head_of(frame)
    if kind != SERVING or frame[start : start + 1] != bytes([_ASK]):
        return None
    ask = serving_of(sender, t0, unseal(frame).body)
    return (ask.run, len(ask.pseudonyms) // PSEUDONYM) if isinstance(ask, Ask) else None


def serving_parts(message: Serving) -> tuple[int, int, list[Bytes]]:
    """Sender, t0 and the body in parts."""
    match message:
        case Ask(t0, m, run, pseudonyms):
            return m, t0, [bytes([_ASK]) + _text(run), pseudonyms]
        case Found(t0, m, count, known, packet):
            return m, t0, [bytes([_FOUND]) + varint(count), known, packet]
        case Answer(t0, count, columns, known, scores):
            head = bytes([_ANSWER]) + varint(count) + varint(columns) + varint(len(known))
            return SERVER, t0, [head, *known, scores]
        case Runs(m, runs):
            return m, 0, [bytes([_RUNS, len(runs)]), *map(_text, runs)]
        case Away(parties):
            return SERVER, 0, [bytes([_AWAY]) + varint(len(parties)), *map(varint, parties)]
        case Owing(t0, m, parties):
            return m, t0, [bytes([_OWING]) + varint(len(parties)), *map(varint, parties)]


def serving_of(sender: int, t0: int, body: memoryview) -> Serving:
    """The message that a body is."""
    reader = Reader(body)
    (what,) = reader.take(1, "what is served")
    match what:
        case 1:
            return _ask(sender, t0, reader)
        case 2 if sender != SERVER:
            count = _count(reader)
            known = _bits(reader, count)
            return Found(t0, sender, count, known, reader.take(reader.left, "packet"))
        case 3 if sender == SERVER:
            return _answer(t0, reader)
        case 4 if t0 == 0:
            (count,) = reader.take(1, "number of runs")
            if count > MAX_RUNS:
                raise DecodeError(f"{count} runs, more than {MAX_RUNS}")
            runs = tuple(_read_text(reader) for _ in range(count))
            reader.finish()
            return Runs(sender, runs)
        case 5 if sender == SERVER and t0 == 0:
            return Away(_parties(reader))
        case 6:
            parties = _parties(reader)
            if sender != SERVER and parties:
                raise DecodeError(f"role {sender} says who owes an answer; the server does")
            return Owing(t0, sender, parties)
    raise DecodeError(f"no message of serving: {what} from role {sender}, number {t0}")


def _ask(sender: int, t0: int, reader: Reader) -> Ask:
    run = _read_text(reader)
    if not 0 < reader.left <= PSEUDONYM * MAX_ROWS or reader.left % PSEUDONYM:
        raise DecodeError(f"{reader.left} bytes are no pseudonyms of 1 to {MAX_ROWS} rows")
    return Ask(t0, sender, run, reader.take(reader.left, "pseudonyms"))


def _answer(t0: int, reader: Reader) -> Answer:
    count, columns, roles = _count(reader), reader.varint(), reader.varint()
    if roles > MAX_ROLES or not columns:
        raise DecodeError(f"an answer of {roles} roles and {columns} columns")
    known = tuple(_bits(reader, count) for _ in range(roles))
    return Answer(t0, count, columns, known, reader.take(reader.left, "scores"))


def _parties(reader: Reader) -> tuple[int, ...]:
    """Those that are away, or owe an answer."""
    if (count := reader.varint()) > MAX_ROLES:
        raise DecodeError(f"{count} parties are named, more than {MAX_ROLES}")
    parties = tuple(reader.varint() for _ in range(count))
    reader.finish()
    if SERVER in parties:
        raise DecodeError("the server names itself among parties")
    return parties


def _count(reader: Reader) -> int:
    if not 0 < (count := reader.varint()) <= MAX_ROWS:
        raise DecodeError(f"{count} rows of a message, not 1 to {MAX_ROWS}")
    return count


def _bits(reader: Reader, count: int) -> memoryview:
    bits = reader.take(packed_size(count, 1), "bits")
    if count % 8 and bits[-1] >> count % 8:
        raise DecodeError("bits that are not used are set")
    return bits


def _text(run: str) -> bytes:
    return bytes([len(run)]) + run.encode("ascii")


def _read_text(reader: Reader) -> str:
    (size,) = reader.take(1, "length of a run's name")
    text = bytes(reader.take(size, "run")).decode("latin-1")
    if not _RUN.fullmatch(text):
        raise DecodeError("the name of a run is malformed")
    return text
