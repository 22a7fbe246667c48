"""`cvfl certs`: certificates, by request or all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from cvfl.cli.errors import extra, one_line
from cvfl.errors import ConfigError

Hosts = Annotated[
    list[str] | None, typer.Option("--server", help="Host name or address of the server; repeat for more.")
]
Days = Annotated[int, typer.Option(min=1, max=36500, help="Days that certificates are valid.")]


class _MakesByDefault(TyperGroup):
    """`cvfl certs FOLDER ...` is `cvfl certs make FOLDER ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if known else ["make", *args])


certs = typer.Typer(cls=_MakesByDefault, add_completion=False)


@certs.callback()
def commands() -> None:
    """Make certificates: by request, so that nobody's key travels, or all at once on one machine.

    `make` may be left out.

    Example: cvfl certs request --party bank
    """


@certs.command()
def make(
    folder: Annotated[Path, typer.Argument(help="Folder for the certificates; an authority in it is used again.")],
    server: Hosts = None,
    party: Annotated[list[str] | None, typer.Option(help="Name of a party; repeat for more.")] = None,
    days: Days = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there, to renew it.")] = False,
) -> None:
    """Make a certificate authority and a certificate with its key for the server and for every party, on one machine.

    Give every role ca.crt and its own two files, and nobody ca.key: who has it can pretend to be any role.

    Example: cvfl certs make certs --server cvfl.example.org --party hospital --party bank
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


@certs.command()
def request(
    folder: Annotated[Path, typer.Argument(help="Folder for the key, which stays in it, and the request.")] = Path(
        "certs"
    ),
    server: Hosts = None,
    party: Annotated[str | None, typer.Option(help="Name of the party that this is.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Ask for a new certificate of the key that is there.")] = False,
) -> None:
    """Make this role's key, and a request for its certificate that goes to the authority.

    The authority signs it with `cvfl certs sign` and sends back a certificate and ca.crt, which belong into the same
    folder. Compare the fingerprint with the authority by another way than the one on which the request went.

    Example: cvfl certs request --party bank
    """
    console = Console(highlight=False, soft_wrap=True)
    with one_line():
        with extra("grpc"):
            from cvfl.runtime.grpc.requests import make_request  # noqa: PLC0415  an extra

        if bool(server) == bool(party):
            raise ConfigError("say who this is: --party NAME, or --server HOST")
        path, fingerprint = make_request(folder, server or [], party, renew)
        console.print(f"{path} goes to the authority, {path.with_suffix('.key')} to nobody")
        console.print(f"fingerprint of the key: {fingerprint}")


@certs.command()
def sign(
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="Requests, as the roles sent them.")],
    server: Hosts = None,
    party: Annotated[
        list[str] | None, typer.Option(help="Name of a party whose request this is to be; repeat for more.")
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Folder of the authority; it is made when there is none, certificates go there.")
    ] = Path("authority"),
    days: Days = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace a certificate that is there, to renew it.")] = False,
) -> None:
    """Sign requests, at the authority: those of the roles that are named here, and no other.

    Every role gets its certificate and ca.crt. Have each read the fingerprint of its key to you before you send them.

    Example: cvfl certs sign bank.csr hospital.csr --party bank --party hospital
    """
    console = Console(highlight=False, soft_wrap=True)
    with one_line():
        with extra("grpc"):
            from cvfl.runtime.grpc.requests import sign_requests  # noqa: PLC0415  an extra

        if not server and not party:
            raise ConfigError("say whose requests these are: --server HOST, --party NAME, or both")
        new = not (folder / "ca.crt").exists()
        signed = sign_requests(folder, requests, server or [], party or [], days, force)
        if new:
            console.print(f"{folder / 'ca.crt'}: a new authority, for everyone; {folder / 'ca.key'} is for nobody else")
        for path, fingerprint in signed:
            console.print(f"{path}  fingerprint of the key: {fingerprint}")
