"""How far a run is after a round; as values for JSON, which `--log-json` prints and a FLARE job leaves, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cvfl.protocol import Evaluated
from cvfl.runtime import RoundReport, Traffic


@dataclass(frozen=True)
class Progress:
    """What a display may show after each round."""

    report: RoundReport
    rounds: int
    sent: Traffic
    metric: str
    note: str = ""
    """A line for people, such as that training diverges."""


def progress_values(progress: Progress) -> dict[str, Any]:
    """Loss, bytes and, when there is one, the evaluation."""
    report = progress.report
    values: dict[str, Any] = {"round": report.t0, "rounds": progress.rounds, "loss": report.loss}
    values |= {"metric": progress.metric, "seconds": report.seconds, **asdict(progress.sent)}
    if report.evaluation:
        values |= {"train": report.evaluation.train, "test": report.evaluation.test}
        values |= {"validation": report.evaluation.validation} if report.evaluation.validation else {}
    return values | ({"note": progress.note} if progress.note else {})


def progress_of(values: Mapping[str, Any]) -> Progress:
    """The progress that `progress_values` told; compression errors are not told."""
    metrics = {part: values.get(part, {}) for part in ("train", "validation", "test")}
    evaluated = Evaluated(values["round"], **metrics) if metrics["train"] else None
    report = RoundReport(values["round"], values["loss"], values["seconds"], evaluated)
    sent = Traffic(**{part.name: values[part.name] for part in fields(Traffic)})
    return Progress(report, values["rounds"], sent, values["metric"], values.get("note", ""))
