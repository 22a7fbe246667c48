"""What a monitoring system sees of a run: asked by a real Prometheus, and the figures are those of the record."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conformance.cases import SERVER, settings
from conformance.network import free_port
from conformance.outcome import in_process, same
from conformance.processes import Processes
from conformance.threads import Threads
from cvfl.errors import ConfigError
from cvfl.runtime.exporter import RoleMetrics, exported
from cvfl.runtime.observed import Times
from cvfl.types import Direction

pytestmark = pytest.mark.usefixtures("no_pages")
EXAMPLE = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD = json.loads((EXAMPLE / "dashboard.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(address: str) -> Samples:
    """All samples at /metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def metrics(tmp_path: Path, names: tuple[str, ...] = ("bank", "shop")) -> RoleMetrics:
    return RoleMetrics(0, names, Times(), tmp_path, {"version": "1", "terms": "ab"})


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:9100", "cvfl.example.org:9100", "[::]:0"])
def test_other_machines_read_nothing_unasked(address: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"can be reached from other machines; network\.metrics_anywhere"),
        exported(metrics(tmp_path), address, anywhere=False),
    ):
        raise AssertionError


@pytest.mark.parametrize("address", ["9100", ":9100", "localhost", "localhost:http", "localhost:99999"])
def test_addresses_that_are_none(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no HOST:PORT"), exported(metrics(tmp_path), address, anywhere=True):
        raise AssertionError


def test_everybody_reads_where_that_was_chosen(tmp_path: Path) -> None:
    with exported(metrics(tmp_path), "0.0.0.0:0", anywhere=True) as where:
        assert read(where.replace("0.0.0.0", "127.0.0.1"))


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="is another process there"), exported(metrics(tmp_path), address, False):
            raise AssertionError


def test_names_are_escaped_and_garbage_is_not_counted(tmp_path: Path) -> None:
    name = 'ba"nk\\x\ny'
    seen = metrics(tmp_path, (name, "shop"))
    for frame in (b"", b"x", b"\x21", bytes(100), b"\x2f"):
        seen.frame(1, Direction.UP, frame)
    seen.here(1, True)
    with exported(seen, "127.0.0.1:0", False) as where:
        found = read(where)
    assert found["cvfl_run_connected", (("peer", name), ("role", "server"))] == 1
    assert not any(key[0] == "cvfl_run_bytes_total" for key in found)


