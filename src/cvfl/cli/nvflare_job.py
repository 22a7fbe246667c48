"""`cvfl nvflare-job` and `cvfl nvflare-site`: a run as a job of NVIDIA FLARE, and a site that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.errors import one_line
from cvfl.config.files import load_config
from cvfl.errors import ConfigError
from cvfl.federation.nvflare import CLASSES, ROLES, SITE_FILE, START_ROLES, write_job
from cvfl.runtime.nvflare.provisioned import allow
from cvfl.serving.nvflare import write_prediction_job


def nvflare_job(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML).")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the job, to be made.")],
    name: Annotated[str | None, typer.Option(help="Name of the run; a job of the same name goes on with it.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Train on from the models of an earlier run that the sites have.")
    ] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Score new rows with the models that the sites have, instead of training.")
    ] = False,
) -> None:
    """Write a job that a provisioned NVIDIA FLARE federation accepts; its sites have the parties' names.

    The job tells the terms of the run and the parties' names. Tables, labels and paths stay out of it: each site
    has them in its own file. docs/nvflare.md says how. With --start or --predict sites use models that they have:
    which ones, on which rows, and where scores go is in their own files, too.

    Example: cvfl nvflare-job federation.toml job
    Example: cvfl nvflare-job federation.toml scores --predict
    Example: cvfl nvflare-job may.toml job --start
    """
    console = Console(highlight=False, markup=False)
    with one_line():
        settings = load_config(config, change or [])
        if start and predict:
            raise ConfigError("--predict trains nothing, so that it starts from nothing; leave --start out")
        if predict:
            names = write_prediction_job(settings, name or f"{config.stem}-predict", out)
        else:
            names = write_job(settings, name or config.stem, out, START_ROLES if start else ROLES)
        console.print(f"{out}: a job for the sites {', '.join(names)}")
        if start or predict:
            kind = "start" if start else "predict"
            console.print(f"each site needs its section [{kind}.NAME] in local/{SITE_FILE}, the server [{kind}.server]")
        if settings.data.name is None and not predict:
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
