"""The joint attack on labels that were told randomised: the told label of a row, with own columns and all that is seen.

Who has columns may know a label without any federation. What told labels add to that is bounded row by row: if class y
of a row has probability p_y by all that an attacker knows without them, and the row is told as t with probability
P(t | y), it is right in no more than sum_t max_y p_y P(t | y) of such rows. Of two classes that is the largest of p,
1 - p and 1 - rho. It holds for any number of rounds, since all that is sent follows from columns and told labels.

An attacker may be less sure than its guesses deserve, and a bound by its own p would then be too low. So for the bound,
and not for the attack, they are calibrated by the true labels of the rows on which it is tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import one_hot

from cvfl.audit.attacks import guess_labels, score
from cvfl.audit.subject import Subject
from cvfl.audit.views import EVERY_PARTY, View
from cvfl.protocol import Loss
from cvfl.protocol.learning.randomised import Randomised
from cvfl.runs.audit import ToldFound

COLUMNS = 1024
_LEAST, _LOOSE = 1e-9, 100.0
SERVER = "server"


def joint_attacks(
    subject: Subject, views: Sequence[View], order_of: Callable[[int, int], Tensor]
) -> Iterator[ToldFound]:
    """One for the server and each party but the holder of the labels; `order_of` puts the known rows first."""
    noise = subject.config.privacy.randomised
    if noise is None or subject.loss is Loss.SQUARED:
        return
    order = order_of(len(subject.truth), subject.config.seed)
    for m, name in enumerate((SERVER, *subject.data.names)):
        if name != subject.config.privacy.labels:
            own = subject.columns(m, COLUMNS).read(order) if m else None
            seen = [view.last[order] for view in views if _sees(view, name)]
            yield _attack(name, noise, own, seen, subject.truth[order], subject.data.train_labels[order], subject.loss)


def _sees(view: View, name: str) -> bool:
    others = EVERY_PARTY in view.observers and name != SERVER
    return not view.held_out and (name in view.observers or others)


def _attack(
    name: str, noise: Randomised, own: Tensor | None, seen: Sequence[Tensor], y: Tensor, told: Tensor, loss: Loss
) -> ToldFound:
    classes, known = max(2, int(max(y.max(), told.max())) + 1), len(y) // 2
    said = one_hot(told.long(), classes).double()
    nothing = torch.zeros(len(y), 1, dtype=torch.float64)
    before = torch.cat([nothing if own is None else own, *seen], 1)
    alone = guess_labels(nothing if own is None else own, y, known, classes)
    without = guess_labels(before, y, known, classes)
    # Told labels are independent of columns given the true one, so nothing is lost by Bayes' rule.
    joint = without * (noise.other(classes) + noise.tells(classes) * said[known:])
    unknown = y[known:].long()
    bound = float(_best(noise, calibrated(without, unknown)).mean())
    return ToldFound(
        observer=name,
        own=score(loss, unknown, _ranked(alone)),
        without=score(loss, unknown, _ranked(without)),
        joint=score(loss, unknown, _ranked(joint)),
        chance=float(torch.bincount(unknown).max()) / len(unknown),
        right_without=_right(without, unknown),
        right_joint=_right(joint, unknown),
        kept=noise.keep(classes),
        bound=bound,
        error=math.sqrt(bound * (1 - bound) / len(unknown)),
    )


def calibrated(p: Tensor, y: Tensor) -> Tensor:
    """Probabilities as sure as they deserve to be, by what the rows are: a logistic regression on their logarithms."""
    told, found = p.clamp_min(_LEAST).log(), torch.unique(y)
    if len(found) < 2:
        return one_hot(y, p.shape[1]).to(p.dtype)
    outputs = torch.zeros_like(p)
    # Odds against the first class are enough, and all that there is of two.
    odds = told[:, 1:] - told[:, :1]
    x = (odds / odds.std(0).clamp_min(_LEAST)).numpy()
    outputs[:, found] = torch.from_numpy(LogisticRegression(C=_LOOSE, max_iter=1000).fit(x, y.numpy()).predict_proba(x))
    return outputs


def _best(noise: Randomised, p: Tensor) -> Tensor:
    """For every row how often the best guess is right once it is told: the sum over t of max over y of p_y P(t | y)."""
    classes = p.shape[1]
    eye = torch.eye(classes, dtype=p.dtype)
    told = noise.other(classes) + noise.tells(classes) * eye  # by y and t
    return (p[:, :, None] * told).amax(1).sum(1)


def _ranked(p: Tensor) -> Tensor:
    return p / p.sum(1, keepdim=True).clamp_min(1e-300)


def _right(p: Tensor, y: Tensor) -> float:
    return float((p.argmax(1) == y).double().mean())
