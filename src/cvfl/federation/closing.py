"""A party's last word when its messages were certified: `Complete`, and a certificate of each evaluated round.

    {"type": "complete", ..., "errors": [...], "version": 1, "certificates": [[round, cosine, ratio, ease], ...]}

A party without certificates says `Complete` as it is. Whoever reads frames here reads both; `version` is that of the
certificates, and one that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cvfl.errors import DecodeError
from cvfl.federation.terms import thinned
from cvfl.protocol import Certificate
from cvfl.wire.control import CONTROL, MAX_CONTROL, Complete, Control, Count, Targets
from cvfl.wire.frame import Bytes, kind_of, unseal
from cvfl.wire.message import Message
from cvfl.wire.read import read_frame
from cvfl.wire.setup import Setup

MOST_CERTIFICATES = 2_000
"""With the most errors that a party tells, at the most digits that either has, they fit into a control message."""
Cosine = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ease = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Closing(Complete):
    """The same for a party whose messages were certified, as (round, cosine, ratio of lengths, ease of tolerance)."""

    version: Literal[1] = 1
    certificates: list[tuple[Count, Cosine, Ratio, Ease]] = Field(min_length=1, max_length=MOST_CERTIFICATES)


def closing(complete: Complete, certificates: Mapping[int, Certificate]) -> Complete:
    """A party's last word with its certificates, if there are any: of very many every second one, and so on."""
    if not certificates:
        return complete
    listed = [(t0, one.cosine, one.ratio, one.ease) for t0, one in sorted(certificates.items())]
    return Closing(**complete.model_dump(), certificates=thinned(listed, MOST_CERTIFICATES))


def certificates_of(complete: Complete) -> dict[int, Certificate]:
    """The certificates in a party's last word, by round."""
    told = complete.certificates if isinstance(complete, Closing) else []
    return {t0: Certificate(*figures) for t0, *figures in told}


def kept_closing(values: Mapping[str, Any]) -> Complete:
    """A party's last word, from its fields as a checkpoint keeps them."""
    return Closing(**values) if "certificates" in values else Complete(**values)


def read_any(frame: Bytes) -> Message | Setup | Control | Targets:
    """Any frame as the message that it is, certificates included."""
    try:
        return read_frame(frame)
    except DecodeError:
        if kind_of(frame) != CONTROL:
            raise
        _, _, t0, body = unseal(frame)
        if t0 != 0 or len(body) > MAX_CONTROL:
            raise
        try:
            return Closing.model_validate_json(bytes(body))
        except ValidationError:
            raise DecodeError("a control message that is malformed") from None
