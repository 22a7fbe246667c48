"""`cvfl server` and `cvfl party` as an operator runs them, and kills them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.cases import SERVER, write_config
from conformance.network import free_port
from conformance.outcome import Outcome, of_parties, written
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.federation.rows.load import federation_names
from cvfl.runtime.grpc.certificates import make_certificates


class Processes:
    """`cvfl server` and `cvfl party` as real processes with certificates; any may be killed and started again."""

    def __init__(self, config: RunConfig | Path, folder: Path, names: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.path = config if isinstance(config, Path) else write_config(folder / "fed.toml", config)
        self.names = tuple(names or federation_names(load_config(self.path)))
        make_certificates(folder / "certs", ["127.0.0.1"], self.names, force=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
            child.wait()

    def start(self, role: str, answer: bytes | None = None) -> None:
        """Start a role; its output goes on in the file ROLE.out, errors in ROLE.err; it may ask, and is answered."""
        sets = (f"network.address={self.address}", f"network.certificates={self.folder / 'certs'}")
        command = self.command(role)
        command += [str(self.path), "--log-json", *self.options(role)]
        command += [word for change in sets for word in ("--set", change)]
        with (self.folder / f"{role}.out").open("ab") as out, (self.folder / f"{role}.err").open("ab") as err:
            self.children[role] = subprocess.Popen(
                [sys.executable, "-m", "cvfl.cli", *command],
                stdin=None if answer is None else subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | self.environment,
            )
        if answer is not None and (stdin := self.children[role].stdin):
            with stdin:
                stdin.write(answer)

    def command(self, role: str) -> list[str]:
        """What a role is started with."""
        return [SERVER] if role == SERVER else ["party", "--name", role]

    def options(self, role: str) -> list[str]:
        """What a role is told beside its configuration."""
        out = self.folder / ("run" if role == SERVER else "models")
        return ["--state", str(self.folder / "state" / role), "--out", str(out)]

    def start_all(self) -> None:
        """Start everyone."""
        for role in (SERVER, *self.names):
            self.start(role)

    def kill(self, *roles: str) -> None:
        """kill -9, all at once."""
        for role in roles:
            self.children[role].kill()
        for role in roles:
            self.children[role].wait()

    def interrupt(self, role: str) -> int:
        """Ctrl-C; the exit code."""
        self.children[role].send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.children[role].wait(15)
        # Once an interrupt was lost here, and it is not known where: press again, as people do.
        self.children[role].send_signal(signal.SIGINT)
        return self.children[role].wait(30)

    def events(self, role: str, since: int = 0) -> list[dict[str, Any]]:
        """What a role has printed so far after its first `since` events, whole lines only."""
        path = self.folder / f"{role}.out"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True)[since:] if line.endswith("\n")]

    def errors(self, role: str) -> str:
        """What a role has printed as errors."""
        return (self.folder / f"{role}.err").read_text(encoding="utf-8")

    def until_round(self, t0: int, since: int = 0, seconds: float = 180.0) -> int:
        """Wait until the server has printed round t0, not counting its first `since` events; how many there are."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            events = self.events(SERVER, since)
            if any(event["event"] == "round" and event["round"] >= t0 for event in events):
                return since + len(events)
            assert self.children[SERVER].poll() in (None, 0), self.errors(SERVER)
            time.sleep(0.02)
        raise AssertionError(f"round {t0} did not come within {seconds:.0f} s: {events[-3:]}")

    def wait(self, seconds: float = 90.0) -> dict[str, int]:
        """Wait for all; their exit codes."""
        until = time.monotonic() + seconds
        return {role: child.wait(max(0.1, until - time.monotonic())) for role, child in self.children.items()}

    def outcome(self, seconds: float = 90.0) -> Outcome:
        """Wait for a good end and read what is left."""
        codes = self.wait(seconds)
        assert set(codes.values()) == {0}, (codes, {role: self.errors(role) for role in codes})
        summary = json.loads((self.folder / "run" / "summary.json").read_text())
        models = of_parties(self.folder / "models") | of_parties(self.folder / "run" / "parameters")
        history = written(self.folder / "run" / "metrics.jsonl")
        parameters = summary["parameters"] | {
            name: json.loads((self.folder / "models" / f"{name}.json").read_text())["parameters"] for name in self.names
        }
        return Outcome.recorded(models, summary | {"parameters": parameters}, history)
