"""What only the holder of randomised labels can say at the end of a run: how good its model is by the true ones.

    server ──outputs of held-out rows, once, 16 bits each──▶ holder: metrics by the true labels of those rows

The outputs come from columns and told labels alone, so they say nothing of other labels; what is found with them stays
with the holder.
"""

from __future__ import annotations

import base64
import binascii
import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cvfl.config.schema import RunConfig
from cvfl.errors import DecodeError
from cvfl.federation.told_labels.randomise import Held
from cvfl.protocol import Plan, Server
from cvfl.protocol.learning.metrics import evaluate
from cvfl.protocol.outputs import outputs_of
from cvfl.runs.record import HolderScores, LabelAccount
from cvfl.runtime import one_thread_a_role
from cvfl.wire.control import MOST_OUTPUTS

_FLOAT = "<f2"


def told_outputs(server: Server) -> str:
    """The outputs of held-out rows as their holder is told them: of test rows first, as many as a message has room for.

    Nothing, if the run was not evaluated at its end.
    """
    if server.held_out is None or not server.plan.held_out_rows:
        return ""
    with one_thread_a_role(), torch.no_grad():
        found = outputs_of(server.models["server"].eval(), server.held_out)
    validation, test = torch.split(found, [server.plan.validation_rows, server.plan.test_rows])
    whole = torch.cat([test, validation]).reshape(len(found), -1)
    some = whole[: MOST_OUTPUTS // whole.shape[1]].cpu().double().numpy()
    limit = float(np.finfo(_FLOAT).max)
    return base64.b64encode(np.clip(some, -limit, limit).astype(_FLOAT).tobytes()).decode()


def scores_of(plan: Plan, outputs: int, told: str, held: Held) -> HolderScores:
    """Metrics by the true labels; the threshold and probabilities are those of the true labels of validation rows."""
    validation, test = _read(plan, outputs, told)
    own = held.labels
    decided = plan.decision.fit(plan.loss, validation, own.validation[: len(validation)])
    found = {
        part: evaluate(plan.loss, z, y[: len(z)], decided, own.units) if len(z) else {}
        for part, z, y in (("validation", validation, own.validation), ("test", test, own.test))
    }
    return HolderScores(**found, threshold=decided.threshold)


def _read(plan: Plan, outputs: int, told: str) -> tuple[Tensor, Tensor]:
    """The outputs of validation and of test rows."""
    rows = min(plan.held_out_rows, MOST_OUTPUTS // outputs)
    try:
        values = np.frombuffer(base64.b64decode(told, validate=True), dtype=_FLOAT)
    except (binascii.Error, ValueError):
        raise DecodeError("outputs of held-out rows that are malformed") from None
    if len(values) != rows * outputs or not np.isfinite(values).all():
        raise DecodeError(f"{len(values)} outputs for {rows} held-out rows, or some that are no numbers")
    z = torch.from_numpy(values.astype(np.float32)).reshape(rows, outputs)
    test, validation = torch.tensor_split(z, [plan.test_rows])
    return validation, test


def check_outputs(plan: Plan, outputs: int, told: str) -> None:
    """Refuse outputs that are not of these rows; none may be told."""
    if told:
        _read(plan, outputs, told)


def account_of(
    config: RunConfig,
    plan: Plan,
    outputs: int,
    held: Held | None = None,
    told: str = "",
    private: HolderScores | None = None,
) -> LabelAccount:
    """What is guaranteed for labels; the ledger and the metrics are added by their holder."""
    noise, privacy = plan.randomised, config.privacy
    assert noise is not None
    classes = 0 if noise.range else max(2, outputs)
    epsilons = held.epsilons if held else ()
    return LabelAccount(
        holder=privacy.labels,
        epsilon=noise.epsilon,
        classes=classes,
        kept=noise.keep(classes) if classes else None,
        range=list(noise.range) if noise.range else None,
        rows=plan.rows + plan.held_out_rows,
        effective=noise.effective(plan.rows) if classes == 2 else None,
        released=list(epsilons),
        drawn="secret" if config.data.name is None else "seed",
        scores=scores_of(plan, outputs, told, held) if held and told else None,
        private=private,
    )


def by_true_labels(server: Server, held: Held | None) -> Server:
    """The server as its holder can look at it: with the labels that it alone has."""
    if held is None:
        return server
    seen = copy.copy(server)
    seen.labels, seen.plan = held.labels.to(server.plan.device), replace(server.plan, randomised=None)
    return seen
