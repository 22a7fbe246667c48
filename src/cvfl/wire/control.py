"""Messages of the handshake: before the first round, after a restart, and at the end.

    party                               server
      Hello(name, terms)     ────▶                         who I am and what I was told; refused if it differs
                             ◀────      Recall(session)    everyone is here: which rounds do you have?
      Have(session, rounds)  ────▶
                             ◀────      Settle(session)    rows as you have them, or anew:
                             ◀────▶     RowSecret, alignment, Targets
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

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from cvfl.errors import DecodeError
from cvfl.wire.frame import MAX_BODY, Bytes, seal, unseal
from cvfl.wire.targets import Targets, decode_targets, encode_targets

CONTROL, TARGETS = 7, 8
MAX_CONTROL = 1 << 20
PROTOCOL = 12
"""Version of the messages and of what they mean; it changes when either does."""


How = Literal["known", "as-is", "kept", "align"]
Count = Annotated[int, Field(ge=0, lt=1 << 40)]
"""A round, a session, or a number of rows or ids."""
Party = Annotated[int, Field(ge=1, lt=1 << 16)]
Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Ease = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
MOST_CERTIFICATES = 2_000
"""With the most errors that a party tells, at the most digits that either has, they fit into a control message."""
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=1024)]
Rounds = Annotated[list[Count], Field(max_length=16)]
MAX_PARTIES = 1 << 12
MAX_SPEC = 256
"""Characters in the text of a compressor."""
MOST_OUTPUTS = 1 << 18
"""Outputs of held-out rows that the holder of their labels is told at the end."""
MOST_CLASSES, MAX_CLASS = 100, 100
"""Classes that are told by name, and characters of a name."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Offer(_Message):
    """What a party tells of itself: the width of its embedding, its compressor, and whether it holds the label.

    With labels that the server gets it may name their classes, for the report. In a run that starts from an earlier one
    it says if it is `new`: then it was not in that run, and begins with fresh parameters.
    """

    width: int = Field(ge=1, le=1 << 20)
    compressor: str = Field(max_length=MAX_SPEC)
    label: bool
    classes: list[Annotated[str, Field(max_length=MAX_CLASS)]] = Field(default_factory=list, max_length=MOST_CLASSES)

    new: bool = False

    @model_serializer(mode="wrap")
    def _short(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without classes if there are none to name, and without `new` of a party that is not."""
        values: dict[str, Any] = whole(self)
        return {key: value for key, value in values.items() if value or key not in ("classes", "new")}


class Hello(_Message):
    """A party's first word: its name, the terms of the run as it was told them, and what it has kept of a run."""

    type: Literal["hello"] = "hello"
    name: str = Field(max_length=100)
    terms: dict[str, Any]
    offer: Offer
    run: RunId = ""
    rounds: Rounds = Field(default_factory=list)
    protocol: int = PROTOCOL


class Recall(_Message):
    """All parties are here: say which rounds you can go back to."""

    type: Literal["recall"] = "recall"
    session: Count


class PublicKey(_Message):
    """The public half of a party's key of a session, signed with the key of its certificate where there is one."""

    public: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    certificate: str = Field(default="", max_length=1 << 14)
    signature: Hex = ""


class Have(_Message):
    """The rounds of which the sender has a checkpoint, and of which run; its ids, and its key if one is needed.

    `kept` names the alignment that it kept, if any, since which `new` of its `ids` came.
    """

    type: Literal["have"] = "have"
    session: Count
    run: RunId
    rounds: Rounds
    ids: Count = 0
    kept: RunId = ""
    new: Count = 0
    key: PublicKey | None = None


class Settle(_Message):
    """Settle your rows: those known from before, all as they are, as an alignment found them that all have kept, or by
    an alignment that starts now.

    `keys` are those of all parties if they need any, and `ids` how many each has to align. `kept` names the alignment
    to go on with, if any, and `new` says how many ids of each came since. `giver` is the party whose secret orders the
    rows. `here` are the parties of a session without some; else it is one of all.
    """

    type: Literal["settle"] = "settle"
    session: Count
    run: RunId
    m: Party
    how: How
    keys: list[PublicKey] = Field(default_factory=list, max_length=MAX_PARTIES)
    ids: list[Count] = Field(default_factory=list, max_length=MAX_PARTIES)
    kept: RunId = ""
    new: list[Count] = Field(default_factory=list, max_length=MAX_PARTIES)
    giver: Party = 1
    here: list[Party] = Field(default_factory=list, max_length=MAX_PARTIES)

    @model_serializer(mode="wrap")
    def _short(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is so in every session of all."""
        values: dict[str, Any] = whole(self)
        usual = {"giver": 1, "here": []}
        return {key: value for key, value in values.items() if key not in usual or value != usual[key]}

    def members(self, M: int) -> tuple[int, ...]:
        """The parties of the session, of M that there are."""
        return tuple(self.here or range(1, M + 1))


class RowSecret(_Message):
    """From the first party, or that of the door: by what rows are ordered and split, sealed for each of the others.

    The server has no key. To a party only its own goes.
    """

    type: Literal["row secret"] = "row secret"
    session: Count
    sealed: list[Hex] = Field(max_length=MAX_PARTIES)


class Settled(_Message):
    """The sender's rows are in their order; how many of each part it has."""

    type: Literal["settled"] = "settled"
    session: Count
    rows: Annotated[list[Count], Field(min_length=3, max_length=3)]


class Begin(_Message):
    """Go back to round t0; `facts` is what the party needs to know of the others."""

    type: Literal["begin"] = "begin"
    session: Count
    m: Party
    t0: Count
    facts: dict[str, Any] = Field(default_factory=dict)


class Complete(_Message):
    """The last round is over, and what it left is kept.

    For the record of the run: SHA-256 of the sender's models by role, and for rounds that were evaluated its squared
    compression error as (round, measured, expected, bound), and how well the gradients that its messages caused agreed
    with the exact ones as (round, cosine, ratio of lengths, ease of tolerance), if its compressor follows the loss.
    """

    type: Literal["complete"] = "complete"
    session: Count
    rounds: Count
    parameters: dict[str, str]
    errors: list[tuple[Count, Error, Error, Error]]
    certificates: list[tuple[Count, Cosine, Error, Ease]] = Field(default=[], max_length=MOST_CERTIFICATES)


class End(_Message):
    """The run is over; nothing more is sent. A party that has heard it says the same.

    To the holder of labels that were randomised it brings the `outputs` of test rows, then of those for validation:
    floats of 16 bits in base64.
    """

    type: Literal["end"] = "end"
    rounds: Count
    outputs: str = Field(default="", max_length=3 * MOST_OUTPUTS)

    @model_serializer(mode="wrap")
    def _short(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without outputs where nobody is told any."""
        values: dict[str, Any] = whole(self)
        return {key: value for key, value in values.items() if value or key != "outputs"}


class Refusal(_Message):
    """Why the sender stops, in one line."""

    type: Literal["refusal"] = "refusal"
    reason: str


Control = Hello | Recall | Have | Settle | RowSecret | Settled | Begin | Complete | End | Refusal
_CONTROL: TypeAdapter[Control] = TypeAdapter(Annotated[Control, Field(discriminator="type")])


def encode_control(message: Control | Targets, m: int) -> bytes:
    """The frame of a message from role m."""
    if isinstance(message, Targets):
        return seal(TARGETS, m, 0, [encode_targets(message)])
    return seal(CONTROL, m, 0, [message.model_dump_json().encode()])


def decode_control(frame: Bytes, max_body: int = MAX_BODY) -> tuple[int, Control | Targets]:
    """The sender and the message."""
    kind, sender, _, body = unseal(frame, max_body)
    if kind == TARGETS:
        return sender, decode_targets(body, sender)
    if kind == CONTROL and len(body) <= MAX_CONTROL:
        try:
            return sender, _CONTROL.validate_json(bytes(body))
        except ValidationError:
            raise DecodeError("a control message that is malformed") from None
    raise DecodeError(f"a message of kind {kind} in the handshake")
