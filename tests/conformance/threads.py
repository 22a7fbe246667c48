"""gRPC with mutual TLS, every role a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from conformance.cases import SERVER
from conformance.outcome import Outcome, of_parties
from cvfl.config.schema import RunConfig
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.federation.rows.load import federation_names
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.runtime.grpc.channel import Identity
from cvfl.runtime.grpc.party import attend
from cvfl.runtime.grpc.server import FederationServer


@contextmanager
def threads(config: RunConfig, folder: Path, **options: Any) -> Iterator[Threads]:
    """A gRPC server and parties in threads of this process."""
    federation = Threads(config, folder, **options)
    try:
        yield federation
    finally:
        federation.close()


class Threads:
    """The gRPC carriers, `secure` by mutual TLS; `address` is where parties connect: a proxy may stand between."""

    def __init__(self, config: RunConfig, folder: Path, secure: bool = True, **options: Any) -> None:
        self.config, self.folder, self.secure = config, folder, secure
        self.names = federation_names(config)
        self.certs = folder / "certs"
        if not self.certs.exists():
            make_certificates(self.certs, ["127.0.0.1", "localhost"], self.names)
        self.stack, self.errors, self.waits = ExitStack(), dict[str, BaseException](), dict[str, list[str]]()
        self.server = ServerRun(config, "test", folder / "state" / SERVER)
        self.carrier = FederationServer(self.server.end, "127.0.0.1:0", self.identity(SERVER), **options)
        self.address = f"127.0.0.1:{self.carrier.port}"
        self.parties: dict[str, PartyRun] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, **options: Any) -> None:
        """Start a role in its thread."""
        if name == SERVER:
            waits = self.waits.setdefault(SERVER, [])
            work = lambda: self.carrier.run(lambda missing, seconds: waits.append(", ".join(missing)))  # noqa: E731
        else:
            if name in self.parties:
                self.parties[name].close()
            identity = self.identity(name)
            run = self.parties[name] = PartyRun(
                self.config, name, self.folder / "state" / name, self.stack, identity=identity
            )
            work = lambda: attend(run.end, self.address, self.identity(name), self._waiting(name), **options)  # noqa: E731
        self._threads[name] = threading.Thread(target=self._caught, args=(name, work), daemon=True)
        self._threads[name].start()

    def identity(self, name: str) -> Identity | None:
        """A role's certificate, if there is TLS."""
        return Identity.load(self.certs, name) if self.secure else None

    def _waiting(self, name: str) -> Callable[[str, float], None]:
        said = self.waits.setdefault(name, [])
        return lambda why, seconds: said.append(why)

    def _caught(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors[name] = error

    def start_all(self) -> None:
        """Start everyone."""
        for name in (SERVER, *self.names):
            self.start(name)

    def join(self, seconds: float = 60.0) -> None:
        """Wait until every role has ended."""
        until = time.monotonic() + seconds
        for name, thread in self._threads.items():
            thread.join(max(0.1, until - time.monotonic()))
            assert not thread.is_alive(), f"{name} has not ended within {seconds:.0f} s; {self.errors} {self.waits}"

    def outcome(self) -> Outcome:
        """Wait for the end and read what is left."""
        self.join()
        assert self.errors == {}
        result = self.server.finish(self.folder / "run")
        for party in self.parties.values():
            party.finish(self.folder / "models")
        return Outcome.of(result, **of_parties(self.folder / "models"))

    def close(self) -> None:
        """Let nothing outlive the test."""
        self.carrier._server.stop(grace=0).wait()
        self.server.close()
        for run in self.parties.values():
            run.close()
        self.stack.close()
