"""What the owner of a party agrees to: the terms of a run in plain words, and the file that says they were approved.

    approved.toml   [[party.bank]]       of training: the hash of what was approved, and when; the newest comes last
                    [party.bank.shown]   what was shown
                    [party.bank.terms]   every term, as roles compare them, and what the party decides alone
                    [[predict.bank]]     the same of predictions, [[serve.bank]] of answers online

A role goes on without asking if its use is one of those that were approved; else it stops, and says what has changed
since the newest. What is shown of predictions and of answers online is in serving/consent.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import tomlkit

from cvfl.compress import build
from cvfl.config.files import read_toml
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, plain, writing
from cvfl.files import write_hidden
from cvfl.privacy.account import epsilon, spent_of_shared
from cvfl.privacy.seen import MODES, TOLD_PRIVATE, mode_of, plainly
from cvfl.types import Section

FILE, HOW = "approved.toml", "--approve"
NOT_PROTECTED = "an embedding is computed from your columns and says something of them; `cvfl audit` measures how much"
_MOST_COLUMNS = 40
_EPSILON = "close to 0 nobody can tell your row from another, from 10 on little is promised"


class Use(StrEnum):
    """What a party's columns are used for, each by an approval of its own: what its sections in the file are called."""

    TRAINING = "party"
    PREDICTION = "predict"
    SERVING = "serve"


ABOUT = {
    Use.TRAINING: "this run",
    Use.PREDICTION: "predictions of new rows",
    Use.SERVING: "answers online",
}
"""What is asked about, in words."""


class Approved(Section):
    """What the owner of a party has approved."""

    sha256: str
    approved: str
    shown: dict[str, str]
    terms: dict[str, str]


@dataclass(frozen=True)
class Consent:
    """What is to be approved: in plain words for people, and every term for the hash."""

    shown: Mapping[str, str]
    terms: Mapping[str, str]
    use: Use = Use.TRAINING

    @property
    def sha256(self) -> str:
        """What names all of it."""
        return hashlib.sha256(json.dumps([dict(self.shown), dict(self.terms)], sort_keys=True).encode()).hexdigest()

    def changed(self, approved: Approved) -> str | None:
        """The first thing that is not as it was approved, in one line; plain words before terms."""
        for now, then in ((self.shown, approved.shown), (self.terms, approved.terms)):
            for key in (*now, *(key for key in then if key not in now)):
                if now.get(key) != then.get(key):
                    return f"{key}: was {_short(then.get(key))}, is {_short(now.get(key))}"
        return None if approved.sha256 == self.sha256 else "the file itself was changed"


@dataclass(frozen=True)
class Approvals:
    """All that the owner of a party has approved for a use of its columns, the newest last."""

    entries: tuple[Approved, ...] = ()
    damaged: bool = False
    """Whether there are others, which cannot be read."""

    @property
    def newest(self) -> Approved | None:
        """What people mean when they say that something has changed."""
        return self.entries[-1] if self.entries else None

    def has(self, consent: Consent) -> bool:
        """Whether this was approved, now or earlier: April's terms stay so when May's are."""
        return any(consent.changed(one) is None for one in self.entries)


def consent_of(
    config: RunConfig, name: str, names: Sequence[str], columns: Sequence[str], terms: Mapping[str, Any]
) -> Consent:
    """What party `name` agrees to by taking part; `terms` are all that it holds others and itself to."""
    shown = {
        "who takes part": f"the server, and {', '.join(names)}",
        "length": _length(config),
        "your people": _people(config, name, len(names)),
        "your columns": columns_line(columns) if columns else f"its share of the columns of {config.data.name}",
        "your label": _label(config, name),
        "what leaves you": leaves_line(config.model_of(name).width, config.compressor_of(name), config.privacy.clip),
        **_seen(config, name, len(names)),
        "noise": _noise(config, name, len(names)),
        "not protected": NOT_PROTECTED,
    }
    return Consent(shown, as_texts(terms))


