"""What a monitoring system reads at /metrics, in the form of Prometheus. No id, key or score is in it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cvfl.serving.online.desk import Desk

_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FORM = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts requests; what the desk knows itself is read when it is asked for."""

    def __init__(self, desk: Desk) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "cvfl_request_seconds", "Seconds until a request was answered.", buckets=_SECONDS, registry=self._registry
        )
        self._requests = Counter(
            "cvfl_requests", "Requests by status and code.", ["status", "code"], registry=self._registry
        )
        self._ids = Counter("cvfl_ids", "Ids that were asked for.", registry=self._registry)
        self._registry.register(_OfDesk(desk))

    def answered(self, status: int, code: str, seconds: float, ids: int) -> None:
        """A request has its answer."""
        self._requests.labels(str(status), code).inc()
        self._seconds.observe(seconds)
        self._ids.inc(ids)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)


class _OfDesk(Collector):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def collect(self) -> list[Metric]:
        """The figures now."""
        desk = self._desk
        up = GaugeMetricFamily("cvfl_up", "Whether a role is here.", labels=["role"])
        for role, here in desk.here.items():
            up.add_metric([role], float(here))
        sent = CounterMetricFamily("cvfl_bytes", "Bytes of the frames of the door's party.", labels=["direction"])
        sent.add_metric(["up"], desk.sizes.up)
        sent.add_metric(["down"], desk.sizes.down)
        messages = CounterMetricFamily("cvfl_messages", "Messages in which ids were asked for.")
        messages.add_metric([], desk.batching.messages)
        store = desk.stock.kept.newest
        rows = GaugeMetricFamily(
            "cvfl_rows", "Rows of the own table, and those with an embedding kept.", labels=["kind"]
        )
        rows.add_metric(["all"], len(store.rows))
        rows.add_metric(["kept"], store.ahead)
        ready = GaugeMetricFamily("cvfl_ready", "Whether requests are answered.")
        ready.add_metric([], float(desk.trouble is None))
        return [up, sent, messages, rows, ready]
