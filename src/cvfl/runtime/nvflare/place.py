"""Where a job process finds and leaves things, and what it asks of the layer above: the role that it plays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cvfl.runtime.carrier import ServerEnd
from cvfl.runtime.nvflare.mailbox import PartyDuty


@dataclass(frozen=True)
class Place:
    """A job process: its site, and folders: the job's configuration, the site's own, the site, this job's results."""

    site: str
    config: Path
    local: Path
    root: Path
    results: Path


class ServerDuty(Protocol):
    """The server role, how long parties are waited for, and what is to be done when it is over."""

    @property
    def role(self) -> ServerEnd:
        """The role."""

    @property
    def limits(self) -> tuple[float, float]:
        """Seconds that a party may be out of reach, and that nothing may come from it which is due."""

    def finish(self) -> None:
        """Keep the results; the run is over."""

    def close(self) -> None:
        """Let go of what is open."""


class Roles(Protocol):
    """The component of a job that makes its roles."""

    def server(self, place: Place) -> ServerDuty:
        """The role of the server's job process."""

    def party(self, place: Place) -> PartyDuty:
        """The role of a site's job process."""

    def failed(self, place: Place, reason: str) -> None:
        """Keep at this site why the role stopped."""


def place_of(context: Any, site: str) -> Place:
    """The place of the job process with this FLARE context."""
    workspace, job = context.get_engine().get_workspace(), context.get_job_id()
    return Place(
        site,
        Path(workspace.get_app_config_dir(job)),
        Path(workspace.get_site_config_dir()),
        Path(workspace.get_root_dir()),
        Path(workspace.get_run_dir(job)),
    )
