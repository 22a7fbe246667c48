"""What roles must have alike before the first round, and what a party tells: its offer, at the end its figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cvfl.config.modes import check_step_size
from cvfl.config.schema import RunConfig
from cvfl.config.sections import AbsenceConfig
from cvfl.config.terms import NOT_TERMS, NOT_TERMS_OF_DATA
from cvfl.federation.start import Start
from cvfl.protocol import Certificate, Decision
from cvfl.runs.actions import ActionLog
from cvfl.runs.directory import versions
from cvfl.wire.control import MAX_CLASS, MOST_CERTIFICATES, MOST_CLASSES, Offer

Line = TypeVar("Line")
FROM = "from"
"""The term that names the run from which all roles start."""
MOST_ERRORS = 10_000


def terms_of(config: RunConfig) -> dict[str, Any]:
    """The keys that all roles must have alike; what a party decides for itself is in its offer."""
    check_step_size(config)
    values = config.model_dump(mode="json", exclude=NOT_TERMS)
    if values["budget"] is None:  # as runs were that did not know of it: they go on, and nothing more is sent
        del values["budget"]
    if not config.quiet_messages:  # likewise
        del values["quiet_messages"]
    if config.class_weight is None:  # likewise
        del values["class_weight"]
    if config.decision == Decision():  # likewise
        del values["decision"]
    if config.absence == AbsenceConfig():  # likewise
        del values["absence"]
    for key in ("label_epsilon", "label_range", "reconstruction_penalty"):
        if values["privacy"][key] is None:  # likewise
            del values["privacy"][key]
    for key in ("private_model", "noise_shared"):
        if not values["privacy"][key]:  # likewise
            del values["privacy"][key]
    for key in ("label_holder", "split_groups"):
        if values["data"][key] is None:  # likewise
            del values["data"][key]
    data = {f"data.{key}": value for key, value in values.pop("data").items() if key not in NOT_TERMS_OF_DATA}
    parties = {"parties": list(config.party)} if config.data.name is None else {}
    return values | data | parties


def terms_from(start: Start | None) -> dict[str, Any]:
    """One more term of a run that starts from an earlier one: which it is."""
    return {} if start is None else {FROM: start.run}


def digest_of(terms: dict[str, Any]) -> str:
    """A short name for these terms."""
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()[:16]


def started_log(folder: Path, role: str, config: RunConfig, digest: str, **use: str) -> ActionLog:
    """The log of a role, which says that it starts: by which version, terms, and signed file of them.

    `use` is what models are used for, and of which run, where a role does not train.
    """
    log, signed = ActionLog(folder), {"signed": config.terms_sha256} if config.terms_sha256 else {}
    log.append("started", role=role, **use, cvfl=versions()["cvfl"], terms=digest, **signed)
    return log


def offer_of(config: RunConfig, name: str, classes: Sequence[str] = (), start: Start | None = None) -> Offer:
    """What a party tells of itself; of labels that leave it what classes are called, if its file says so."""
    section = config.party.get(name)
    holds = section is not None and section.label is not None
    named = section is not None and section.tell_classes and len(classes) <= MOST_CLASSES
    told = holds and named and not config.privacy.relayed
    return Offer(
        width=config.model_of(name).width,
        compressor=config.compressor_of(name),
        label=holds,
        classes=[one[:MAX_CLASS] for one in classes] if told else [],
        new=start is not None and name not in start.parties,
    )


def told_errors(errors: Mapping[int, tuple[float, float, float]]) -> list[tuple[int, float, float, float]]:
    """The compression errors that a party tells of its rounds: of very many every second one, or third, and so on."""
    return _thinned([(t0, *error) for t0, error in sorted(errors.items())], MOST_ERRORS)


def told_certificates(certificates: Mapping[int, Certificate]) -> list[tuple[int, float, float, float]]:
    """The same of certificates, by round."""
    told = [(t0, one.cosine, one.ratio, one.ease) for t0, one in sorted(certificates.items())]
    return _thinned(told, MOST_CERTIFICATES)


def _thinned(lines: list[Line], most: int) -> list[Line]:
    """At most so many of the lines, evenly spaced, and the last one always."""
    every = max(1, -(-len(lines) // most))
    return lines[::-1][::every][::-1]
