"""The privacy modes of a configuration: who holds the labels, what is added up, what is released, and keys for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from cvfl.config.schema import PrivacyConfig, RunConfig
from cvfl.errors import ConfigError, suggest
from cvfl.protocol import Codecs
from cvfl.protocol.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.protocol.release import MakeRelease
from cvfl.rng import stream
from cvfl.types import SERVER

if TYPE_CHECKING:  # keys need an extra
    from cvfl.federation.build import Facts
    from cvfl.privacy.keys import PairSecrets, SessionKey


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


def check_sum(config: RunConfig, facts: Facts, make: MakeModel, dtype: torch.dtype) -> None:
    """Secure aggregation: one grid for all, and a server model for which the sum is enough."""
    if len(facts.names) < 2:
        raise ConfigError("privacy.aggregation = 'secure' needs two parties or more: a sum of one hides nothing")
    for name, spec in zip(facts.names, facts.compressors, strict=True):
        if spec != facts.compressors[0]:
            first = f"{facts.names[0]} has {facts.compressors[0]!r}"
            raise ConfigError(f"secure aggregation needs one grid for all parties: {first}, {name} {spec!r}")
    model = initialised(make, config.seed, SERVER).eval()
    phi = [
        torch.from_numpy(stream(m, "probe").uniform(2 * w)).to(dtype).reshape(2, w) for m, w in enumerate(facts.widths)
    ]
    try:
        with torch.no_grad():
            same = torch.allclose(model(phi), model([torch.stack(phi).sum(0)]), rtol=1e-4, atol=1e-5)
    except (RuntimeError, ValueError, IndexError):
        same = False
    if not same:
        raise ConfigError("privacy.aggregation = 'secure': the server model does not add embeddings up; take 'sum'")


def release_of(privacy: PrivacyConfig) -> MakeRelease | None:
    """How noise is added to what leaves a party, if it is."""
    if privacy.noise is None or privacy.clip is None:
        return None
    from cvfl.privacy.noise import noise_for  # noqa: PLC0415  an extra

    return partial(noise_for, privacy.noise * privacy.clip)


def session_key(config: RunConfig) -> SessionKey | None:
    """A new key pair, if parties share secrets in this privacy mode."""
    if not config.privacy.keyed:
        return None
    from cvfl.privacy.keys import SessionKey  # noqa: PLC0415  an extra

    return SessionKey()


def session_secrets(M: int) -> dict[int, PairSecrets]:
    """What each party of this process shares with the others, for one session."""
    from cvfl.privacy.keys import SessionKey  # noqa: PLC0415  an extra

    keys = [SessionKey() for _ in range(M)]
    publics = [key.public for key in keys]
    return {m: key.agree(m, publics) for m, key in enumerate(keys, start=1)}


def masked(codecs: Codecs, m: int, secrets: PairSecrets | None) -> Codecs:
    """The codecs of party m with the masks of its session, if embeddings are masked and there is a session."""
    if codecs.total is not None and secrets is not None:
        from cvfl.privacy.masks import Masks  # noqa: PLC0415  an extra

        codecs.mask(m, Masks(secrets))
    return codecs
