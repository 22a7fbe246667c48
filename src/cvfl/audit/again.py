"""What a private model tells its holder: the embeddings of all rows once more, or with secure aggregation their sum.

They are sealed for the holder, so here each party encodes them as it does before it seals, and the holder reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cvfl.audit.subject import Subject
from cvfl.audit.views import EMBEDDING, SUM, View
from cvfl.federation.builder.machines import Federation


def told_again(subject: Subject) -> Iterator[View]:
    """What the holder sees of each of the others, or of all of them together; nothing where there is no such model."""
    privacy, names = subject.config.privacy, subject.data.names
    if not privacy.private_model:
        return
    holder = names.index(privacy.labels) + 1
    others = [m for m in range(1, len(names) + 1) if m != holder]
    read = _read(subject.federation)
    if subject.federation.codecs.again_total is None:
        for m in others:
            yield _view(names[holder - 1], EMBEDDING, (m,), read[m])
    else:
        yield _view(names[holder - 1], SUM, tuple(others), torch.stack([read[m] for m in others]).sum(0))


def _view(holder: str, sees: str, of: tuple[int, ...], seen: Tensor) -> View:
    return View((holder,), sees, of, 1, seen, seen)


def _read(federation: Federation) -> dict[int, Tensor]:
    """The embeddings of training rows of each party, as their packets say them behind seals and masks."""
    plan, found = federation.plan, dict[int, Tensor]()
    for party in federation.parties:
        codec, h = federation.codecs.again[party.m], party.all_embeddings()[: plan.rows]
        decoded = codec.decode(codec.encode(h, plan.rounds), plan.rounds, tuple(h.shape), plan.dtype)
        found[party.m] = decoded.cpu().double()
    return found
