"""What Prometheus reads of a role at /metrics while it trains: figures of the run, never an id, a value or a secret."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cvfl.errors import ConfigError, DecodeError
from cvfl.runtime.address import host_and_port, is_loopback
from cvfl.runtime.observed import Times
from cvfl.types import SERVER, Direction
from cvfl.wire import Bytes
from cvfl.wire.frame import BEFORE_ROUNDS, kind_of, round_of
from cvfl.wire.purpose import Purpose, purpose_of

KEY = "network.metrics"


class RoleMetrics(Collector):
    """A witness that counts, and tells what it has counted when it is asked; `own` is 0 at the server.

    `rounds` says how many rounds the run has, as far as that is known.
    """

    def __init__(
        self,
        own: int,
        names: Sequence[str],
        times: Times,
        checkpoints: Path,
        about: dict[str, str],
        rounds: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._names, self._own, self._times = ("server", *names), own, times
        self._checkpoints, self._about, self._rounds = checkpoints, about, rounds
        others = range(1, len(self._names)) if own == SERVER else (SERVER,)
        self._here: dict[int, bool] = dict.fromkeys(others, False)
        self._left: Counter[int] = Counter(dict.fromkeys(others, 0))
        self._bytes: Counter[tuple[int, Direction, Purpose]] = Counter()
        self._round: int | None = None
        self.loss: float | None = None
        """That of the newest round, where it is known."""

    def here(self, m: int, here: bool) -> None:
        """Role m has come, or is gone."""
        self._here[m] = here
        self._left[m] += not here

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame."""
        try:
            purpose = purpose_of(frame)
            if kind_of(frame) not in BEFORE_ROUNDS:
                self._round = round_of(frame)
        except (DecodeError, KeyError, IndexError):
            return  # no frame: the role refuses it
        self._bytes[m or self._own, direction, purpose] += len(frame)

    def collect(self) -> list[Metric]:
        """The figures now."""
        return [*self._of_run(), *self._of_others()]

    def _of_run(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("cvfl_run_info", "By what software and terms.", labels=["role", *self._about])
        info.add_metric([self._role, *self._about.values()], 1.0)
        yield info
        known = {
            "round": ("The round that goes on.", self._round),
            "rounds": ("Rounds of the run.", self._rounds()),
            "loss": ("Mean training loss of the newest round.", self.loss),
            "checkpoint_age_seconds": ("Seconds since the newest checkpoint.", self._age()),
        }
        for name, (meaning, value) in known.items():
            if value is not None:
                gauge = GaugeMetricFamily(f"cvfl_run_{name}", meaning, labels=["role"])
                gauge.add_metric([self._role], float(value))
                yield gauge
        yield self._seconds()

    def _of_others(self) -> Iterator[Metric]:
        labels = ["role", "party", "direction", "purpose"]
        sent = CounterMetricFamily("cvfl_run_bytes", "Bytes of frames, by what they are for.", labels=labels)
        for (m, direction, purpose), count in sorted(self._bytes.items()):
            sent.add_metric([self._role, self._names[m], direction, purpose], count)
        here = GaugeMetricFamily("cvfl_run_connected", "Whether a role is connected.", labels=["role", "peer"])
        left = CounterMetricFamily("cvfl_run_restarts", "How often a role went away.", labels=["role", "peer"])
        for m, connected in sorted(self._here.items()):
            here.add_metric([self._role, self._names[m]], float(connected))
            left.add_metric([self._role, self._names[m]], self._left[m])
        yield from (sent, here, left)

    def _seconds(self) -> Metric:
        """Where the time went: own work and coding, and waiting by whom for."""
        spent = self._times.total
        labels = ["role", "phase", "peer"]
        seconds = CounterMetricFamily("cvfl_run_seconds", "Seconds of this role, by what it did.", labels=labels)
        seconds.add_metric([self._role, "compute", ""], spent.compute)
        seconds.add_metric([self._role, "codec", ""], spent.codec)
        for m, waited in sorted([*spent.wait.items()]):
            seconds.add_metric([self._role, "wait", self._names[m]], waited)
        return seconds

    @property
    def _role(self) -> str:
        return self._names[self._own]

    def _age(self) -> float | None:
        """Of the newest file of a checkpoint; None if there is none yet."""
        try:
            newest = max((path.stat().st_mtime for path in self._checkpoints.glob("round-*")), default=None)
        except OSError:
            return None  # one was removed while they were looked at
        return None if newest is None else max(0.0, time.time() - newest)


def check_metrics(address: str, anywhere: bool) -> None:
    """Refuse to show figures to other machines unless that was asked for."""
    host, _ = host_and_port(address, KEY)
    if not anywhere and not is_loopback(host):
        remedy = "network.metrics_anywhere = true lets everybody who reaches it read them"
        raise ConfigError(f"{KEY} = {address!r} can be reached from other machines; {remedy}")


@contextmanager
def exported(metrics: RoleMetrics, address: str, anywhere: bool) -> Iterator[str]:
    """Answer at http://ADDRESS/metrics; where that is, which says the port if 0 was asked for."""
    check_metrics(address, anywhere)
    host, port = host_and_port(address, KEY)
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"{KEY} = {address!r}: {error.strerror or error}; is another process there?") from None
    try:
        yield f"{address.rpartition(':')[0]}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
