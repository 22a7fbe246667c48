"""What an audit found, as RUN/audit.json keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cvfl.runs.beside import Finite, read_beside, write_beside
from cvfl.types import Section

NAME = "audit.json"
FEW_KNOWN, MANY_KNOWN = "few labels known", "many labels known"
UNSUPERVISED = NORM, DIRECTION, WEIGHTS = ("norm", "direction", "weights")
"""Attacks that need no label at all."""

Stage = Literal["start", "end"]
"""Before the first round, or after the last one."""


class Seen(Section):
    """Who sees what, of which party it may tell, when, and how many messages about a row were put together."""

    observers: tuple[str, ...]
    sees: str
    party: str
    stage: Stage
    looks: int

    @property
    def by_server(self) -> bool:
        """Whether the server sees it."""
        return "server" in self.observers

    @property
    def by_party(self) -> bool:
        """Whether another party sees it."""
        return any(observer != "server" for observer in self.observers)


class FeaturesFound(Seen):
    """Features of `party` from what is seen: R^2 of all its columns and of the one that is recovered best.

    Errors are means over standardised columns on rows that the attacker does not know; those of the mean beside them.
    """

    held_out: bool
    r2: Finite
    best: Finite
    best_column: str
    mse: Finite
    baseline_mse: Finite
    psnr: Finite | None = None
    baseline_psnr: Finite | None = None


class LabelsFound(Seen):
    """Labels from what is seen: ROC AUC, or the squared correlation of a quantity.

    `party` is whose embedding it is, or who gets the message.
    """

    attack: str
    score: Finite


class ToldFound(Section):
    """Labels from what was told of them, together with a party's own columns and all that it sees.

    Scores are ROC AUC, shares are of labels that are guessed right: `chance` is saying the commonest class, `without`
    uses no told label, `joint` all. `bound` is the most that anybody can guess right who knows as much without told
    labels as this attacker does, and `kept` the share of labels that were told as they are. `error` is that of the
    shares by chance, one deviation.
    """

    observer: str
    own: Finite
    without: Finite
    joint: Finite
    chance: Finite
    right_without: Finite
    right_joint: Finite
    kept: Finite
    bound: Finite
    error: Finite

    @property
    def within(self) -> bool:
        """Whether the attack is within the bound, or above it by no more than chance explains."""
        return self.right_joint <= self.bound + 3 * self.error


class Audit(Section):
    """What a curious server or party could learn of one run.

    Roles that are `blind` pass on what they cannot read. `task` is the score of the joint model on test rows. What
    takes no federation is there to compare with: `own` are scores of labels from a party's own columns, `by_labels`
    R^2 of its columns from labels. There are no `bits` where a label holder's answers go up, too.
    """

    compressor: str
    bits: Finite | None
    privacy: str
    algorithm: int
    parties_get: str
    score: str
    rows: int
    known: int
    looks: int
    few: int
    has_labels: tuple[str, ...]
    blind: tuple[str, ...]
    task: Finite | None
    own: dict[str, Finite]
    by_labels: dict[str, Finite]
    features: tuple[FeaturesFound, ...]
    labels: tuple[LabelsFound, ...]
    told: tuple[ToldFound, ...] = ()
    """What told labels add, where their holder randomised them: of classes."""

    @property
    def parties_have_labels(self) -> bool:
        """Whether every party is given the labels."""
        return all(name in self.has_labels for name in self.own)


def write_audit(audit: Audit, run: Path) -> None:
    """Write audit.json into a run directory."""
    write_beside(audit, run / NAME)


def read_audit(run: Path) -> Audit | None:
    """The audit of a run, if there is one."""
    return read_beside(Audit, run / NAME)
