"""What the parties of a run must know of each other: the server makes it of their offers, and they check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from cvfl.compress import build
from cvfl.errors import CvflError, RemoteProtocolError
from cvfl.protocol import Loss
from cvfl.wire.control import MAX_SPEC, Count, Offer

AWAY = 0
"""The width of a party that does not take part in a session."""
Width = Annotated[int, Field(ge=AWAY, le=1 << 20)]
LARGEST_MODEL = 1 << 28
"""Weights between embeddings and outputs."""


@dataclass(frozen=True)
class Facts:
    """What every role must know of the others: who they are, what they send, and the rows they share."""

    names: tuple[str, ...]
    widths: tuple[Width, ...]
    compressors: tuple[Annotated[str, Field(max_length=MAX_SPEC)], ...]
    rows: tuple[Count, Count, Count]
    """Training, validation and test rows."""
    loss: Loss
    outputs: Annotated[int, Field(ge=1, lt=1 << 16)]


_FACTS = TypeAdapter(Facts)


def facts_of(
    names: Sequence[str], offers: Mapping[int, Offer], sizes: Sequence[int], loss: Loss, outputs: int
) -> dict[str, Any]:
    """What the parties must know of each other, from the offers of those who are here; a bad one is refused by name."""
    for m, offer in offers.items():
        try:
            build(offer.compressor)
        except CvflError as error:
            raise RemoteProtocolError(f"{names[m - 1]}: {error}") from None
    everyone = range(1, len(names) + 1)
    widths = [offers[m].width if m in offers else AWAY for m in everyone]
    _check_size(widths, outputs)
    return {
        "names": list(names),
        "widths": widths,
        "compressors": [offers[m].compressor if m in offers else "" for m in everyone],
        "rows": list(sizes),
        "loss": str(loss),
        "outputs": outputs,
    }


def read_facts(facts: dict[str, Any]) -> Facts:
    """Facts as they came over the wire, checked."""
    try:
        found = _FACTS.validate_python(facts)
    except ValidationError as error:
        raise RemoteProtocolError(f"facts of the run that are malformed: {error.errors()[0]['msg']}") from None
    if not len(found.names) == len(found.widths) == len(found.compressors):
        raise RemoteProtocolError("facts of the run that are malformed: not one width and compressor a party")
    _check_size(found.widths, found.outputs)
    return found


def _check_size(widths: Sequence[int], outputs: int) -> None:
    """Refuse a server model that no machine has room for, before it is made."""
    if sum(widths) * outputs > LARGEST_MODEL:
        raise RemoteProtocolError(f"embeddings of {max(widths)} numbers for {outputs} outputs are too many")
