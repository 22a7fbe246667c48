"""Messages of the handshake: before the first round, after a restart, and at the end.

    party                               server
      Hello(name, terms)     ────▶                         who I am and what I was told; refused if it differs
                             ◀────      Recall(session)    everyone is here: which rounds do you have?
      Have(session, rounds)  ────▶
                             ◀────▶     alignment, Targets if anyone has not settled its rows yet
      Settled(session, rows) ────▶                         my rows are in their order
                             ◀────      Begin(session, t0) go back to round t0 and send its embedding
      ...                               rounds
      Complete(session, ...) ────▶                         the last round is over, and what it left is kept
                             ◀────      End                everyone has said so: the run is over
      End                    ────▶                         I have heard it

A session starts whenever a role has come back. Frames of an older session are left unread. `Refusal` may come from
either side at any time: it says in one line what is wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from cvfl.errors import DecodeError
from cvfl.wire.frame import MAX_BODY, Bytes, seal, unseal
from cvfl.wire.packet import Reader

CONTROL, TARGETS = 7, 8
MAX_CONTROL = 1 << 20
PROTOCOL = 3
"""Version of the messages and of what they mean; it changes when either does."""


How = Literal["known", "as-is", "align"]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hello(_Message):
    """A party's first word: its name, and the terms of the run as it was told them."""

    type: Literal["hello"] = "hello"
    name: str
    terms: dict[str, Any]
    offer: dict[str, Any]
    protocol: int = PROTOCOL


class Recall(_Message):
    """All parties are here: say which rounds you can go back to."""

    type: Literal["recall"] = "recall"
    session: int


class Have(_Message):
    """The rounds of which the sender has a checkpoint, and of which run; its public key if the session needs keys."""

    type: Literal["have"] = "have"
    session: int
    run: str
    rounds: list[int]
    key: str = ""


class Settle(_Message):
    """Settle your rows: those known from before, all as they are, or by alignment, which starts now."""

    type: Literal["settle"] = "settle"
    session: int
    run: str
    m: int
    how: How


class Settled(_Message):
    """The sender's rows are in their order; how many of each part it has."""

    type: Literal["settled"] = "settled"
    session: int
    rows: list[int]


class Begin(_Message):
    """Go back to round t0; `facts` is what the party needs to know of the others, `keys` their public keys, if any."""

    type: Literal["begin"] = "begin"
    session: int
    m: int
    t0: int
    facts: dict[str, Any] = Field(default_factory=dict)
    keys: list[str] = Field(default_factory=list)


class Complete(_Message):
    """The last round is over, and what it left is kept.

    For the record of the run: SHA-256 of the sender's models by role, and for rounds that were evaluated its squared
    compression error as (round, measured, expected, bound).
    """

    type: Literal["complete"] = "complete"
    session: int
    rounds: int
    parameters: dict[str, str]
    errors: list[tuple[int, float, float, float]]


class End(_Message):
    """The run is over; nothing more is sent. A party that has heard it says the same."""

    type: Literal["end"] = "end"
    rounds: int


class Refusal(_Message):
    """Why the sender stops, in one line."""

    type: Literal["refusal"] = "refusal"
    reason: str


Control = Hello | Recall | Have | Settle | Settled | Begin | Complete | End | Refusal
_CONTROL: TypeAdapter[Control] = TypeAdapter(Annotated[Control, Field(discriminator="type")])


@dataclass(frozen=True)
class Targets:
    """From the label holder: what each shared row is for, and labels, in the order of the rows.

    `parts` is one byte a row; `labels` are float64, of the training rows only when a party receives them.
    """

    m: int
    loss: int
    outputs: int
    parts: Bytes
    labels: Bytes


def encode_control(message: Control | Targets, m: int) -> bytes:
    """The frame of a message from role m."""
    if isinstance(message, Targets):
        head = struct.pack("<BHII", message.loss, message.outputs, len(message.parts), len(message.labels) // 8)
        return seal(TARGETS, m, 0, [head, message.parts, message.labels])
    return seal(CONTROL, m, 0, [message.model_dump_json().encode()])


def decode_control(frame: Bytes, max_body: int = MAX_BODY) -> tuple[int, Control | Targets]:
    """The sender and the message."""
    kind, sender, t0, body = unseal(frame, max_body)
    if t0 == 0 and kind == TARGETS:
        reader = Reader(body)
        loss, outputs, rows, labels = reader.read("<BHII", "targets")
        message = Targets(sender, loss, outputs, reader.take(rows, "parts"), reader.take(8 * labels, "labels"))
        reader.finish()
        return sender, message
    if t0 == 0 and kind == CONTROL and len(body) <= MAX_CONTROL:
        try:
            return sender, _CONTROL.validate_json(bytes(body))
        except ValidationError:
            raise DecodeError("a control message that is malformed") from None
    raise DecodeError(f"a message of kind {kind} and round {t0} in the handshake")
