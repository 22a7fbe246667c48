"""A run in MLflow: its configuration as parameters, a point of every metric a round, what it leaves as artefacts.

    params      the configuration, under dotted keys          metrics   loss, test/accuracy, ..., MB/total, by round
    artifacts   the run directory; bundles are in parameters/ tags      version, number of the run, name of its split

MLflow tells its makers of its use unless that is turned off: here it is. A tracking server that fails is said once, and
the run goes on without it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cvfl import __version__
from cvfl.cli.errors import extra
from cvfl.cli.observers import Observer, scalars
from cvfl.config.schema import RunConfig
from cvfl.data.tables.address import without_password
from cvfl.errors import OutputError, plain
from cvfl.runs.progress import Progress
from cvfl.runs.read import flattened

EXPERIMENT = "cvfl"
_PATIENCE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Set unless the user has: nothing is told to third parties, and no round waits for minutes."""
_EVERY, _MOST, _LONGEST = 5.0, 100, 500
"""Seconds between two batches, what a batch takes of parameters, and characters of one."""


@contextmanager
def tracked(uri: str | None, name: str, config: RunConfig, seen: Observer) -> Iterator[Tracking | None]:
    """A run in MLflow, if there is a URI of a tracking server or a database."""
    if uri is None:
        yield None
        return
    tracking = Tracking(uri, name, config, seen.event)
    seen.listeners += (tracking,)
    try:
        yield tracking
    except KeyboardInterrupt:
        tracking.end("KILLED")
        raise
    except BaseException:
        tracking.end("FAILED")
        raise


class Tracking:
    """One run of MLflow."""

    def __init__(self, uri: str, name: str, config: RunConfig, on_trouble: Callable[[str], None]) -> None:
        for key, value in _PATIENCE.items():
            os.environ.setdefault(key, value)
        with extra("mlflow", "--mlflow"):
            from mlflow import MlflowClient  # noqa: PLC0415  an extra
            from mlflow.entities import Metric, Param  # noqa: PLC0415
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._uri, self._say, self._metric = uri, on_trouble, Metric
        self._waiting: list[Any] = []
        self._sent, self._off = time.monotonic(), False
        try:
            self._client = MlflowClient(uri)
            self._run = self._client.create_run(
                _experiment(self._client), run_name=name, tags={"cvfl.version": __version__}
            ).info.run_id
            params = [Param(key, value[:_LONGEST]) for key, value in _parameters(config).items()]
            for at in range(0, len(params), _MOST):
                self._client.log_batch(self._run, params=params[at : at + _MOST])
        except Exception as error:
            raise OutputError(f"--mlflow {without_password(uri)}: {self._short(error)}") from None

    def __call__(self, progress: Progress) -> None:
        """A round is over; what there is to say of it goes out with others, every few seconds."""
        now = int(time.time() * 1000)
        found = {key: value for key, value in scalars(progress).items() if math.isfinite(value)}
        self._waiting += [self._metric(key, value, now, progress.report.t0) for key, value in found.items()]
        if time.monotonic() - self._sent > _EVERY:
            self._flush()

    def finish(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """The run is over: its directory, bundles included, and how it ended."""
        for key in ("run", "split", "warning"):
            if value := summary.get(key):
                self._try(partial(self._client.set_tag, self._run, f"cvfl.{key}", value))
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path.name != "state":
                self._try(partial(self._client.log_artifacts, self._run, str(path), path.name))
            elif path.is_file():
                self._try(partial(self._client.log_artifact, self._run, str(path)))
        self.end("FINISHED" if summary.get("completed") else "KILLED")

    def end(self, status: str) -> None:
        """Say how it ended."""
        self._flush()
        self._try(partial(self._client.set_terminated, self._run, status))
        self._off = True

    def _flush(self) -> None:
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        for at in range(0, len(waiting), 1000):
            self._try(partial(self._client.log_batch, self._run, metrics=waiting[at : at + 1000]))

    def _try(self, action: Callable[[], object]) -> None:
        if self._off:
            return
        try:
            action()
        except Exception as error:
            self._off = True
            self._say(f"MLflow has failed, and the run goes on without it: {self._short(error)}")

    def _short(self, error: Exception) -> str:
        """The first line of what MLflow says, without a password."""
        text = (str(error).splitlines() or [type(error).__name__])[0]
        return plain(text.replace(self._uri, without_password(self._uri)), 300)


def _experiment(client: Any) -> str:
    """The experiment that MLflow's own variables name, or `cvfl`."""
    if found := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return found
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known else client.create_experiment(name))


def _parameters(config: RunConfig) -> dict[str, str]:
    """The configuration under dotted keys, without what is not set, and without where roles and files are."""
    values = config.model_dump(mode="json", exclude={"network", "consent", "terms"}, exclude_none=True)
    return dict(flattened(values))
