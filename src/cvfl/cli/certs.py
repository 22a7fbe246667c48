"""`cvfl certs`: an authority and one certificate a role."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.errors import extra, one_line
from cvfl.errors import ConfigError


def certs(
    folder: Annotated[Path, typer.Argument(help="Folder for the certificates; an authority in it is used again.")],
    server: Annotated[
        list[str] | None, typer.Option(help="Host name or address of the server; repeat for more.")
    ] = None,
    party: Annotated[list[str] | None, typer.Option(help="Name of a party; repeat for more.")] = None,
    days: Annotated[int, typer.Option(min=1, max=36500, help="Days that certificates are valid.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there, to renew it.")] = False,
) -> None:
    """Make a certificate authority and a certificate for the server and for every party.

    Give every role ca.crt and its own two files, and nobody ca.key: who has it can pretend to be any role.

    Example: cvfl certs certs --server cvfl.example.org --party hospital --party bank
    """
    console = Console(highlight=False)
    with one_line():
        with extra("grpc"):
            from cvfl.runtime.grpc.certificates import make_certificates  # noqa: PLC0415  an extra

        if not server and not party:
            raise ConfigError("say for whom: --server HOST, --party NAME, or both")
        for path in make_certificates(folder, server or [], party or [], days, force):
            console.print(str(path))
        console.print(f"{folder / 'ca.crt'} is for everyone, {folder / 'ca.key'} for nobody else")
