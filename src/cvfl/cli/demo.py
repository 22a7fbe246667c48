"""`cvfl demo`: four organisations, real data, the paper's compressors and `auto` side by side."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.display import RunBar, run_bars
from cvfl.cli.errors import one_line
from cvfl.cli.plot import Line, plot
from cvfl.cli.tables import results_table
from cvfl.cli.train import free_path
from cvfl.config.files import parse_config
from cvfl.federation.train import RunResult, train
from cvfl.report.format import MB

RUNS = {
    "none": "identity",
    "scalar b=2": "scalar:bits=2",
    "lattice b=2": "lattice:bits=2",
    "top-k b=2": "topk:bits=2",
    "auto": "auto",
}


def demo(
    out: Annotated[Path | None, typer.Option(help="Where to write; runs/demo when not given.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 20,
) -> None:
    """Train four organisations together: without compression, with the paper's three compressors, and with `auto`.

    Each holds a quarter of every handwritten digit of scikit-learn's data set and never shows it to the others.

    Example: cvfl demo --epochs 10 --seed 3
    """
    console = Console(highlight=False)
    with one_line():
        target = out or free_path(Path("runs") / "demo")
        console.print(
            "Hospital, bank, insurer and registry hold a quarter each of 1,797 digits.\n"
            "Every round they send what they make of a row, 16 numbers, then all take 10 local steps.\n",
            soft_wrap=True,
        )
        results = []
        with run_bars(console) as bars:
            for name, compressor in RUNS.items():
                config = parse_config(_settings(compressor, seed, epochs))
                folder = target / name.replace(" ", "-").replace("=", "")
                results.append(train(config, out=folder, name=name, on_round=RunBar(bars, name)))
                if not results[-1].summary["completed"]:
                    raise KeyboardInterrupt
        console.print(results_table([result.summary for result in results]))
        console.print(plot([_curve(result) for result in results], "MB in all (log)", "test accuracy"))
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        paths = [result.path for result in results if result.path]
        write_report(paths, target / "report.html", title="cvfl demo: four organisations, one model")
        console.print(f"\nreport: {target / 'report.html'}\n{_next(target)}", soft_wrap=True, markup=False)


def _next(target: Path) -> str:
    """What to do with one's own files, as it can be typed here."""
    cvfl = "cvfl" if shutil.which("cvfl") else sys.argv[0]  # an environment that nobody activated
    return (
        "next, with your own tables (CSV, Parquet, Excel):\n"
        f"  {cvfl} init federation.toml --party bank=bank.csv --party shop=shop.csv --id ID --label bank.Y\n"
        f"  {cvfl} train federation.toml --compare\n"
        f"  {cvfl} board {target}    (these runs in the browser; needs the extra `board`)"
    )


def _settings(compressor: str, seed: int, epochs: int) -> dict[str, object]:
    return {
        "data": {"name": "digits", "parties": 4},
        "step_size": {"eta": 0.1},
        "batch_size": 128,
        "local_iterations": 10,
        "epochs": epochs,
        "seed": seed,
        "compressor": compressor,
        "server_compressor": compressor if compressor in ("identity", "auto") else "scalar:bits=8",
    }


def _curve(result: RunResult) -> Line:
    evaluated = [line for line in result.history if "test" in line]
    sent = [sum(line["bytes"].values()) / MB for line in evaluated]
    return Line(result.summary["name"], sent, [line["test"]["accuracy"] for line in evaluated])