def test_the_figures_are_those_of_the_record(tmp_path: Path) -> None:
    """At the server and at a party, by gRPC; the run ends in the same bits."""
    config = settings(rounds=6)
    federation = Threads(config, tmp_path)
    try:
        server = federation.server
        watching = RoleMetrics(0, federation.names, server.end.times, server.state.path / "checkpoints", {})
        server.end.witnesses.append(watching)
        federation.start_all()
        party = federation.parties["bank"]
        own = RoleMetrics(2, federation.names, party.end.times, party.state.path / "checkpoints", {})
        party.end.witnesses.append(own)
        federation.join()
        with exported(watching, "127.0.0.1:0", False) as one, exported(own, "127.0.0.1:0", False) as other:
            seen, at_bank = read(one), read(other)
        same(federation.outcome(), in_process(config))
    finally:
        federation.close()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())

    def counted(found: Samples, role: str, direction: str, purpose: str) -> float:
        labels = {"role": role, "party": "bank", "direction": direction, "purpose": purpose}
        return found["cvfl_run_bytes_total", tuple(sorted(labels.items()))]

    sent = summary["bytes"]["by_party"]["bank"]
    for found, role in ((seen, "server"), (at_bank, "bank")):
        for direction in ("up", "down"):
            assert counted(found, role, direction, "training") == sent[direction]
        assert counted(found, role, "up", "evaluation") == sent["evaluation"]
        assert found["cvfl_run_round", (("role", role),)] == 5
    seconds = {key[1]: value for key, value in seen.items() if key[0] == "cvfl_run_seconds_total"}
    assert {dict(labels)["phase"] for labels in seconds} == {"compute", "codec", "wait"}
    assert {dict(labels)["peer"] for labels in seconds} == {"", "hospital", "bank"}
    assert min(seconds.values()) > 0
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in history[1:]:
        told = line["time"]["server"]
        assert told["compute"] + told["codec"] + sum(told["wait"].values()) == pytest.approx(line["seconds"], abs=0.05)
    kept = json.loads((tmp_path / "models" / "bank.json").read_text())["time"]
    assert kept["compute"] > 0
    assert set(kept["wait"]) == {"server"}


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """A real Prometheus that reads these addresses five times a second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus here; Debian has it: apt-get install prometheus")
    text = (EXAMPLE / "prometheus.yml").read_text(encoding="utf-8")
    listed = ", ".join(f'"{target}"' for target in targets)
    text = text.replace('"127.0.0.1:9100"', listed).replace("scrape_interval: 5s", "scrape_interval: 200ms")
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    places = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "prometheus.log").open("wb") as log:
        child = subprocess.Popen([program, *places, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield address
    finally:
        child.terminate()
        child.wait()


def answered(address: str, query: str) -> list[Any]:
    """What Prometheus says of a query of the dashboard, now."""
    asked = urllib.parse.urlencode({"query": query.replace("$__rate_interval", "1m")})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{asked}", timeout=10) as answer:
            told = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []  # it is about to be there
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    except OSError:
        return []  # it is not there yet
    assert told["status"] == "success", (query, told)
    return list(told["data"]["result"])


def seconds(found: Samples) -> float:
    """All that a role has spent."""
    return sum(value for (name, _), value in found.items() if name == "cvfl_run_seconds_total")


class Watched(Processes):
    """Roles of which each has an address for Prometheus."""

    shown: dict[str, str]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.shown = {role: f"127.0.0.1:{free_port()}" for role in (SERVER, *self.names)}

    def options(self, role: str) -> list[str]:
        """With its address."""
        return [*super().options(role), "--set", f"network.metrics={self.shown[role]}"]


def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    """During a run of `cvfl server` and `cvfl party` over gRPC."""
    config = settings(rounds=100_000)
    roles = Watched(config, tmp_path)
    with roles, prometheus(tmp_path, list(roles.shown.values())) as address:
        roles.start_all()
        until, open_ = time.monotonic() + 120, list(QUERIES)
        while open_:
            open_ = [query for query in open_ if not answered(address, query)]
            assert time.monotonic() < until, (open_, (tmp_path / "prometheus.log").read_text()[-2000:])
            assert all(child.poll() is None for child in roles.children.values()), roles.errors(SERVER)
            time.sleep(0.2)
        found = answered(address, 'cvfl_run_connected{role="server"}')
        assert {one["metric"]["peer"]: one["value"][1] for one in found} == {"hospital": "1", "bank": "1"}
        assert len({one["metric"]["terms"] for one in answered(address, "cvfl_run_info")}) == 1  # agreed on by all
        spent = [(time.monotonic(), seconds(read(roles.shown[SERVER])))]
        time.sleep(1)
        spent.append((time.monotonic(), seconds(read(roles.shown[SERVER]))))
        (began, before), (ended, after) = spent
        assert after - before == pytest.approx(ended - began, abs=0.5)  # nothing is missing, and nothing counts twice
        roles.kill("bank")
        while not answered(address, 'cvfl_run_restarts_total{role="server", peer="bank"} > 0'):
            assert time.monotonic() < until
            time.sleep(0.2)
        text = urllib.request.urlopen(f"http://{roles.shown[SERVER]}/metrics", timeout=10).read().decode()
        secrets = [path.read_text() for path in (tmp_path / "certs").glob("*.key")]
        assert not any(line in text for key in secrets for line in key.splitlines()[1:-1])


def test_the_dashboard_is_of_metrics_that_there_are() -> None:
    assert len(DASHBOARD["panels"]) == 12
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == 12
    assert all(panel["datasource"]["uid"] == "${source}" for panel in DASHBOARD["panels"])
