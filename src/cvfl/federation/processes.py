"""All roles as processes on this machine, over loopback with mutual TLS: a real federation to try out."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cvfl.config.files import load_config, terms_path, write_changed
from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.rows.load import federation_names, row_key
from cvfl.federation.start import Start
from cvfl.runs.analysis import NAME as ANALYSIS
from cvfl.runs.analysis import read_analysis, write_analysis
from cvfl.runs.bundle import MODEL, PREPARATION, PRIVATE, WEIGHTS
from cvfl.runs.journal import write_whole
from cvfl.runtime.grpc.delay import DelayProxy
from cvfl.runtime.supervisor import Supervisor
from cvfl.scratch import Scratch

OnEvent = Callable[[Mapping[str, Any]], None]


def train_grpc(
    path: Path,
    changes: Sequence[str],
    out: Path,
    on_event: OnEvent = lambda event: None,
    round_trip_ms: float = 0.0,
    start_from: Start | None = None,
) -> dict[str, Any]:
    """Train a federation as processes of this machine; events of the server are passed on, the summary is returned.

    With `round_trip_ms` the way between parties and server is that much longer. With `start_from` every role begins
    with its model of an earlier run, and a party that was not there with a fresh one.
    """
    try:
        from cvfl.runtime.grpc.certificates import make_certificates  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigError("--runtime grpc needs: pip install 'cvfl[grpc]'") from None

    config = load_config(path, changes)
    names = federation_names(config)
    with Scratch() as scratch, _Roles() as roles:
        home = scratch.path
        if terms_path(path):  # whose signature, checked above, is of another authority than that of these processes
            write_changed(path, [], {}, home / path.name, "With its terms")
            path = home / path.name
        make_certificates(home / "certs", ["127.0.0.1", "localhost"], names)
        shared = [*changes, f"network.certificates={home / 'certs'}"]
        if (
            config.data.name is None
        ):  # the same rows in the same order as in one process: there is nobody to hide them from
            (home / "row_secret").write_bytes(row_key(config))
            shared.append(f"party.{names[0]}.row_secret={home / 'row_secret'}")

        def start(name: str, role: str, address: str, *options: str) -> None:
            sets = [word for change in (*shared, f"network.address={address}") for word in ("--set", change)]
            state = ("--state", str(home / "state" / name))
            roles.run_command(name, [role, str(path.absolute()), *sets, *state, "--log-json", *options])

        def earlier(name: str) -> tuple[str, ...]:
            if start_from is None:
                return ()
            known = name in ("server", *start_from.names)
            return ("--from", start_from.place) if known else ("--joins", start_from.run)

        start("server", "server", "127.0.0.1:0", "--out", str(out.absolute()), *earlier("server"))
        address = roles.wait_for("server", "listening")["address"]
        with DelayProxy(address, round_trip_ms / 1e3) if round_trip_ms else nullcontext() as proxy:
            for name in names:
                where = proxy.address if proxy else address
                start(name, "party", where, "--name", name, "--out", str(home / "models"), *earlier(name))
            roles.listen(on_event)
        return add_parties(out, names, home / "models")


def add_parties(out: Path, names: Sequence[str], models: Path) -> dict[str, Any]:
    """Put the models of parties of this machine into the run directory; the summary of the run."""
    from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

    for name in (*names, "server"):  # a party that holds the labels has the server model, too
        for file in (f"{name}{end}" for end in (WEIGHTS, PREPARATION, MODEL)):
            if (models / file).exists():
                shutil.copy(models / file, out / "parameters")
    if (models / PRIVATE).is_dir():  # likewise
        shutil.copytree(models / PRIVATE, out / "parameters" / PRIVATE)
    if (models / ANALYSIS).exists():  # likewise
        shutil.copy(models / ANALYSIS, out)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    if classes := _classes(names, models):
        summary["classes"] = classes
        write_whole(out / "summary.json", json.dumps(summary, indent=2) + "\n")
        if analysis := read_analysis(out):
            write_analysis(analysis.model_copy(update={"names": tuple(classes)}), out)
    if classes or (models / ANALYSIS).exists():
        write_report([out], out / "report.html")
    return summary


def _classes(names: Sequence[str], models: Path) -> list[str]:
    """What the party with the label calls its classes: on this machine there is nobody to keep it from."""
    told = (json.loads((models / f"{name}.json").read_text(encoding="utf-8")) for name in names)
    return next((list(values["classes"]) for values in told if "classes" in values), [])


class _Roles(Supervisor):
    """Roles as child processes: their events in one queue."""

    def __init__(self) -> None:
        super().__init__()
        self._events: queue.SimpleQueue[tuple[str, dict[str, Any] | None]] = queue.SimpleQueue()
        self._said: dict[str, str] = {}

    def run_command(self, name: str, arguments: Sequence[str]) -> None:
        """Start `cvfl ARGUMENTS` and listen to it."""
        self.start(name, ["-m", "cvfl.cli", *arguments], subprocess.PIPE, subprocess.PIPE)
        for listen in (self._listen, self._overhear):
            threading.Thread(target=listen, args=(name, self.children[name]), daemon=True).start()

    def wait_for(self, name: str, event: str) -> Mapping[str, Any]:
        """The first event of this kind."""
        while True:
            speaker, said = self._events.get()
            if said is None:
                self._check(speaker)
            elif speaker == name and said["event"] == event:
                return said

    def listen(self, on_event: OnEvent) -> None:
        """Pass the server's events on until all roles have ended well."""
        running = len(self.children)
        while running:
            speaker, said = self._events.get()
            if said is None:
                self._check(speaker)
                running -= 1
            elif speaker == "server":
                on_event(said)

    def _check(self, name: str) -> None:
        code = self.children[name].wait()
        if code:
            said = self._said.get(name) or f"it ended with code {code}"
            raise RemoteProtocolError(f"{name}: {said.removeprefix('error: ')}")

    def _listen(self, name: str, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                try:
                    self._events.put((name, json.loads(line)))
                except ValueError:
                    continue
        self._events.put((name, None))

    def _overhear(self, name: str, child: subprocess.Popen[str]) -> None:
        assert child.stderr is not None
        with child.stderr as lines:
            for line in lines:
                if line.strip():
                    self._said[name] = line.strip()
