"""What a run leaves: its directory with configuration, metrics, summary, parameters and report.

    RUN/config.json         the configuration as it was understood
    RUN/metrics.jsonl       one line a round; evaluations and measured errors on the rounds that have them
    RUN/summary.json        the figures that people quote
    RUN/parameters/         final parameters, one .safetensors a role; how a party's columns became numbers
    RUN/report.html         the same for the eye
    RUN/audit.json          what a curious role could learn, once `cvfl audit` was there

It is written under a temporary name beside its place and moved there when complete, so a run that fails
leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from cvfl.data.tables.prepare import Preparation
from cvfl.errors import ConfigError, writing
from cvfl.privacy import Aligned
from cvfl.protocol import Measured, Plan
from cvfl.runs.record import CompressionError, Round, Sent, SentInAll
from cvfl.runtime import Meter, RoundReport, Traffic

PARTS = ("train", "validation", "test")
"""The kinds of rows that an evaluation has metrics of."""


class RunDirectory:
    """Writes a run directory; as a context manager it removes what an error leaves half-written."""

    def __init__(self, path: Path) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists already; choose another --out or remove it")
        self.path = path
        self.partial = path.with_name(f".{path.name}.partial")
        self._lines: Any = None

    def __enter__(self) -> RunDirectory:
        shutil.rmtree(self.partial, ignore_errors=True)
        with writing(self.path):
            self.partial.mkdir(parents=True)
        self._lines = (self.partial / "metrics.jsonl").open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        if kind is not None:
            shutil.rmtree(self.partial, ignore_errors=True)
            return
        if self.path.exists():
            self.path.rmdir()
        self.partial.rename(self.path)

    def line(self, values: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; a reader sees it at once."""
        print(json.dumps(values), file=self._lines, flush=True)

    def json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        (self.partial / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    def parameters(self, models: Mapping[str, nn.Module]) -> None:
        """Write each role's final model."""
        folder = self.partial / "parameters"
        folder.mkdir()
        for name, model in models.items():
            (folder / f"{name}.safetensors").write_bytes(serialised(model))

    def preparations(self, preparations: Mapping[str, Preparation]) -> None:
        """Write how each party's columns became numbers, beside its model."""
        for name, preparation in preparations.items():
            preparation.save(self.partial / "parameters" / f"{name}.preparation")


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


def sent_by_party(counted: Mapping[int, Traffic], names: Sequence[str]) -> dict[str, Sent]:
    """Bytes of every party by name."""
    return {name: Sent.of(counted.get(m, Traffic())) for m, name in enumerate(names, start=1)}


def alignment(aligned: Aligned | None, sent: Meter) -> dict[str, Any] | None:
    """How many rows each party had and all share, and the bytes that it took to find out."""
    if aligned is None:
        return None
    counted = SentInAll(**asdict(sent.total()), by_party=sent_by_party(sent.parties, aligned.names))
    return {
        "rows": dict(zip(aligned.names, aligned.sizes, strict=True)),
        "common": aligned.common,
        "warning": aligned.warning,
        "bytes": counted.model_dump(exclude_unset=True),
    }


def round_line(report: RoundReport, plan: Plan, meter: Meter, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics.jsonl line of a round; bytes are those of all rounds up to this one."""
    counted, roles = meter.through(report.t0), ("server", *names)
    scores: dict[str, Any] = {part: getattr(report.evaluation, part, {}) for part in PARTS}
    return Round(
        round=report.t0,
        epoch=(report.t0 + 1) / plan.rounds_per_epoch,
        loss=report.loss,
        step_size=plan.eta(report.t0),
        seconds=report.seconds,
        bytes=Sent.of(sum(counted.values(), Traffic())),
        by_party=sent_by_party(counted, names),
        **scores,
        compression_error={roles[m]: error(found) for m, found in sorted(report.measured.items())},
    ).model_dump(by_alias=True, exclude_defaults=True)


def versions() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cvfl": version("cvfl"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
    }