def as_texts(terms: Mapping[str, Any]) -> dict[str, str]:
    """Terms as they are hashed and kept."""
    return {key: json.dumps(value, sort_keys=True) for key, value in sorted(terms.items())}


def approvals(path: Path, name: str, use: Use = Use.TRAINING) -> Approvals:
    """What was approved for a use of a party's columns."""
    section = read_toml(path).get(use, {}) if path.exists() else {}
    found = section.get(name, []) if isinstance(section, dict) else []
    entries: list[Approved] = []
    damaged = False
    for one in found if isinstance(found, list) else [found]:  # one alone was a table of its own
        try:
            entries.append(Approved.model_validate(one))
        except ValueError:
            damaged = True
    return Approvals(tuple(entries), damaged)


def approve(path: Path, name: str, consent: Consent) -> None:
    """Write that the owner has approved this; everything else that was approved stays, but for what is damaged."""
    earlier = [one for one in approvals(path, name, consent.use).entries if one.sha256 != consent.sha256]
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    if not document:
        document.add(tomlkit.comment("What owners of parties have approved; `cvfl party --approve` writes it."))
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    newest = Approved(sha256=consent.sha256, approved=now, shown=dict(consent.shown), terms=dict(consent.terms))
    sections = tomlkit.aot()
    for one in (*earlier, newest):
        sections.append(tomlkit.item(one.model_dump()))
    if not isinstance(document.get(consent.use), dict):
        document[consent.use] = tomlkit.table(is_super_table=True)
    document[consent.use][name] = sections
    with writing(path):
        write_hidden(path, tomlkit.dumps(document).encode())


def check_consent(path: Path, name: str, consent: Consent, required: bool, how: str = HOW) -> bool:
    """Whether this was approved; refuses a use that was not and has to be, or that is not what was approved.

    `how` is what to do then, where that is not an option of the command.
    """
    approved = approvals(path, name, consent.use)
    if approved.has(consent):
        return True
    if approved.damaged:
        raise ConfigError(f"{path}: [{consent.use}.{name}] is damaged; approve anew with {how}")
    if newest := approved.newest:
        changed = consent.changed(newest)
        raise ConfigError(f"{name}: not as approved on {newest.approved[:10]}: {changed}; see it all with {how}")
    if required:
        raise ConfigError(
            f"{name}: nobody has approved the terms of {ABOUT[consent.use]}, which consent.required asks for; see "
            f"them with {how}"
        )
    return False


def _length(config: RunConfig) -> str:
    length = f"{config.epochs} times through the rows" if config.epochs else f"{config.rounds} rounds"
    return f"at most {length}, {config.batch_size} rows at a time, {config.local_iterations} local steps each"


def columns_line(columns: Sequence[str]) -> str:
    """The columns of a party, in a line; of many, a hash of them all."""
    more = f", and {len(columns) - _MOST_COLUMNS} more" if len(columns) > _MOST_COLUMNS else ""
    digest = hashlib.sha256(json.dumps(list(columns)).encode()).hexdigest()[:8] if more else ""
    return f"{len(columns)}: {', '.join(columns[:_MOST_COLUMNS])}{more}{f' ({digest})' if digest else ''}"


def _people(config: RunConfig, name: str, M: int) -> str:
    """Who learns whom this party holds."""
    if config.data.name is not None:
        return f"those of {config.data.name}, which everybody has"
    if M == 1:
        return "nobody else's are needed"
    if config.data.alignment == "aligned":
        return "row i is the same person at every party; no id is compared"
    if config.data.alignment != "outer":
        return (
            "every other party learns which of its own people all of you hold, the server how many; nobody sees an id"
        )
    if (section := config.party.get(name)) and section.label:
        return "every other party learns which of its own people you hold; you learn who holds which of yours"
    return "the party with the label learns which of its own people you hold, shared by all or not; nobody sees an id"


