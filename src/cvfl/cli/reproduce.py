"""`cvfl reproduce` and `cvfl report`: the paper's studies, and their tables and figures from recorded runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cvfl.cli.display import Pace, print_line
from cvfl.cli.errors import one_line
from cvfl.errors import ConfigError, DataError
from cvfl.runs.read import read_run
from cvfl.studies import latency
from cvfl.studies.origin import Machine, Origin
from cvfl.studies.run import run_all
from cvfl.studies.study import Suite, Task, all_tasks, load, member_text, study_names, study_text


def reproduce(
    study: Annotated[str, typer.Argument(help="A study or a suite by name, or a TOML file; `list` shows them.")],
    preset: Annotated[str, typer.Option(help="cpu: hours on two cores; paper: the paper's exact setting.")] = "cpu",
    data: Annotated[Path, typer.Option(help="Folder of data sets, as `cvfl data fetch` fills it.")] = Path("data"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; the preset's when not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; results/STUDY-PRESET by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder already.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs side by side; one a core by default.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster instead: one run a task.")
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="In a study of latency: time rounds over gRPC on this machine as well.")
    ] = True,
) -> None:
    """Run a study: every compressor, several seeds; leave tables, figures and a report.

    A suite runs the same compressors in several studies and puts them into one table.
    Ctrl-C loses at most half a minute of each run; --resume goes on.

    Example: cvfl reproduce physionet2012 --preset cpu --seeds 1
    """
    console = Console(highlight=False)
    if study == "list":
        for name in study_names():
            found = load(name)
            console.print(f"{name:<15} {found.title}: {found.paper}")
        return
    with one_line():
        chosen = load(study)
        target = out or Path("results") / f"{Path(study).stem}-{preset}"
        if target.exists() and any(target.iterdir()) and not resume:
            raise ConfigError(f"{target} has results already; use --resume to go on, or another --out")
        everything = all_tasks(chosen, preset, seeds, data, target)
        todo = [task for task in everything if not task.complete]
        console.print(f"{chosen.title}: {len(everything)} runs, {len(everything) - len(todo)} complete")
        runner = _runner(ray, workers or os.cpu_count() or 1, target) if todo else None
        origin = Origin(preset, _command(study, preset, _seeds(everything)), ())
        _note(study, origin, chosen, target, {task.folder for task in todo if ray is None})
        if runner:
            _run(console, todo, runner)
        for name, member in chosen.members.items():
            if measure and member.table == "latency":
                own = [task for task in everything if task.member == name]
                latency.measure(own, target / name, partial(_timing, console))
        from cvfl.studies.results import read_results  # noqa: PLC0415  matplotlib is slow to load

        results = read_results(
            chosen, [task.out for task in everything], target, lambda folder: Origin.read(folder) or origin
        )
        results.write(target)
        results.write_html(target / "report.html")
        _show(console, (table.markdown() for table in results.tables))
        inside = [f"{name or 'runs'}/" for name in chosen.members]
        console.print(f"{target}: {', '.join(['tables.md', 'report.html', 'figures/', *inside])}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold them.")],
    out: Annotated[Path | None, typer.Option(help="HTML file to write; report.html by default.")] = None,
    study: Annotated[
        str | None, typer.Option(help="The study that they belong to; by default what the folder says.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="The preset whose target the tables take.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the study's figures as SVG to this folder.")] = None,
    publish: Annotated[
        Path | None, typer.Option(help="Write small records, tables and figures to this folder, to be committed.")
    ] = None,
) -> None:
    """Write report, tables and figures of recorded runs, without training.

    Example: cvfl report results/physionet2012-cpu --publish docs/results/physionet2012
    """
    console = Console(highlight=False)
    with one_line():
        found = sorted(path.parent for run in runs for path in run.rglob("summary.json"))
        if not found:
            raise DataError(f"{runs[0]}: there is no run directory (with a summary.json)")
        source = next((folder for folder in runs if (folder / "study.toml").exists()), runs[0])
        name = study or (str(source / "study.toml") if (source / "study.toml").exists() else None)
        html = out or (None if figures or publish else Path("report.html"))
        if name is None:
            if figures or publish or html is None:
                raise ConfigError("--figures and --publish are for a study; name it by --study")
            from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

            write_report(found, html)
        else:
            from cvfl.studies.figures import write_figures  # noqa: PLC0415  matplotlib is slow to load
            from cvfl.studies.results import read_results  # noqa: PLC0415

            seeds = len({read_run(path).seed for path in found})
            results = read_results(load(name), found, source, partial(_origin, name, preset, seeds))
            _show(console, (table.markdown() for table in results.tables))
            if figures:
                write_figures(results.figures, figures)
            if publish:
                results.publish(study_text(name), publish)
            if html:
                results.write_html(html)
        for written in (html, figures, publish):
            if written:
                console.print(str(written))


def _show(console: Console, tables: Iterable[str]) -> None:
    for text in tables:
        console.print(text, markup=False, soft_wrap=True)


_Runner = Callable[[list[Task], Callable[[], None]], Generator[Task, None, None]]


def _runner(address: str | None, workers: int, out: Path) -> _Runner:
    """What runs tasks: processes of this machine, or a cluster."""
    if address is None:
        return lambda todo, tick: run_all(todo, workers, tick)
    from cvfl.studies.ray_cluster import connected, run_on_ray  # noqa: PLC0415  few need it

    ray = connected(address)
    return lambda todo, tick: run_on_ray(ray, todo, tick, lambda task, machine: _ran_on(machine, {task.folder, out}))


def _ran_on(machine: Machine, folders: set[Path]) -> None:
    for folder in folders:
        if known := Origin.read(folder):
            known.on(*known.machines, machine).write(folder)


def _run(console: Console, todo: list[Task], runner: _Runner) -> None:
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=12),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    pace = Pace()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        overall = bars.add_task("all runs", total=len(todo))
        shown: dict[int, TaskID] = {}

        def tick() -> None:
            shares = [task.share for task in todo]
            bars.update(overall, completed=sum(shares))
            if bars.disable and pace.due():
                print_line(console, f"all runs {sum(shares) / len(todo):.0%}")
            for n, (task, share) in enumerate(zip(todo, shares, strict=True)):
                if 0 < share < 1 and n not in shown:
                    shown[n] = bars.add_task(task.label, total=1.0)
                if n in shown:
                    bars.update(shown[n], completed=share, visible=share < 1)

        # Closed here, and not when it is forgotten, so that runs end also if Ctrl-C comes between two of its steps.
        with closing(runner(todo, tick)) as complete:
            for task in complete:
                bars.console.print(f"{task.label}: complete")
        tick()


def _timing(console: Console, cell: str, ms: int) -> None:
    console.print(f"{cell}: timing rounds over gRPC, {ms} ms a round trip")


def _note(study: str, origin: Origin, chosen: Suite, out: Path, here: set[Path]) -> None:
    """Write down what is run, and whether it is on this machine; runs that are older than that are taken to be."""
    texts = {out / name: member_text(member) for name, member in chosen.members.items()} | {out: study_text(study)}
    for folder, text in texts.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.toml").write_text(text, encoding="utf-8")
        known = Origin.read(folder)
        own = folder in here or (folder == out and bool(here)) or not known
        origin.on(*(known.machines if known else ()), *([Machine.this()] if own else [])).write(folder)


def _command(study: str, preset: str, seeds: int | None) -> str:
    return f"cvfl reproduce {Path(study).name} --preset {preset}" + (f" --seeds {seeds}" if seeds else "")


def _seeds(everything: Sequence[Task]) -> int | None:
    """The number of seeds, if it is the same in all studies."""
    members = {task.member for task in everything}
    counts = {len({task.seed for task in everything if task.member == name}) for name in members}
    return counts.pop() if len(counts) == 1 else None


def _origin(study: str, preset: str | None, seeds: int, folder: Path) -> Origin:
    """What the folder says; of runs that are older than that, this machine is taken for theirs."""
    known = Origin.read(folder)
    if known and preset in (None, known.preset):
        return known
    chosen = preset or "cpu"
    return Origin(chosen, _command(study, chosen, seeds), known.machines if known else (Machine.this(),))
