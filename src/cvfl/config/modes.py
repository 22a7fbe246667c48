"""Which modes of a run go together, and the one line that refuses those that do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, suggest
from cvfl.protocol.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.rng import stream
from cvfl.types import SERVER


def label_holder(config: RunConfig, names: Sequence[str]) -> int:
    """The role that holds the labels: the server, which may share them, or the party that `privacy.labels` names."""
    holder = config.privacy.labels
    if not config.privacy.relayed:
        return SERVER
    if holder not in names:
        raise ConfigError(f"privacy.labels: there is no party {holder!r}{suggest(holder, names)}")
    if len(names) == 1:
        raise ConfigError(f"privacy.labels: {holder} is the only party, there is nobody to keep labels from")
    return names.index(holder) + 1


def check_sum(
    config: RunConfig, names: Sequence[str], widths: Sequence[int], compressors: Sequence[str], make: MakeModel
) -> None:
    """Secure aggregation: two parties or more, one grid for all, and a server model for which the sum is enough."""
    if len(names) < 2:
        raise ConfigError("privacy.aggregation = 'secure' needs two parties or more: a sum of one hides nothing")
    for name, spec in zip(names, compressors, strict=True):
        if spec != compressors[0]:
            first = f"{names[0]} has {compressors[0]!r}"
            raise ConfigError(f"secure aggregation needs one grid for all parties: {first}, {name} {spec!r}")
    model, dtype = initialised(make, config.seed, SERVER).eval(), getattr(torch, config.precision)
    phi = [torch.from_numpy(stream(m, "probe").uniform(2 * w)).to(dtype).reshape(2, w) for m, w in enumerate(widths)]
    try:
        with torch.no_grad():
            same = torch.allclose(model(phi), model([torch.stack(phi).sum(0)]), rtol=1e-4, atol=1e-5)
    except (RuntimeError, ValueError, IndexError):
        same = False
    if not same:
        raise ConfigError("privacy.aggregation = 'secure': the server model does not add embeddings up; take 'sum'")
