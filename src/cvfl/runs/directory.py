"""What a run leaves: its directory with configuration, metrics, summary, parameters and report.

RUN/config.json         the configuration as it was understood
RUN/metrics.jsonl       one line a round; evaluations and measured errors on the rounds that have them
RUN/start.json          the run that it started from, if there is one
RUN/summary.json        the figures that people quote
RUN/parameters/         what each role needs to predict: its weights, its preparation and its bundle, see bundle.py
RUN/report.html         the same for the eye
RUN/analysis.json       how good the models are on test rows, and what each party brings
RUN/status.json         how the run went: its process, who was connected; see status.py
RUN/audit.json          what a curious role could learn, once `cvfl audit` was there
RUN/state/              what a run that is not complete needs to be taken up again
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from cvfl.config.schema import RunConfig
from cvfl.data.sets.catalogue import READERS
from cvfl.data.tables.prepare import Preparation
from cvfl.errors import ConfigError, writing
from cvfl.privacy import Aligned
from cvfl.protocol import Certificate, Measured, Plan
from cvfl.runs.analysis import Analysis, write_analysis
from cvfl.runs.journal import Journal, write_whole
from cvfl.runs.record import Certified, CompressionError, Look, Round, Sent, StartedFrom, Times
from cvfl.runtime import Meter, RoundReport, Traffic
from cvfl.runtime.observed import Spent

PARTS = ("train", "validation", "test")
"""The kinds of rows that an evaluation has metrics of."""
START = "start.json"
PARAMETERS = "parameters"
"""The folder for weights and all else that a prediction needs."""


class RunDirectory:
    """Writes a run directory where it will be, so that a run can be followed, and taken up again after a stop.

    `state/` is there as long as the run is not complete. With `resume` a directory that has one is gone on with.
    """

    def __init__(self, path: Path, resume: bool = False, start: StartedFrom | None = None) -> None:
        self._start = start
        used = path.exists() and (not path.is_dir() or any(path.iterdir()))
        self.path, self.state, self.begun = path, path / "state", used and is_under_way(path)
        if used and not (resume and self.begun):
            hint = "; --resume goes on with it" if self.begun else ""
            raise ConfigError(f"{path} exists already; choose another --out or remove it{hint}")

    def check(self, config: RunConfig) -> None:
        """Refuse a directory that was begun with another configuration, or from another run."""
        if self.begun and (key := differing(self.path, config)):
            raise ConfigError(f"{self.path} was begun with another configuration: {key} differs")
        if self.begun and (self.path / "config.json").exists():
            self._check_start(started_from(self.path))

    def _check_start(self, begun: StartedFrom | None) -> None:
        if begun and (self._start is None or self._start.run != begun.run):
            raise ConfigError(f"{self.path} was begun from run {begun.run}; start from that again: {begun.path}")
        if self._start and begun is None:
            raise ConfigError(f"{self.path} was begun without an earlier run; go on with it without --from")

    def begin(self, config: RunConfig) -> Journal:
        """Make the directory, or check that it is of this configuration; the lines of its metrics.jsonl."""
        self.check(config)
        with writing(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            if self._start:
                write_whole(self.path / START, self._start.model_dump_json(indent=1) + "\n")
            write_whole(self.path / "config.json", json.dumps(config.model_dump(mode="json"), indent=2) + "\n")
            return Journal(self.path / "metrics.jsonl")

    def finish(
        self,
        summary: Mapping[str, Any],
        models: Mapping[str, nn.Module],
        preparations: Mapping[str, Preparation] | None = None,
        analysis: Analysis | None = None,
    ) -> None:
        """Write what a run leaves at its end: each role's model, how columns became numbers, figures and summary."""
        folder = self.path / PARAMETERS
        with writing(self.path):
            folder.mkdir(exist_ok=True)
            for name, model in models.items():
                (folder / f"{name}.safetensors").write_bytes(serialised(model))
            for name, preparation in (preparations or {}).items():
                preparation.save(folder / f"{name}.preparation")
            if analysis:
                write_analysis(analysis, self.path)
            write_whole(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def close(self, completed: bool) -> None:
        """The run is over. One that is not complete and has kept nothing to go on from leaves nothing behind."""
        if completed:
            shutil.rmtree(self.state, ignore_errors=True)
        elif not (self.path / "summary.json").exists() and not any(self.state.rglob("round-*")):
            shutil.rmtree(self.path, ignore_errors=True)


def is_under_way(path: Path) -> bool:
    """Whether this is the directory of a run that is not complete: it still has its state."""
    return (path / "state").is_dir()


def is_being_written(path: Path) -> bool:
    """Whether it is of a run that has its state elsewhere and is over but for what it leaves here."""
    return is_under_way(path) and not any((path / "state").iterdir())


def started_from(path: Path) -> StartedFrom | None:
    """The run from which that of a directory was begun, if from any."""
    try:
        return StartedFrom.model_validate_json((path / START).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise ConfigError(f"{path / START}: damaged; remove {path} and begin again") from None


def differing(path: Path, config: RunConfig) -> str | None:
    """A key in which the configuration of a run that was begun differs; how roles reach each other may."""
    try:
        known = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # it was stopped before it was written
    values = config.model_dump(mode="json")
    keys = sorted((values.keys() | known.keys()) - {"network", "consent"})
    return next((key for key in keys if values.get(key) != known.get(key)), None)


def serialised(model: nn.Module) -> bytes:
    """Parameters and buffers as safetensors bytes."""
    return save({key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()})


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bits of all parameters."""
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def error(found: Measured) -> CompressionError:
    """A measured error as the files spell it."""
    return CompressionError(measured=found.error, expected=found.expected, bound=found.worst)


def certified(found: Certificate) -> Certified:
    """A certificate as the files spell it."""
    return Certified(cosine=found.cosine, ratio=found.ratio, ease=found.ease)


def times(spent: Spent, roles: Sequence[str]) -> Times:
    """Where a role's time went, to the microsecond, by the names of those that it waited for."""
    wait = {roles[m]: round(seconds, 6) for m, seconds in sorted(spent.wait.items())}
    return Times(compute=round(spent.compute, 6), codec=round(spent.codec, 6), wait=wait)


def sent_by_party(counted: Mapping[int, Traffic], names: Sequence[str]) -> dict[str, Sent]:
    """Bytes of every party by name."""
    return {name: Sent.model_validate(counted.get(m, Traffic())) for m, name in enumerate(names, start=1)}


def alignment(aligned: Aligned | None) -> dict[str, Any] | None:
    """How many rows each party had and all share; the bytes that it took to find out are with all others.

    Of an outer alignment also whose rows they are, and how many of them each party holds.
    """
    if aligned is None:
        return None
    rows = dict(zip(aligned.names, aligned.sizes, strict=True))
    earlier = aligned.earlier or None
    found = {"rows": rows, "common": aligned.common, "warning": aligned.warning, "earlier": earlier}
    if not aligned.outer:
        return found
    held = dict(zip(aligned.names, aligned.held, strict=True))
    return found | {"holder": aligned.names[aligned.holder - 1], "held": held}


def split_name(config: RunConfig, parts: bytes) -> str | None:
    """A name for which rows are held out, the same for the same rows; it tells nothing about them.

    Of tables it is a hash of what rows are for, in their order, which is that of a keyed hash of their ids: `parts`. Of
    a data set it is one of what it is split by. Rows as tensors have none.
    """
    if not parts and config.data.name is None:
        return None
    by = {"seed": config.data.split_seed, "test_share": config.data.test_share}
    taken = {key: value for key, value in by.items() if not parts and key in READERS[config.data.name or ""].takes}
    return hashlib.sha256(parts or json.dumps([config.data.name, taken]).encode()).hexdigest()[:16]


def round_line(report: RoundReport, plan: Plan, meter: Meter, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics.jsonl line of a round; bytes are those of all rounds up to this one."""
    counted, roles = meter.through(report.t0), ("server", *names)
    scores: dict[str, Any] = {part: getattr(report.evaluation, part, {}) for part in PARTS}
    embeddings = report.evaluation.embeddings if report.evaluation else {}
    largest = report.evaluation.largest if report.evaluation else {}
    return Round(
        round=report.t0,
        epoch=(report.t0 + 1) / plan.rounds_per_epoch,
        loss=report.loss,
        step_size=plan.eta(report.t0),
        seconds=report.seconds,
        bytes=Sent.model_validate(sum(counted.values(), Traffic())),
        by_party=sent_by_party(counted, names),
        **scores,
        compression_error={roles[m]: error(found) for m, found in sorted(report.measured.items())},
        certificate={roles[m]: certified(found) for m, found in sorted(report.certified.items())},
        time={roles[m]: times(spent, roles) for m, spent in sorted(report.spent.items())},
        embeddings={roles[m]: Look(**look) for m, look in sorted(embeddings.items())},
        largest=largest,
    ).model_dump(by_alias=True, exclude_defaults=True)


def versions() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cvfl": version("cvfl"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
    }
