"""What each column of a party brings to the headline metric: its values are dealt out anew among the test rows.

The party's embedding is computed from the dealt columns as they are, without a compressor, and takes the place of the
one that it sent; those of the others stay as they were decoded. Nothing is sent for it: it is done where the party's
columns, the labels and the server model are in one place. A party that has the labels of training rows, and keeps what
it was told of them, finds the same for those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cvfl.analysis.parties import headline_of
from cvfl.analysis.resample import between, estimates
from cvfl.protocol import Party, Server, Units
from cvfl.protocol.learning.metrics import BETTER_LOW, headline
from cvfl.protocol.release import Clipped
from cvfl.rng import stream
from cvfl.runs.analysis import Columns, OneColumn

COLUMNS = "columns"
TIMES = 5
MOST_ROWS, LEAST_ROWS, MOST_VALUES = 10_000, 1_000, 2_000_000
"""Test rows that it is computed of, the first in an order that says nothing of them: fewer of many columns."""
Score = Callable[[Tensor], float]


def what_columns_bring(server: Server, party: Party, names: Sequence[str]) -> Columns | None:
    """Each column of a party, the most telling first; `names` has for every prepared column the one it comes from."""
    phi, plan = server.held_out, server.plan
    x = party.holding.held_out[-1]
    if phi is None or len(phi) != plan.M or not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != len(names):
        return None
    rows = _most(len(x), names)
    return _columns(party, _score(server, party, rows), x[:rows], names)


def what_own_columns_bring(party: Party, names: Sequence[str]) -> Columns | None:
    """The same of training rows, by what this party was last told of the others and of the server model."""
    plan, labels = party.plan, party.holding.labels
    rows, held = plan.sent(party.t0 - 1).long(), party.holding.present
    rows = rows if held is None else rows[held[rows]]
    rows = rows[: _most(len(rows), names)]
    outputs, x = party.exchange.told_of(rows, party.t0 - 1), party.holding.train[rows]
    if outputs is None or labels is None or x.ndim != 2 or x.shape[1] != len(names):
        return None
    embed, y = _at_rest(party), labels[rows]

    def score(dealt: Tensor) -> float:
        with torch.no_grad():
            return headline_of(plan.loss, outputs(embed(dealt.to(plan.device))), y, Units())

    return _columns(party, score, x, names).model_copy(update={"rows": "training"})


def _most(rows: int, names: Sequence[str]) -> int:
    return min(rows, MOST_ROWS, max(LEAST_ROWS, MOST_VALUES // len(names)))


def _columns(party: Party, score: Score, x: Tensor, names: Sequence[str]) -> Columns:
    metric, together = headline(party.plan.loss), score(x)
    found = [_dealt(score, x, name, names, (party.plan.seed, party.m)) for name in dict.fromkeys(names)]
    sign = 1 if metric in BETTER_LOW else -1
    each = sorted(found, key=lambda one: sign * (together - one.without.value))
    return Columns(party=party.holding.name, metric=metric, together=together, each=tuple(each))


def _at_rest(party: Party) -> nn.Module:
    """The party's model as it is kept."""
    own = party.models[party.holding.name].eval()
    return own if party.plan.clip is None else Clipped(own, party.plan.clip)


def _score(server: Server, party: Party, count: int) -> Score:
    """The metric by the columns of one party of the first test rows, with what the others sent of these."""
    plan, labels, model = server.plan, server.labels, server.models["server"].eval()
    embed = _at_rest(party)
    held = server.present.held_out[party.m - 1] if server.present else None
    rows = slice(plan.validation_rows, plan.validation_rows + count)
    phi, y = [h[rows] for h in server.held_out or ()], labels.test[:count]

    def score(x: Tensor) -> float:
        with torch.no_grad():
            h = embed(x.to(plan.device))
            h = h if held is None else torch.where(held[rows, None], h, phi[party.m - 1])
            outputs = model([*phi[: party.m - 1], h, *phi[party.m :]])
            return headline_of(plan.loss, outputs, y, labels.units)

    return score


def _dealt(score: Score, x: Tensor, name: str, names: Sequence[str], address: tuple[int, int]) -> OneColumn:
    """The metric with a column's values in other orders; what was made of one column goes together."""
    at = torch.tensor([i for i, one in enumerate(names) if one == name], device=x.device)
    seed, m = address
    scores = []
    for k in range(TIMES):
        order = torch.from_numpy(stream(seed, COLUMNS, m, k).permutation(len(x))).to(x.device)
        dealt = x.clone()
        dealt[:, at] = x[order][:, at]
        scores.append([score(dealt)])
    found = np.array(scores)
    (without,) = estimates(found.mean(0), *between(found))
    return OneColumn(column=name, without=without)
