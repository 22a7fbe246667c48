"""`cvfl nvflare-job` and `cvfl nvflare-site`: a run as a job of NVIDIA FLARE, and a site that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.errors import one_line
from cvfl.config.files import load_config
from cvfl.federation.nvflare import CLASSES, SITE_FILE, write_job
from cvfl.runtime.nvflare.provisioned import allow


def nvflare_job(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML).")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the job, to be made.")],
    name: Annotated[str | None, typer.Option(help="Name of the run; a job of the same name goes on with it.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
) -> None:
    """Write a job that a provisioned NVIDIA FLARE federation accepts; its sites have the parties' names.

    The job tells the terms of the run and the parties' names. Tables, labels and paths stay out of it: each site
    has them in its own file. docs/nvflare.md says how.

    Example: cvfl nvflare-job federation.toml job
    """
    console = Console(highlight=False)
    with one_line():
        settings = load_config(config, change or [])
        names = write_job(settings, name or config.stem, out)
        console.print(f"{out}: a job for the sites {', '.join(names)}")
        if settings.data.name is None:
            console.print(f"each site needs its section [party.NAME] in local/{SITE_FILE}")


def nvflare_site(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="Folder of the site or of the server.")],
) -> None:
    """Let a provisioned FLARE site or server run cvfl's jobs: FLARE builds only the classes that a site lists.

    Example: cvfl nvflare-site /opt/flare/hospital
    """
    with one_line():
        path = allow(folder, CLASSES)
        Console(highlight=False).print(f"{path}: cvfl's jobs are allowed; restart the site")
