"""`cvfl train`: one run from a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.align import alignment_line
from cvfl.cli.display import RunDisplay, StepDisplay
from cvfl.cli.errors import one_line
from cvfl.cli.tables import results_table
from cvfl.experiments.config import load_config
from cvfl.experiments.loading import load_data
from cvfl.experiments.run import train as run


def train(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML).")],
    out: Annotated[Path | None, typer.Option(help="Run directory to write; runs/NAME-SEED when not given.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
) -> None:
    """Train a federation in this process and write its run directory.

    Example: cvfl train examples/digits.toml --set compressor=scalar:bits=2 --set seed=7 --out runs/scalar-7
    """
    console = Console()
    with one_line():
        settings = load_config(config, change or [])
        target = out or free_path(Path("runs") / f"{config.stem}-{settings.seed}")
        with StepDisplay(console) as steps:
            loaded = load_data(settings, steps)
        if loaded.aligned:
            console.print(alignment_line(loaded.aligned), highlight=False)
        with RunDisplay(console).shown() as display:
            result = run(settings, loaded, out=target, on_round=display.bar(config.stem))
        console.print(results_table([result.summary]))
        console.print(f"{target}: summary.json, metrics.jsonl, report.html", highlight=False)
        if not result.summary["completed"]:
            console.print(f"stopped after {result.summary['rounds']} rounds", highlight=False)
            raise typer.Exit(130)


def free_path(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    candidates = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(candidate for candidate in candidates if not candidate.exists())
