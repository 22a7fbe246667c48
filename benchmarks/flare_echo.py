"""How long a round of messages takes on FLARE: roles that only echo, in a provisioned federation with mutual TLS.

FLARE builds the roles in processes of its own from the name of their class, so this folder is on the path of those.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from cvfl.errors import CvflError
from cvfl.federation.nvflare import CONTROLLER, EXECUTOR, JOB_FILE, write_job_folder
from cvfl.runtime.carrier import Replies
from cvfl.runtime.nvflare.place import Place
from cvfl.runtime.nvflare.provisioned import LocalFederation
from cvfl.wire import Bytes

_ROLES = "flare_echo.EchoRoles"
_RESULT = "seconds.json"
_END = b"end"
_WARM = 5


def measure_sizes(sizes: Sequence[int], rounds: int, parties: int = 4) -> dict[int, list[float]]:
    """Seconds of each round in which every party gets and sends a payload, by size; a federation is started for it."""
    names = tuple(f"party-{m}" for m in range(1, parties + 1))
    with tempfile.TemporaryDirectory(prefix="cvfl-nvflare-") as folder:
        home = Path(folder)
        values = {"names": names, "sizes": list(sizes), "rounds": rounds}
        write_job_folder(home / "echo", "echo", names, _ROLES, values)
        classes = (CONTROLLER, EXECUTOR, _ROLES)
        with _on_the_path(), LocalFederation(home / "federation", names, classes) as federation:
            identifier, status = federation.run(home / "echo", patience=600.0)
            if status != "FINISHED:COMPLETED":
                raise CvflError(f"the measurement on FLARE ended as {status}")
            found = json.loads((federation.results(identifier) / _RESULT).read_text(encoding="utf-8"))
        return dict(zip(sizes, found, strict=True))


@contextmanager
def _on_the_path() -> Iterator[None]:
    """Let processes that start meanwhile import this module."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), before)))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


class EchoRoles:
    """The component that makes the roles of a measurement."""

    def server(self, place: Place) -> EchoServer:
        """The one that takes the time."""
        values = json.loads((place.config / JOB_FILE).read_text(encoding="utf-8"))
        return EchoServer(place, tuple(values["names"]), values["sizes"], values["rounds"])

    def party(self, place: Place) -> EchoParty:
        """One that sends back what it gets."""
        return EchoParty()

    def failed(self, place: Place, reason: str) -> None:
        """The server will notice."""


class EchoServer:
    """Sends a payload to all parties, waits for all answers, and so on: its own role and duty."""

    def __init__(self, place: Place, names: tuple[str, ...], sizes: Sequence[int], rounds: int) -> None:
        self.names, self.limits, self.done = names, (60.0, 600.0), False
        self._place, self._rounds = place, rounds
        self._payloads = [bytes(size) for size in sizes for _ in range(_WARM + rounds)]
        self._missing, self._sent, self._began = len(names), 0, 0.0
        self._seconds: list[float] = []

    missing: Sequence[str] = ()
    awaited: Mapping[int, int] = MappingProxyType({})
    reached = 0

    @property
    def role(self) -> EchoServer:
        """Itself."""
        return self

    def join(self, frame: Bytes, name: str) -> tuple[int, Replies]:
        """Wait for all."""
        return self.names.index(name) + 1, self._heard()

    def receive(self, m: int, frame: Bytes) -> Replies:
        """Wait for all, take the time, go on."""
        return self._heard()

    def work(self) -> Replies:
        """There is none."""
        return []

    def close(self) -> None:
        """Nothing is open."""

    def finish(self) -> None:
        """Write the times, without those of the first rounds of each size."""
        each = _WARM + self._rounds
        times = [self._seconds[at + _WARM : at + each] for at in range(0, len(self._seconds), each)]
        (self._place.results / _RESULT).write_text(json.dumps(times), encoding="utf-8")

    def _heard(self) -> Replies:
        self._missing -= 1
        if self._missing:
            return []
        if self._sent:
            self._seconds.append(time.perf_counter() - self._began)
        self._missing, self._began = len(self.names), time.perf_counter()
        self.done = self._sent == len(self._payloads)
        frame = _END if self.done else self._payloads[self._sent]
        self._sent += 1
        return [(m, frame) for m in range(1, len(self.names) + 1)]


class EchoParty:
    """Sends back what it gets: its own role and duty."""

    refused: str | None = None

    def __init__(self) -> None:
        self.done = False

    @property
    def role(self) -> EchoParty:
        """Itself."""
        return self

    def hello(self) -> bytes:
        """Something."""
        return b"hello"

    def receive(self, frame: Bytes) -> Iterator[Bytes]:
        """The same again."""
        if frame == _END:
            self.done = True
        else:
            yield frame

    def finish(self) -> None:
        """Nothing to keep."""

    def close(self) -> None:
        """Nothing is open."""
