"""`cvfl board`: a page in the browser about runs, also those that are under way."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.display import print_line
from cvfl.cli.errors import extra, one_line
from cvfl.errors import ConfigError

USUAL = Path("runs")


def board(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, or the directory of one.")] = USUAL,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine it needs --token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 8080,
    token: Annotated[Path | None, typer.Option(help="File with the token that whoever looks has to give.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser of this machine.")] = False,
) -> None:
    """Show runs in the browser: follow those under way, compare any of them.

    The page reads run directories and changes nothing. It needs no network, only this machine reaches it
    unless --host says so.

    Example: cvfl board runs --port 8080
    """
    console = Console(highlight=False)
    with one_line():
        with extra("board"):
            from cvfl.board.guard import read_token  # noqa: PLC0415  an extra
            from cvfl.board.listen import listen  # noqa: PLC0415
        check_folder(runs)

        def started(url: str) -> None:
            print_line(console, f"{url}  (Ctrl-C ends it)")
            if open_:
                webbrowser.open(url)

        listen(runs, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", read_token(token), started)


def check_folder(runs: Path) -> None:
    """Refuse a folder that is not there; the usual one may come with the first run."""
    if runs.exists() and not runs.is_dir():
        raise ConfigError(f"{runs} is a file; name a folder of runs")
    if not runs.exists() and runs != USUAL:
        raise ConfigError(f"{runs}: no such folder; name one that has runs, or train one with: cvfl train CONFIG")
