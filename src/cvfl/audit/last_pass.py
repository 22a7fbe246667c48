"""What the last pass tells the holder of a private model: embeddings of all rows, or with secure aggregation their sum.

They are sealed for the holder, so here each party encodes them as it does before it seals, and the holder reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cvfl.audit.subject import Subject
from cvfl.audit.views import EMBEDDING, HELD_OUT, HELD_OUT_SUM, SUM, View
from cvfl.federation.builder.machines import Federation


def told_last(subject: Subject) -> Iterator[View]:
    """What the holder sees of each of the others, or of all of them together; nothing where there is no such pass.

    Training rows and held-out ones are apart, as in other views: to audit others' columns of both.
    """
    privacy, names = subject.config.privacy, subject.data.names
    if not privacy.private_model:
        return
    holder = names.index(privacy.labels) + 1
    others = [m for m in range(1, len(names) + 1) if m != holder]
    read = _read(subject.federation)
    if subject.federation.codecs.last_pass_total is None:
        for m in others:
            yield from _views(subject, names[holder - 1], (EMBEDDING, HELD_OUT), (m,), read[m])
    else:
        total = torch.stack([read[m] for m in others]).sum(0)
        yield from _views(subject, names[holder - 1], (SUM, HELD_OUT_SUM), tuple(others), total)


def _views(subject: Subject, holder: str, kinds: tuple[str, str], of: tuple[int, ...], seen: Tensor) -> Iterator[View]:
    """Of training rows, and of held-out ones if there are any."""
    for sees, some in zip(kinds, torch.tensor_split(seen, [subject.federation.plan.rows]), strict=True):
        if len(some):
            yield View((holder,), sees, of, 1, some, some)


def _read(federation: Federation) -> dict[int, Tensor]:
    """The embeddings of all rows of each party, training rows first, as packets say them behind seals and masks."""
    plan, found = federation.plan, dict[int, Tensor]()
    for party in federation.parties:
        codec, h = federation.codecs.last_pass[party.m], party.all_embeddings()
        decoded = codec.decode(codec.encode(h, plan.rounds), plan.rounds, tuple(h.shape), plan.dtype)
        found[party.m] = decoded.cpu().double()
    return found
