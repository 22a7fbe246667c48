"""A provisioned FLARE federation on this machine: mutual TLS on loopback, the server and each site a process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cvfl.errors import ConfigError, CvflError
from cvfl.runtime.nvflare import require
from cvfl.runtime.supervisor import Supervisor

_PROJECT, _ORG, _ADMIN = "cvfl", "cvfl", "admin@cvfl.example"
_PATIENCE = 120.0


def allow(site: Path, classes: Sequence[str]) -> Path:
    """Let a provisioned site or server run cvfl's jobs: FLARE builds only classes that a site has listed.

    Writes SITE/local/resources.json from the settings in force and says where.
    """
    local = site / "local"
    known = next((path for path in (local / "resources.json", local / "resources.json.default") if path.exists()), None)
    if known is None:
        raise ConfigError(
            f"{site}: no startup kit of a FLARE site or server (there is no local/resources.json.default)"
        )
    values = json.loads(known.read_text(encoding="utf-8"))
    listed = values.setdefault("class_allow_list", [])
    listed += [name for name in classes if name not in listed]
    path = local / "resources.json"
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return path


class LocalFederation:
    """Provisions and starts a federation; as a context manager it ends all its processes."""

    def __init__(self, folder: Path, names: Sequence[str], classes: Sequence[str]) -> None:
        require()
        self.folder, self.names = folder, tuple(names)
        self._processes = Supervisor()
        self._provision()
        for site in ("localhost", *self.names):
            allow(self.site(site), classes)

    def site(self, name: str) -> Path:
        """The folder of a site; the server's is that of `localhost`."""
        return self.folder / "provisioned" / _PROJECT / "prod_00" / name

    def __enter__(self) -> LocalFederation:
        try:
            self._start("localhost", "server", ["org=" + _ORG])
            for name in self.names:
                self._start(name, "client", [f"uid={name}", "org=" + _ORG])
            self._session = self._connected()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if session := getattr(self, "_session", None):
            session.close()
        self._processes.end()

    def run(self, job: Path, patience: float = _PATIENCE) -> tuple[str, str]:
        """Submit a job and wait for its end: its id and its status."""
        identifier = self.submit(job)
        return identifier, self.wait(identifier, patience)

    def submit(self, job: Path) -> str:
        """Submit a job; its id."""
        return str(self._session.submit_job(str(job)))

    def wait(self, identifier: str, patience: float = _PATIENCE) -> str:
        """The status of a job when it is over."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            status = str(self._session.get_job_meta(identifier).get("status"))
            if status.startswith("FINISHED"):
                return status
            time.sleep(0.2)
        raise CvflError(f"job {identifier} is not over after {patience:.0f} s")

    def results(self, identifier: str) -> Path:
        """Download a job's results: the folder that the server left."""
        target = self.folder / "results" / identifier
        target.mkdir(parents=True)
        return Path(str(self._session.download_job_result(identifier, str(target)))) / "workspace"

    def job_processes(self, name: str) -> list[int]:
        """The processes that the site has started for its jobs."""
        return self._processes.started_by(name)

    def _provision(self) -> None:
        self.port = _free_port()
        people = [
            {"name": "localhost", "type": "server", "org": _ORG, "fed_learn_port": self.port},
            *({"name": name, "type": "client", "org": _ORG} for name in self.names),
            {"name": _ADMIN, "type": "admin", "org": _ORG, "role": "project_admin"},
        ]
        parts = "nvflare.lighter.impl"
        builders: list[dict[str, Any]] = [
            {"path": f"{parts}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{parts}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{parts}.cert.CertBuilder"},
            {"path": f"{parts}.signature.SignatureBuilder"},
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        project = self.folder / "project.yml"  # JSON is YAML
        project.write_text(
            json.dumps({"api_version": 3, "name": _PROJECT, "participants": people, "builders": builders}),
            encoding="utf-8",
        )
        made = subprocess.run(
            [
                sys.executable,
                "-m",
                "nvflare.cli",
                "provision",
                "-p",
                project,
                "-w",
                self.folder / "provisioned",
                "--force",
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if made.returncode or not self.site("localhost").exists():
            raise CvflError(f"nvflare provision failed: {(made.stderr or made.stdout).strip().splitlines()[-1:]}")

    def _start(self, name: str, kind: str, settings: list[str]) -> None:
        """What the site's startup/start.sh starts, without its endless loop."""
        folder = self.site(name)
        (folder / "transfer").mkdir(exist_ok=True)
        arguments = ["-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(folder)]
        arguments += ["-s", f"fed_{kind}.json", "--set", "secure_train=true", *settings, "config_folder=config"]
        with (folder / "process.log").open("wb") as log:
            self._processes.start(name, arguments, log, subprocess.STDOUT)

    def _connected(self) -> Any:
        """An administrator's session, once all sites are registered."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session  # noqa: PLC0415  optional

        until = time.monotonic() + _PATIENCE
        while True:
            try:
                session = new_secure_session(_ADMIN, str(self.site(_ADMIN)), timeout=10.0)
                break
            except Exception as error:
                if time.monotonic() > until:
                    raise CvflError(f"FLARE's server does not answer: {error}") from None
                time.sleep(0.5)
        while {client.name for client in session.get_system_info().client_info} != set(self.names):
            if time.monotonic() > until:
                session.close()
                raise CvflError("not all sites have registered with FLARE's server")
            time.sleep(0.3)
        return session


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
