"""What an audit found, as RUN/audit.json keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from cvfl.errors import DataError, writing
from cvfl.runs.journal import write_whole
from cvfl.types import Section

NAME = "audit.json"
FEW_KNOWN, MANY_KNOWN = "few labels known", "many labels known"
UNSUPERVISED = NORM, DIRECTION, WEIGHTS = ("norm", "direction", "weights")
"""Attacks that need no label at all."""

Stage = Literal["start", "end"]
"""Before the first round, or after the last one."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


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

    @property
    def parties_have_labels(self) -> bool:
        """Whether every party is given the labels."""
        return all(name in self.has_labels for name in self.own)


def write_audit(audit: Audit, run: Path) -> None:
    """Write audit.json into a run directory, whole or not at all."""
    with writing(run / NAME):
        write_whole(run / NAME, audit.model_dump_json() + "\n")


def read_audit(run: Path) -> Audit | None:
    """The audit of a run, if there is one."""
    path = run / NAME
    try:
        return Audit.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
