"""A run as a notebook uses it: attributes instead of nested dictionaries, a table of its rounds, a report."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor, nn

from cvfl.api.frames import write_frames
from cvfl.protocol.learning.metrics import BETTER_LOW
from cvfl.report.format import MB, shares
from cvfl.runs.analysis import Analysis
from cvfl.runs.audit import Audit, write_audit
from cvfl.runs.journal import read_lines
from cvfl.runs.read import read_run
from cvfl.runs.record import CompressionError, LabelAccount, Sent, StartedFrom
from cvfl.scratch import Scratch


class Scores(Mapping[str, float]):
    """Metrics by name, also as attributes: ``scores.roc_auc`` is ``scores["roc_auc"]``."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __getattr__(self, name: str) -> float:
        try:
            return self.__dict__["_values"][name]  # type: ignore[no-any-return]
        except KeyError:
            known = ", ".join(self.__dict__.get("_values", {})) or "none"
            raise AttributeError(f"there is no metric {name!r} here; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in self._values.items()) or "none"


@dataclass(frozen=True)
class Metrics:
    """Metrics of the last evaluation: on training rows as last seen, on validation rows and on test rows."""

    train: Scores
    validation: Scores
    test: Scores


@dataclass(frozen=True)
class Bytes:
    """Bytes of frames, counted where they leave: of training up to the server and down, and what else they were for.

    `setup` is agreeing on the run and ending it. Runs of versions before 0.4 have None for it and for the alignment.
    """

    up: int
    down: int
    evaluation: int
    alignment: int | None
    setup: int | None
    prediction: int = 0

    @property
    def training(self) -> int:
        """Those of training frames only."""
        return self.up + self.down

    @property
    def total(self) -> int:
        """All that were counted."""
        return self.training + self.evaluation + (self.alignment or 0) + (self.setup or 0) + self.prediction


class Run:
    """A trained federation: its metrics, its bytes, its rounds and its report.

    `Federation.fit` returns one, and `load_run` reads one from its directory. `models` are the trained modules by role
    ("server" and the parties' names) when the run was made in this process.
    """

    def __init__(
        self, path: Path, models: Mapping[str, nn.Module] | None = None, folder: Scratch | None = None
    ) -> None:
        self.path, self.models = path, dict(models or {})
        self._recorded, self._folder = read_run(path), folder  # the folder lives as long as this object

    @property
    def name(self) -> str:
        """The run's name: its compressor, unless it was given another."""
        return self._recorded.name

    @property
    def completed(self) -> bool:
        """Whether it ran to its last round."""
        return self._recorded.completed

    @property
    def rounds(self) -> int:
        """How many rounds it has."""
        return self._recorded.rounds

    @property
    def metrics(self) -> Metrics:
        """Metrics of the last evaluation: ``run.metrics.test.roc_auc``."""
        found = self._recorded.metrics
        return Metrics(Scores(found.train), Scores(found.validation), Scores(found.test))

    @property
    def label_privacy(self) -> LabelAccount | None:
        """What is guaranteed for labels that were told randomised; `metrics` are estimates then, its `scores` true."""
        return self._recorded.label_privacy

    @property
    def started_from(self) -> StartedFrom | None:
        """The run whose models it started from, if it did not begin with fresh ones."""
        return self._recorded.started_from

    @property
    def warning(self) -> str | None:
        """One line that says that training seems to diverge and what to change, if it does."""
        return self._recorded.warning

    @property
    def analysis(self) -> Analysis | None:
        """Figures of test rows with intervals, and what each party brings, as `analysis.json` has them."""
        return self._recorded.analysis

    @property
    def bytes(self) -> Bytes:
        """What was sent, all parties together."""
        return _bytes(self._recorded.sent)

    @property
    def bytes_by_party(self) -> dict[str, Bytes]:
        """What was sent, by party."""
        parties = self._recorded.sent.by_party
        return {name: _bytes(sent) for name, sent in parties.items()}

    @property
    def compression_error(self) -> CompressionError | None:
        """Squared error of what was sent, summed over the rounds that were evaluated, beside its bound."""
        return self._recorded.error

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with the keys of the TOML file."""
        return dict(self._recorded.config)

    @property
    def parameters(self) -> dict[str, str]:
        """SHA-256 of each role's trained parameters: two runs with one seed have the same."""
        return dict(self._recorded.parameters)

    @property
    def history(self) -> pa.Table:
        """A row a round: loss, bytes so far, and metrics of the rounds that were evaluated.

        An Arrow table, so ``run.history.to_pandas()`` and ``polars.from_arrow(run.history)`` are frames.
        """
        rows = [_flat(line) for line in read_lines(self.path / "metrics.jsonl")]
        columns = dict.fromkeys(key for row in rows for key in row)
        return pa.table({key: [row.get(key) for row in rows] for key in columns})

    def predict(self, rows: Mapping[str, Any]) -> pa.Table:
        """Scores of new rows, by party: frames with the columns of training, of which those that all parties hold.

        Frames are pandas, polars or Arrow; a run that was trained on tensors takes tensors. Two classes have a `score`,
        which is a probability, and a `class`; several a score each; a quantity has a `value` in its own units. What is
        left out or not used is a warning. A run with `absence.rate`, or with `data.alignment = "outer"`, scores rows of
        the parties that are given, as far as it learned to do without the others, and says in `parties` who was there.

        An Arrow table: ``run.predict(frames).to_pandas()`` is a frame.
        """
        from cvfl.serving.bundles import read_bundles  # noqa: PLC0415  not needed by those who only read
        from cvfl.serving.predict import Predictor  # noqa: PLC0415

        predictor = Predictor(read_bundles([self.path]), self.models)
        if all(isinstance(one, Tensor) for one in rows.values()):
            return predictor.of_tensors(rows)
        with Scratch() as folder:
            scores = pa.Table.from_batches(predictor.of_tables(write_frames(rows, folder.path)))
        for note in predictor.notes:
            warnings.warn(note, stacklevel=2)
        return scores

    def audit(self) -> Audit:
        """What a curious server or party could get back of the columns and labels, measured as `cvfl audit` does.

        Takes seconds to a minute, and the data of all parties, as in training. What was found stays with the run, as
        `audit.json`, and is in its report.
        """
        from cvfl.audit.audit import audit_run  # noqa: PLC0415  attacks take scikit-learn, which is slow to load

        found = audit_run(self.path)
        write_audit(found, self.path)
        return found

    def report(self, path: str | Path) -> Path:
        """Write the run's report, one HTML page that needs nothing else, to this file."""
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report([self.path], Path(path))
        return Path(path)

    def save(self, path: str | Path) -> Run:
        """Copy the run directory there; `load_run` reads it back."""
        shutil.copytree(self.path, path)
        return Run(Path(path), self.models)

    def _rows(self) -> list[tuple[str, str]]:
        test, metric = self.metrics.test, self._recorded.metric
        score = f"{test[metric]:.4f}" if metric and metric in test else "not evaluated"
        better = " (lower is better)" if metric in BETTER_LOW else ""
        return [
            (f"test {metric}{better}", score),
            ("rounds", f"{self.rounds:,}{'' if self.completed else ', stopped early'}"),
            ("MB in all", f"{self.bytes.total / MB:.3f}: {shares(self._recorded.sent.purposes)}"),
            ("directory", "temporary" if self._folder else str(self.path)),
        ]

    def __repr__(self) -> str:
        return f"Run({self.name!r}: " + "; ".join(f"{key} {value}" for key, value in self._rows()) + ")"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in self._rows())
        return f"<table><caption>{escape(self.name)}</caption>{rows}</table>"


def load_run(path: str | Path) -> Run:
    """The run in a directory that `fit` or `cvfl train` wrote."""
    return Run(Path(path))


def _bytes(sent: Sent) -> Bytes:
    alignment, setup = (None if value is None else int(value) for value in (sent.alignment, sent.setup))
    return Bytes(int(sent.up), int(sent.down), int(sent.evaluation), alignment, setup)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl as a row: nested figures under joined names, such as test_roc_auc and bytes_up."""
    row: dict[str, Any] = {}
    for key, value in line.items():
        if key in ("by_party", "compression_error", "certificate"):
            continue  # these have a figure for every role
        if isinstance(value, Mapping):
            row |= {f"{key}_{name}": figure for name, figure in value.items()}
        else:
            row[key] = value
    return row
