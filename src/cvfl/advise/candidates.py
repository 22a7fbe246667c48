"""What `cvfl plan` chooses from: compressors and local iterations, and the keys of a configuration that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cvfl.compress import Feedback, build
from cvfl.config.schema import RunConfig

LOCAL_ITERATIONS = (1, 5, 10, 25)


@dataclass(frozen=True)
class Candidate:
    """A compressor for all parties."""

    name: str
    compressor: str

    @property
    def falling(self) -> bool:
        """Whether its messages shrink from epoch to epoch: those that send differences do."""
        return isinstance(build(self.compressor), Feedback)


NONE = Candidate("none", "identity")
AUTO = Candidate("auto", "auto")
CANDIDATES = (
    NONE,
    AUTO,
    *(Candidate(f"scalar b={b}", f"scalar:bits={b}") for b in (2, 3, 4)),
    *(Candidate(f"lattice b={b}", f"lattice:bits={b}") for b in (2, 3, 4)),
    *(Candidate(f"top-k b={b}", f"topk:bits={b}") for b in (2, 3, 4)),
)


def candidate(spec: str) -> Candidate:
    """A compressor that somebody names; a spec that says nothing is an error here and not after a while."""
    build(spec)
    return NONE if spec == NONE.compressor else Candidate(spec, spec)


@dataclass(frozen=True)
class Setting:
    """A candidate with its local iterations."""

    candidate: Candidate
    Q: int

    def keys(self, config: RunConfig) -> dict[str, Any]:
        """The keys that make a configuration this setting; with `none` nothing at all is compressed."""
        keys: dict[str, Any] = {"compressor": self.candidate.compressor, "local_iterations": self.Q}
        if config.budget is not None and not build(self.candidate.compressor).follows:
            keys["budget"] = None
        if self.candidate == NONE:
            replies = dict.fromkeys(("server_compressor", "gradient_compressor", "partial_compressor"), "identity")
            return keys | replies | {"folding": False}
        if self.candidate == AUTO:
            return keys | {"server_compressor": "auto"}
        if config.server_compressor in ("identity", "auto"):
            return keys | {"server_compressor": "scalar:bits=8"}
        return keys

    def of(self, config: RunConfig, rounds: int) -> RunConfig:
        """A run of this setting, at all parties, without a budget: how much it needs is what is asked."""
        party = {name: section.model_copy(update={"compressor": None}) for name, section in config.party.items()}
        length = {"rounds": rounds, "epochs": None, "budget": None}
        return config.model_copy(update=self.keys(config) | {"party": party} | length)


def settings(config: RunConfig, candidates: Sequence[Candidate], local: Sequence[int]) -> list[Setting]:
    """All that may be tried: `none` with the configured Q, with every other one, and then the compressors likewise."""
    Q0 = config.local_iterations
    tried = [Q0] if fixed_Q(config) else [Q0, *sorted(set(local) - {Q0})]
    compressors = dict.fromkeys(one for one in candidates if one != NONE)
    return [*(Setting(NONE, Q) for Q in tried), *(Setting(one, Q) for Q in tried for one in compressors)]


def fixed_Q(config: RunConfig) -> str:
    """Why the configured Q has to stay; empty if it may change."""
    if config.algorithm == 2:
        return "algorithm = 2"
    if config.step_size.schedule != "fixed":  # another Q needs another number of rounds, and that another schedule
        return f"step_size.schedule = {config.step_size.schedule!r} goes by rounds"
    return ""
