"""The command line: one file a verb."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cvfl import __version__
from cvfl.cli.align import align
from cvfl.cli.audit import audit
from cvfl.cli.bench import bench
from cvfl.cli.certs import certs
from cvfl.cli.data import data
from cvfl.cli.demo import demo
from cvfl.cli.init import init
from cvfl.cli.model import model
from cvfl.cli.nvflare_job import nvflare_job, nvflare_site
from cvfl.cli.plan import plan
from cvfl.cli.predict import predict
from cvfl.cli.reproduce import report, reproduce
from cvfl.cli.roles import party, server
from cvfl.cli.serve import serve
from cvfl.cli.terms import terms
from cvfl.cli.theory import theory
from cvfl.cli.train import train
from cvfl.cli.tune import tune

app = typer.Typer(
    name="cvfl",
    epilog="Example: cvfl demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cvfl {__version__}")
        raise typer.Exit


@app.callback()
def cvfl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one model across organisations that hold different columns about the same people."""


_ROLES = (terms, server, party, certs, nvflare_job, nvflare_site)
for _command in (demo, init, plan, tune, train, predict, serve, align, *_ROLES, reproduce, report, audit, theory):
    app.command()(_command)
app.add_typer(data, name="data")
app.add_typer(model, name="model")
app.add_typer(bench, name="bench")


def main() -> None:
    """Entry point of the `cvfl` command; what it writes is for its user alone."""
    os.umask(0o077)
    app()
