"""What roles must have alike or know of each other before the first round: terms, offers, facts, labels as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from cvfl.compress import build
from cvfl.config.schema import RunConfig
from cvfl.errors import CvflError, LocalProtocolError, RemoteProtocolError
from cvfl.federation.build import Facts
from cvfl.protocol import Loss

LOSSES = tuple(Loss)
"""By their numbers on the wire."""
_FACTS = TypeAdapter(Facts)


def terms_of(config: RunConfig) -> dict[str, Any]:
    """The keys that all roles must have alike; what a party decides for itself is in its offer."""
    values = config.model_dump(mode="json", exclude={"party", "party_model", "compressor", "device", "network"})
    private = {"path", "id", "prepare"}
    data = {f"data.{key}": value for key, value in values.pop("data").items() if key not in private}
    return values | data


def offer_of(config: RunConfig, name: str) -> dict[str, Any]:
    """What a party tells of itself: the width of its embedding, its compressor, and whether it holds the label."""
    section = config.party.get(name)
    return {
        "width": config.model_of(name).width,
        "compressor": config.compressor_of(name),
        "label": section is not None and section.label is not None,
    }


def facts_of(
    names: Sequence[str], offers: Sequence[Mapping[str, Any]], sizes: Sequence[int], loss: Loss, outputs: int
) -> dict[str, Any]:
    """What the parties must know of each other, from their offers; a bad offer is refused by name."""
    for name, offer in zip(names, offers, strict=True):
        width, compressor = offer.get("width"), offer.get("compressor")
        if not isinstance(width, int) or not 1 <= width <= 1 << 20 or not isinstance(compressor, str):
            raise RemoteProtocolError(f"{name}: an offer without width and compressor")
        try:
            build(compressor)
        except CvflError as error:
            raise RemoteProtocolError(f"{name}: {error}") from None
    widths, compressors = ([offer[key] for offer in offers] for key in ("width", "compressor"))
    return {
        "names": list(names),
        "widths": widths,
        "compressors": compressors,
        "rows": list(sizes),
        "loss": str(loss),
        "outputs": outputs,
    }


def read_facts(facts: dict[str, Any]) -> Facts:
    """Facts as they came over the wire, checked."""
    try:
        return _FACTS.validate_python(facts)
    except ValidationError as error:
        raise RemoteProtocolError(f"facts of the run that are malformed: {error.errors()[0]['msg']}") from None


def elsewhere() -> nn.Module:
    """Stands for the model of a role that is on another machine."""
    raise LocalProtocolError("the model of another role is not here")


def labels_to_bytes(labels: Tensor) -> bytes:
    """Labels as they travel: float64, whatever the precision of the run."""
    return labels.numpy().astype("<f8").tobytes()


def labels_from_bytes(data: bytes | memoryview) -> Tensor:
    """The labels that `labels_to_bytes` made these bytes of."""
    return torch.from_numpy(np.frombuffer(data, dtype="<f8").astype(np.float64))
