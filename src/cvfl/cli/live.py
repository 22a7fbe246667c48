"""What `cvfl train` and `cvfl server` tell while a run goes on: its status, and a board if there is to be one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cvfl.cli.errors import extra
from cvfl.cli.observers import Observer
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.runs.progress import Progress
from cvfl.runs.status import StatusFile, status_kept
from cvfl.runtime.address import bound
from cvfl.runtime.carrier import ServerEnd

_USUAL, _ANY = "127.0.0.1:8080", "127.0.0.1:0"
BoardAt = Annotated[
    str | None,
    typer.Option("--board", metavar="HOST:PORT", help="Show the run in the browser meanwhile, as `cvfl board` does."),
]
BoardToken = Annotated[Path | None, typer.Option(help="With --board: file with the token that whoever looks gives.")]


class Recorded(Observer):
    """Passes on what it hears to another observer, and keeps the status of the run."""

    def __init__(self, seen: Observer, status: StatusFile) -> None:
        self._seen, self.status = seen, status

    def step(self, step: str, done: int, total: int) -> None:
        """Something before the first round goes on."""
        self._seen.step(step, done, total)
        self.status.tell("preparing", step=f"{step} {done / total:.0%}" if total and done else step)

    def wait(self, who: str, seconds: float) -> None:
        """Somebody is waited for."""
        self._seen.wait(who, seconds)
        self.status.tell("waiting")

    def event(self, event: str, **values: Any) -> None:
        """Something happened."""
        self._seen.event(event, **values)

    def round(self, progress: Progress) -> None:
        """A round is over."""
        self._seen.round(progress)
        super().round(progress)
        self.status.round(progress)

    def look(self, role: ServerEnd) -> None:
        """Who is connected to a server, and who owes it a message."""
        names: Sequence[str] = role.names
        self.status.look(names, role.missing, {names[m - 1]: heard for m, heard in role.awaited.items()})


@contextmanager
def recorded(seen: Observer, target: Path, config: RunConfig, journal: Path | None = None) -> Iterator[Recorded]:
    """Keep the status of the run that will be at `target`; `journal` is where its lines are until then."""
    with status_kept(target, config.model_dump(mode="json"), journal) as status:
        yield Recorded(seen, status)


@contextmanager
def shown(target: Path, address: str | None, token: Path | None, seen: Observer) -> Iterator[None]:
    """Serve the board of the folder of a run while it goes on, if there is an address."""
    if address is None:
        if token is not None:
            raise ConfigError("--board-token is for --board")
        yield
        return
    with extra("board", "--board"):
        from cvfl.board.guard import read_token  # noqa: PLC0415  an extra
        from cvfl.board.listen import beside  # noqa: PLC0415
    with beside(target.parent, address, read_token(token)) as url:
        seen.event("board", url=url)
        yield


def usual_address() -> str:
    """Where the board of `cvfl train` is: at its usual port or, if another process is there, at any."""
    try:
        bound(_USUAL, "--board").close()
    except ConfigError:
        return _ANY
    return _USUAL