def _label(config: RunConfig, name: str) -> str:
    """Who gets labels that are this party's."""
    section = config.party.get(name)
    label = section.label if section else None
    if section is None or label is None:
        return "none; another role has it"
    if config.privacy.private_labels:
        return f"{label}: it stays here; gradients that others get tell of it"
    named = "; the server hears what its classes are called" if section.tell_classes else ""
    if config.privacy.label_epsilon is not None:
        told = _randomised(config.privacy.label_epsilon, config.privacy.label_range is not None)
        return f"{label}: randomised {told}; the others get no more of it{named}"
    others = "and the others those of training rows" if config.algorithm == 1 else "and nobody else"
    return f"{label}: the server gets all, {others}{named}"


def _randomised(epsilon: float, quantity: bool) -> str:
    """What is done to labels before anybody gets them."""
    changed = 1 / (1 + math.exp(epsilon))
    of_them = (
        f"noise of some {1 / epsilon:.0%} of its range" if quantity else f"of two classes {changed:.0%} are changed"
    )
    return f"with epsilon {epsilon:g} ({of_them})"


def leaves_line(width: int, compressor: str, clip: float | None) -> str:
    """What leaves a party of a row."""
    clipped = f", together of a norm of at most {clip:g}" if clip else ""
    return f"{width} numbers a row{clipped}, coded by {compressor}; never columns"


def _seen(config: RunConfig, name: str, M: int) -> dict[str, str]:
    """Who sees what of this party, from the table of the threat model."""
    privacy = config.privacy
    sums = privacy.secure or config.folding is True
    told = TOLD_PRIVATE if privacy.private_model else "told"
    seen = MODES[mode_of(privacy.secure, privacy.labels if privacy.label_epsilon is None else told, sums)]
    at_server = dict.fromkeys((*seen.server, *(["Passed"] if privacy.private_model else [])))
    shown = {"the server sees": "; ".join(plainly(one, privacy.secure) for one in at_server)}
    summed = privacy.secure and M > 2  # of two parties, one takes its own part off a sum and has the other's
    if privacy.relayed and name != privacy.labels:
        shown[f"{privacy.labels} sees"] = "; ".join(plainly(one, summed) for one in MODES["secure"].server)
    if privacy.private_model and name != privacy.labels:
        whose = "the sum of all parties' embeddings" if summed else "your embedding"
        shown[f"{privacy.labels} sees"] = f"{whose} of every row once more, when the rounds are over"
    if privacy.relayed:
        others = "nothing of yours" if name != privacy.labels else plainly("Gradient", privacy.secure)
    else:
        others = "; ".join(plainly(one, privacy.secure) for one in seen.party)
    if seen.party == ("Broadcast",) and config.folding is None:
        others += ", or only the sum of all others', where the server's model starts with one"
    return shown | {"every other party sees": others if M > 1 else "nothing: there is none"}


def _noise(config: RunConfig, name: str, M: int) -> str:
    privacy = config.privacy
    if privacy.noise is None:
        return "none: nothing is guaranteed about what embeddings tell"
    times = (config.epochs or config.rounds or 0) + 1
    where = f" in the sum of {M}, of which each adds its part" if privacy.noise_shared else ""
    each = f"noise of {privacy.noise:g} times the norm{where}, delta {privacy.delta:g}"
    try:
        spent = _spent(config, name, M, times)
    except ImportError:
        return f"{each}; the report says what epsilon it comes to"
    unit = "epochs" if config.epochs else "rounds, if a row is in each"
    return f"{each}: for a training row at most epsilon {spent}, at one party and after all {unit}; {_EPSILON}"


def _spent(config: RunConfig, name: str, M: int, times: int) -> str:
    """Epsilon of a row that is released so often."""
    privacy = config.privacy
    assert privacy.noise is not None
    if not privacy.noise_shared:
        return f"{epsilon(privacy.noise, times, privacy.delta):.3g}"
    shared = privacy.noise_of_sum(build(config.compressor_of(name)), M, config.model_of(name).width)
    assert shared is not None
    spent = spent_of_shared([(shared, times)], privacy.delta)
    return (
        f"{spent.against_server:.3g} against the server alone, {spent.one_party:.3g} against any other party, "
        f"{spent.against_others:.3g} against all others together"
    )


def _short(value: str | None) -> str:
    return "not there" if value is None else plain(value, 200)
