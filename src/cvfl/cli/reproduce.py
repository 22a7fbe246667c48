"""`cvfl reproduce` and `cvfl report`: the paper's studies, and their tables and figures from recorded runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cvfl.cli.errors import one_line
from cvfl.errors import ConfigError, DataError
from cvfl.experiments.study import Study, Task, load_study, run_all, study_names, tasks


def reproduce(
    study: Annotated[str, typer.Argument(help="A study by name, or a TOML file; `list` shows the names.")],
    preset: Annotated[str, typer.Option(help="cpu: hours on two cores; paper: the paper's exact setting.")] = "cpu",
    data: Annotated[Path, typer.Option(help="Folder of data sets, as `cvfl data fetch` fills it.")] = Path("data"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; the preset's when not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; results/STUDY-PRESET by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder already.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs side by side; one a core by default.")] = None,
) -> None:
    """Run a study of the paper: every compressor, several seeds; leave tables, figures and a report.

    Ctrl-C loses at most half a minute of each run; --resume goes on.

    Example: cvfl reproduce physionet2012 --preset cpu --seeds 1
    """
    console = Console()
    if study == "list":
        for name in study_names():
            found = load_study(name)
            console.print(f"{name:<15} {found.title}: {found.paper}", highlight=False)
        return
    with one_line():
        chosen = load_study(study)
        target = out or Path("results") / f"{Path(study).stem}-{preset}"
        if target.exists() and any(target.iterdir()) and not resume:
            raise ConfigError(f"{target} has results already; use --resume to go on, or another --out")
        everything = tasks(chosen, preset, seeds, data, target)
        todo = [task for task in everything if not task.complete]
        console.print(
            f"{chosen.title}: {len(everything)} runs, {len(everything) - len(todo)} complete", highlight=False
        )
        if todo:
            _run(console, todo, workers or os.cpu_count() or 1)
        _report(console, chosen, preset, [task.out for task in everything], target)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    study: Annotated[str | None, typer.Option(help="Print this study's table as well.")] = None,
    preset: Annotated[str, typer.Option(help="The preset whose target the table takes.")] = "cpu",
) -> None:
    """Write the report of recorded runs, without training.

    Example: cvfl report results/physionet2012-cpu --study physionet2012 --out physionet2012.html
    """
    console = Console()
    with one_line():
        found = sorted(path.parent for run in runs for path in run.rglob("summary.json"))
        if not found:
            raise DataError(f"{runs[0]}: there is no run directory (with a summary.json)")
        from cvfl.experiments.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report(found, out, load_study(study).title if study else None)
        if study:
            console.print(_tables(load_study(study), preset, found), markup=False, highlight=False)
        console.print(str(out), highlight=False)


def _run(console: Console, todo: list[Task], workers: int) -> None:
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=12),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        overall = bars.add_task("all runs", total=len(todo))
        shown: dict[int, TaskID] = {}

        def tick() -> None:
            shares = [task.share for task in todo]
            bars.update(overall, completed=sum(shares))
            for n, (task, share) in enumerate(zip(todo, shares, strict=True)):
                if 0 < share < 1 and n not in shown:
                    shown[n] = bars.add_task(f"{task.cell} seed {task.seed}", total=1.0)
                if n in shown:
                    bars.update(shown[n], completed=share, visible=share < 1)

        for task in run_all(todo, workers, tick):
            bars.console.print(f"{task.cell}, seed {task.seed}: complete", highlight=False)
        tick()


def _report(console: Console, study: Study, preset: str, runs: Sequence[Path], out: Path) -> None:
    from cvfl.experiments.report import write_report  # noqa: PLC0415  matplotlib is slow to load

    text = _tables(study, preset, runs)
    scaled = study.preset[preset].scaled
    about = f"# {study.title}\n\n{study.paper}. Preset {preset}{': ' + scaled if scaled else ''}.\n\n"
    (out / "tables.md").write_text(about + text, encoding="utf-8")
    write_report(list(runs), out / "report.html", study.title)
    console.print(text, markup=False, highlight=False)
    console.print(f"{out}: tables.md, report.html, runs/", highlight=False)


def _tables(study: Study, preset: str, runs: Sequence[Path]) -> str:
    from cvfl.experiments.recorded import read_run  # noqa: PLC0415
    from cvfl.experiments.study_table import study_tables  # noqa: PLC0415

    return study_tables(study, study.preset[preset], [read_run(path) for path in runs])
