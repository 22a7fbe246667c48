"""The plan that all roles share, from the configuration and the facts; keys that do not fit the data are refused."""

from __future__ import annotations

import torch

from cvfl.config.modes import private_holder
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, suggest
from cvfl.federation.agreement.facts import Facts
from cvfl.protocol import Loss, Plan
from cvfl.protocol.learning.metrics import METRICS, headline
from cvfl.protocol.learning.objective import ClassWeight
from cvfl.protocol.learning.randomised import Randomised


def plan_of(config: RunConfig, facts: Facts, loss: Loss, dtype: torch.dtype, sum_width: int, partly: bool) -> Plan:
    """The plan for these facts, of this loss; sums over the others are so wide, `partly` as for the recipe."""
    rows, validation_rows, test_rows = facts.rows
    if config.batch_size > rows:
        raise ConfigError(f"batch_size: {config.batch_size} is more than the {rows} training rows")
    epoch = -(-rows // config.batch_size)
    return Plan(
        seed=config.seed,
        rounds=config.rounds or (config.epochs or 1) * epoch,
        Q=config.local_iterations,
        batch_size=config.batch_size,
        rows=rows,
        test_rows=test_rows,
        widths=facts.widths,
        loss=loss,
        step_size=config.step_size,
        optimizer=config.optimizer,
        algorithm=config.algorithm,
        sum_width=sum_width,
        secure=config.privacy.secure,
        patience=config.stopping.patience or 0,
        improving=_improving(config.stopping.metric, loss),
        class_weight=_class_weight(config.class_weight, loss, facts.outputs),
        decision=config.decision,
        cached=config.cached,
        evaluate_every=config.evaluate_every or epoch,
        validation_rows=validation_rows,
        dtype=dtype,
        device=_device(config.device),
        clip=config.privacy.clip,
        budget=config.budget,
        quiet=config.quiet,
        absence=config.absence.rate,
        partial=partly,
        reconstruction_penalty=config.privacy.reconstruction_penalty,
        randomised=_randomised(config, loss),
        private_holder=private_holder(config, facts.names),
    )


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device: {name!r} is not available here") from None


def _randomised(config: RunConfig, loss: Loss) -> Randomised | None:
    """How labels of this kind were randomised, if they were."""
    noise = config.privacy.randomised
    if noise is not None and (noise.range is None) == (loss is Loss.SQUARED):
        raise ConfigError(
            "privacy.label_range: give the limits of the label, [low, high], which is a quantity"
            if loss is Loss.SQUARED
            else "privacy.label_range is for a label that is a quantity; of classes all that there are may be told"
        )
    return noise


def _class_weight(weights: ClassWeight | None, loss: Loss, outputs: int) -> ClassWeight | None:
    """Weights that fit the classes that there are."""
    classes = 2 if loss is Loss.BINARY else outputs
    if weights is not None and loss is Loss.SQUARED:
        raise ConfigError("class_weight is for classes; the label is a quantity")
    if isinstance(weights, tuple) and len(weights) != classes:
        raise ConfigError(f"class_weight has {len(weights)} weights for {classes} classes")
    return weights


def _improving(metric: str | None, loss: Loss) -> str:
    """The metric that a run is stopped by."""
    if metric is not None and metric not in METRICS[loss]:
        raise ConfigError(f"stopping.metric: there is no {metric!r} here{suggest(metric, METRICS[loss])}")
    return metric or headline(loss)
