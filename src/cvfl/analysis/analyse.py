"""The analysis of a run, from what the role that scores has at its end: models, labels, embeddings of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cvfl.analysis.many import many_classes
from cvfl.analysis.parties import what_parties_bring
from cvfl.analysis.quantity import quantity
from cvfl.analysis.two import two_classes
from cvfl.protocol import Loss, Plan, Server, Units
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.outputs import outputs_of
from cvfl.runs.analysis import FEW, Analysis, Chosen, Parties
from cvfl.runtime import one_thread_a_role


def analyse(server: Server, names: Sequence[str]) -> Analysis | None:
    """Of a run that is over; with too few test rows, or labels that are all the same, there is nothing to say."""
    labels, plan = server.labels, server.plan
    if server.held_out is None or plan.test_rows < FEW or len(torch.unique(labels.test)) < 2:
        return None
    with one_thread_a_role(), torch.no_grad():
        test = _outputs(server)[plan.validation_rows :]
        found = _figures(plan, decided_of(server), test, labels.test, labels.units)
        return found.model_copy(update={"parties": _parties(server, names)})


def decided_of(server: Server) -> Decided:
    """How outputs of the models that a run leaves become probabilities and decisions: by its validation rows."""
    plan, labels = server.plan, server.labels
    if server.held_out is None:  # it was stopped, or has no such rows
        return plan.decision.fit(plan.loss, torch.empty(0), torch.empty(0))
    with one_thread_a_role(), torch.no_grad():
        return plan.decision.fit(
            plan.loss, _outputs(server)[: plan.validation_rows], labels.validation, plan.randomised
        )


def _outputs(server: Server) -> torch.Tensor:
    """Of all held-out rows."""
    assert server.held_out is not None
    return outputs_of(server.models["server"].eval(), server.held_out)


def _figures(plan: Plan, decided: Decided, outputs: torch.Tensor, labels: torch.Tensor, units: Units) -> Analysis:
    y, seed = labels.cpu().numpy(), plan.seed
    start = Analysis(
        loss=plan.loss, validation=plan.validation_rows, test=plan.test_rows, decision=_chosen(plan, decided)
    )
    match plan.loss:
        case Loss.BINARY if min((y > 0).sum(), (y <= 0).sum()) < FEW:
            return start
        case Loss.BINARY:
            p = decided.probabilities(plan.loss, outputs)
            return start.model_copy(update={"two": two_classes(y, p, decided.threshold, seed)})
        case Loss.MULTICLASS:
            return start.model_copy(update={"many": many_classes(y, decided.probabilities(plan.loss, outputs), seed)})
        case Loss.SQUARED:
            own, predicted = (
                units.offset + units.scale * values.double().reshape(-1).cpu().numpy() for values in (labels, outputs)
            )
            return start.model_copy(update={"quantity": quantity(own, predicted, seed)})


def _chosen(plan: Plan, decided: Decided) -> Chosen:
    rule = plan.decision.threshold
    return Chosen(
        rule="given" if isinstance(rule, float) else rule if decided.fitted else "default",
        threshold=decided.threshold if plan.loss is Loss.BINARY else None,
        calibration=decided.calibration,
        temperature=decided.temperature,
        fitted=decided.fitted,
    )


def _parties(server: Server, names: Sequence[str]) -> Parties | None:
    """What each party brings; of masked embeddings the sum alone is known, and nobody can tell."""
    phi, plan, labels = server.held_out, server.plan, server.labels
    if phi is None or len(phi) != plan.M or plan.M < 2:
        return None
    test = [h[plan.validation_rows :] for h in phi]
    return what_parties_bring(names, plan.loss, server.models["server"], test, labels.test, labels.units, plan.seed)
