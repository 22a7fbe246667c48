"""A federation that serves, in this process: real gRPC with certificates, and a door on a port of this machine."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from conformance.network import free_port
from cvfl.config.schema import RunConfig
from cvfl.federation.train import train
from cvfl.runs.bundle import PRIVATE
from cvfl.runs.directory import PARAMETERS
from cvfl.runtime.carrier import Turn
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.runtime.grpc.channel import Identity
from cvfl.runtime.grpc.server import FederationServer
from cvfl.runtime.observed import ObservedServer
from cvfl.scratch import Scratch
from cvfl.serving.bundles import read_bundles
from cvfl.serving.online.app import Door, make_app
from cvfl.serving.online.desk import Desk
from cvfl.serving.online.door import Keys, Limits
from cvfl.serving.online.listen import listener
from cvfl.serving.online.roles import server_role, serving_recorder
from cvfl.serving.online.service import serve_party
from cvfl.serving.online.stock import PartyStock, ServerStock, Watch
from cvfl.serving.predict import Predictor
from serving import tables

MEMORY = 1 << 20
LIMITS = Limits()


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> str:
        return self.body["error"]["code"]


class Trained(NamedTuple):
    """A run, new tables, and the scores that one process computes of them, by id."""

    run: Path
    config: RunConfig
    expected: dict[str, dict[str, Any]]
    paths: dict[str, Path]


def trained(folder: Path, kind: str = "binary", rows: int = 70, lacks: int = 0, **changes: Any) -> Trained:
    """The bank lacks the first rows, the shop the last ones: four and three people are unknown to one of them.

    In training the shop `lacks` so many rows.
    """
    old = tables.frames(kind)
    config = tables.config(tables.write(old | {"shop": old["shop"].slice(lacks)}, folder / "in"), **changes)
    run = train(config, out=folder / "run", workers=1).path
    found = tables.frames(kind, first=1000, rows=rows)
    new = {"bank": found["bank"].drop_columns("target").slice(4), "shop": found["shop"].slice(3)}
    paths = tables.write(new, folder / "new")
    return Trained(run, tables.config(paths, **changes), scores(run, paths), paths)


def scores(run: Path, paths: dict[str, Path]) -> dict[str, dict[str, Any]]:
    found = pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(paths))
    return {row.pop("person"): row for row in found.to_pylist()}


class Serving:
    """All roles as threads; the door's party is the bank."""

    def __init__(
        self, folder: Path, given: Trained, limits: Limits = LIMITS, keys: Path | None = None, memory: int = MEMORY
    ):
        self.folder, self.stack = folder, ExitStack()
        address = f"127.0.0.1:{free_port()}"
        self.config = given.config.model_copy(
            update={"network": given.config.network.model_copy(update={"address": address})}
        )
        if not (folder / "certs").exists():
            make_certificates(folder / "certs", ["127.0.0.1"], tuple(self.config.party))
        self.models = {role: folder / "models" / role for role in ("server", *self.config.party)}
        for role in self.models:
            self.bring(role, given.run)
        self.events: list[tuple[str, str]] = []
        self.frames: list[bytes] = []
        self.server = None if self.config.privacy.scores_apart else ServerStock(self.config, self.models["server"])
        self.stocks = {
            name: PartyStock(self.config, name, self.models[name], memory, 600.0) for name in self.config.party
        }
        self.turns = {name: Turn() for name in self.stocks}
        self.over = {name: threading.Event() for name in self.stocks}
        self.desk = Desk(self.stocks["bank"], self.turns["bank"], 4096)
        self.stack.enter_context(self.desk.batching)
        self.door = Door(self.desk, "credit", Keys(keys), limits)
        self.listener, self.bound = listener(make_app(self.door), self.door, "127.0.0.1:0", limits.timeout)
        self.port = self.bound.getsockname()[1]
        self.threads: dict[str, threading.Thread] = {}
        self.absent: set[str] = set()
        """Parties that are not started."""

    def bring(self, role: str, run: Path) -> None:
        """Copy a role's bundle to its folder, as an operator would; where labels stay with the bank, it scores."""
        self.models[role].mkdir(parents=True, exist_ok=True)
        wanted = {role, "server"} if self.config.privacy.labels == role else {role}
        for name in sorted(wanted):
            files = sorted((run / PARAMETERS).glob(f"{name}.*"), key=lambda path: path.name.endswith(".model.json"))
            for path in files:
                shutil.copy(path, self.models[role])
        if len(wanted) > 1 and (run / PARAMETERS / PRIVATE).exists():
            shutil.copytree(run / PARAMETERS / PRIVATE, self.models[role] / PRIVATE, dirs_exist_ok=True)

    def identity(self, role: str) -> Identity:
        return Identity.load(self.folder / "certs", role)

    def start_server(self) -> None:
        scratch = self.stack.enter_context(Scratch())
        role = server_role(self.config, self.server.kept if self.server else None, scratch.path)
        whole, join = role.receive, role.join

        def receive(m: int, frame: Any) -> Any:
            replies = whole(m, frame)
            self.frames += [bytes(frame), *(bytes(reply) for _, reply in replies)]
            return replies

        def joined(frame: Any, name: str | None = None) -> Any:
            self.frames.append(bytes(frame))
            return join(frame, name)

        role.receive, role.join = receive, joined  # type: ignore[method-assign]
        self.role = role
        run = self.server.kept.newest.bundle.run if self.server else None
        self.recorder = serving_recorder(self.folder / "state" / "server", "server", self.config, run)
        self.carrier = FederationServer(
            ObservedServer(role, [self.recorder]),
            self.config.network.address,
            self.identity("server"),
            wait_limit=float("inf"),
            on_event=lambda event, **values: self.events.append(("server", f"{event} {values}")),
            at_once=True,
        )
        if self.server is not None:
            self.stack.enter_context(Watch(self.server.look, lambda lines: self._said("server", lines), 0.1))
        self._thread("server", self.carrier.run)

    def stop_server(self) -> None:
        self.role.told, self.role.done = set(range(1, 1 + len(self.role.names))), True
        self.carrier._server.stop(grace=0).wait()
        self.threads["server"].join()
        self.recorder.close()

    def start_party(self, name: str) -> None:
        self.over[name].clear()
        desk = self.desk if name == "bank" else None
        state, stock = self.folder / "state" / name, self.stocks[name]
        recorder = serving_recorder(state, name, self.config, stock.bundle.run)

        def serve() -> None:
            with closing(recorder):
                serve_party(
                    stock,
                    state,
                    recorder,
                    self.identity(name),
                    lambda event, **values: self.events.append((name, f"{event} {values}")),
                    self.turns[name],
                    desk,
                    self.over[name],
                    0.1,
                )

        self._thread(name, serve)

    def stop_party(self, name: str) -> None:
        """Its connection ends, as when its process does."""
        self.over[name].set()
        self.turns[name].hang_up()
        self.threads[name].join(10)
        assert not self.threads[name].is_alive()

    def _said(self, role: str, lines: Sequence[str]) -> None:
        self.events += [(role, line) for line in lines]

    def _thread(self, name: str, work: Any) -> None:
        self.threads[name] = threading.Thread(target=work, daemon=True)
        self.threads[name].start()

    def __enter__(self) -> Serving:
        self.start_server()
        for name in self.stocks.keys() - self.absent:
            self.start_party(name)
        self._thread("door", lambda: self.listener.run([self.bound]))
        self.until_ready()
        return self

    def __exit__(self, *exc: object) -> None:
        self.listener.should_exit = True
        self.threads["door"].join(10)
        for name in self.stocks:
            self.over[name].set()
            self.turns[name].hang_up()
        self.stop_server()
        for name in self.stocks.keys() - self.absent:
            self.threads[name].join(10)
        self.stack.close()
        self.bound.close()

    def until(self, what: Any, seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < end, (self.events, self.get("/v2/health/ready"))
            time.sleep(0.01)
        return found

    def until_ready(self) -> None:
        self.until(lambda: self.listener.started)
        self.until(self._all_here)

    def _all_here(self) -> bool:
        """With models that do without some parties the door is ready before."""
        found = self.get("/v2/health/ready")
        return found.status == 200 and {name for name, here in found.body["roles"].items() if not here} <= self.absent

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, None, headers)

    def predict(self, *ids: Any, **headers: str) -> Answer:
        return self.call("POST", "/predict", json.dumps({"ids": list(ids)}).encode(), headers)

    def call(self, method: str, path: str, body: bytes | None, headers: dict[str, str] | None = None) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(
                method, path, body, {key.replace("_", "-"): value for key, value in (headers or {}).items()}
            )
            found = connection.getresponse()
            text = found.read()
            kind = found.getheader("content-type", "")
            return Answer(found.status, json.loads(text) if "json" in kind else text.decode(), dict(found.getheaders()))
        finally:
            connection.close()
