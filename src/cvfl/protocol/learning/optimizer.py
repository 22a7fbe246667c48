"""Steps: how large they are at each round, and how a gradient becomes one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol, Self, runtime_checkable

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from cvfl.errors import LocalProtocolError, suggest
from cvfl.types import Section


@runtime_checkable
class Shrinking(Protocol):
    """A part of a model whose parameters may be drawn to zero after a step."""

    def shrink(self, by: float) -> None:
        """Nearer to zero by this much, and not beyond."""


class StepSize(Section):
    """eta at round t0: `fixed`, `sqrt` (eta / sqrt(T)), `inverse` (eta / (t0 + 1)), `cosine` or `milestones`.

    Milestones are rounds from which on the step size is multiplied by `factor` once more. With `cosine` it falls to
    nothing at the last round, along half a wave.
    """

    eta: Annotated[float, Field(gt=0)] | Literal["auto"]
    """The step size, or what the schedule starts from; in one process `"auto"` tries some before the first round."""
    schedule: Literal["fixed", "sqrt", "inverse", "cosine", "milestones"] = "fixed"
    """How the step size changes: never, eta / sqrt(T), eta / (t0 + 1), down to 0 along a cosine, or at milestones."""
    milestones: tuple[int, ...] = ()
    """Rounds from which on the step size is multiplied by `factor` once more."""
    factor: float = Field(default=0.1, gt=0)
    """What the step size is multiplied by at each milestone."""
    warmup: int = Field(default=0, ge=0)
    """Rounds at the beginning in which the step size grows evenly to what the schedule says."""

    @model_validator(mode="after")
    def _has_milestones(self) -> Self:
        if self.schedule == "milestones" and not self.milestones:
            raise ValueError("step_size.schedule = 'milestones' needs step_size.milestones")
        return self

    def at(self, t0: int, R: int, Q: int) -> float:
        """The step size of round t0 in a run of R rounds of Q local iterations."""
        return self._scheduled(t0, R, Q) * min(1.0, (t0 + 1) / (self.warmup + 1))

    def _scheduled(self, t0: int, R: int, Q: int) -> float:
        eta = self.eta
        if eta == "auto":
            raise LocalProtocolError("a step size that is not known yet")
        match self.schedule:
            case "fixed":
                return eta
            case "sqrt":
                return eta / math.sqrt(R * Q)
            case "inverse":
                return eta / (t0 + 1)
            case "cosine":
                return eta * (1 + math.cos(math.pi * t0 / R)) / 2
            case "milestones":
                return eta * self.factor ** sum(t0 >= milestone for milestone in self.milestones)


class Optimizer(Section):
    """How a gradient becomes a step: `sgd` as in the paper, `adam`, `adamw`, or another one of `torch.optim`."""

    name: str = "sgd"
    """How a gradient becomes a step: `sgd`, the paper's, `adam`, `adamw`, or any other name of torch.optim."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum, of those that have it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """How strongly weights are pulled towards zero."""
    clip: float | None = Field(default=None, gt=0)
    """The largest norm of a role's gradient; a longer one is shortened. Not at all if not given."""
    average: float | None = Field(default=None, gt=0, lt=1)
    """Evaluate and keep a mean of the weights over rounds; after each it keeps this share of itself, such as 0.9."""

    sparsity: float = Field(default=0.0, ge=0)
    """How strongly the gates of columns are drawn to zero, in step sizes a step; of models that have gates."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name.lower() not in (known := _optimizers()):
            raise ValueError(f"there is no optimizer {name!r}{suggest(name.lower(), known)}")
        return name.lower()

    def of(self, model: nn.Module) -> Steps:
        """The steps of a model."""
        kind = _optimizers()[self.name]
        options: dict[str, Any] = {"lr": 0.0, "weight_decay": self.weight_decay}
        if "momentum" in inspect.signature(kind).parameters:
            options["momentum"] = self.momentum
        return Steps(self, model, _uncompiled(kind)(list(model.parameters()), **options))


class Steps:
    """Takes the steps of one model: its gradients are set to zero before each, and its gates shrink after it."""

    def __init__(self, how: Optimizer, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._how, self._optimizer, self._parameters = how, optimizer, list(model.parameters())
        self._gates = [part for part in model.modules() if isinstance(part, Shrinking)] if how.sparsity else []

    def take(self, backward: Callable[[], None], eta: float) -> None:
        """A step of size eta along the gradients that `backward` computes, shortened to `clip`."""
        self._optimizer.zero_grad()
        backward()
        if self._how.clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._how.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = eta
        self._optimizer.step()
        for gates in self._gates:
            gates.shrink(self._how.sparsity * eta)

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._optimizer.load_state_dict(dict(state))


def _optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Those of torch that take plain steps at a step size that is given, of parameters of any shape."""
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    kinds.pop("muon", None)  # for matrices alone
    wanted = {"lr", "weight_decay"}
    return {
        name: kind
        for name, kind in kinds.items()
        if issubclass(kind, torch.optim.Optimizer) and wanted <= inspect.signature(kind).parameters.keys()
    }


def _uncompiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same without torch's compiler: methods are wrapped for it, and would load it, for over a second."""
    for method in vars(torch.optim.Optimizer).values():
        within = getattr(method, "__wrapped__", None)
        if within is not None and not hasattr(within, "__dynamo_disable"):
            setattr(within, "__dynamo_disable", within)
    return type(kind.__name__, (kind,), {"step": torch.no_grad()(inspect.unwrap(kind.step))})
