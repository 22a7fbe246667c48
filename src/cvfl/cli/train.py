"""`cvfl train`: one run from a configuration file."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.advise.references import add_references, fit_references
from cvfl.cli.align import alignment_line
from cvfl.cli.errors import one_line
from cvfl.cli.live import recorded, shown, usual_address
from cvfl.cli.observers import Observer, observed, replay
from cvfl.cli.role import MLflow, TensorBoard
from cvfl.cli.tables import (
    budget_lines,
    label_lines,
    noise_lines,
    references_table,
    results_table,
    start_lines,
    step_size_lines,
)
from cvfl.cli.tracking import tracked
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.nvflare_simulator import train_nvflare
from cvfl.federation.processes import train_grpc
from cvfl.federation.rows.keeping import alignment_folder
from cvfl.federation.rows.load import Loaded, load_data
from cvfl.federation.start import Start
from cvfl.federation.train import train as run
from cvfl.report.references import gained
from cvfl.runs.directory import RunDirectory, is_under_way
from cvfl.runs.record import Summary
from cvfl.serving.bundles import start_from


class Runtime(StrEnum):
    """What carries the messages."""

    INPROCESS = "inprocess"
    GRPC = "grpc"
    NVFLARE = "nvflare"


def train(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML).")],
    out: Annotated[Path | None, typer.Option(help="Run directory to write; runs/NAME-SEED when not given.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
    runtime: Annotated[
        Runtime, typer.Option(help="In this process, as processes over gRPC, or on FLARE.")
    ] = Runtime.INPROCESS,
    emulate_latency: Annotated[
        float, typer.Option(min=0, metavar="MS", help="With --runtime grpc: add this round-trip time to the way.")
    ] = 0.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped: that of --out, or the newest.")
    ] = False,
    from_run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Start from the models of this run: new rows, the same columns."),
    ] = None,
    align_again: Annotated[
        bool, typer.Option("--align-again", help="Compare all ids, also when an earlier alignment is kept.")
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Print JSON lines instead of a live display.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also fit usual models to the joined table and to each party's alone.")
    ] = False,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    board: Annotated[
        bool, typer.Option("--board", help="Show the run in the browser meanwhile, as `cvfl board` does.")
    ] = False,
) -> None:
    """Train a federation on this machine and write its run directory; every runtime gives the same result.

    Example: cvfl train examples/digits.toml --set compressor=scalar:bits=2 --set seed=7 --out runs/scalar-7
    Example: cvfl train examples/digits.toml --board
    Example: cvfl train may.toml --from runs/april-0
    Example: cvfl train may.toml --from runs/april-0 --runtime grpc
    """
    console = Console(highlight=False)
    with one_line():
        settings = load_config(config, change or [])
        _check_runtime(runtime, emulate_latency, resume)
        start = _start(from_run, settings)
        usual = Path("runs") / f"{config.stem}-{settings.seed}"
        target = out or (_stopped(usual) if resume else free_path(usual))
        RunDirectory(target, resume, start.told if start else None).check(settings)  # refused now, not after alignment
        with ExitStack() as stack:
            seen: Observer = stack.enter_context(observed(console, config.stem, log_json, tensorboard))
            tracking = stack.enter_context(tracked(mlflow, target.name, settings, seen))
            stack.enter_context(shown(target, usual_address() if board else None, None, seen))
            if runtime is not Runtime.GRPC:  # else the server's process tells
                seen = told = stack.enter_context(recorded(seen, target, settings))
            if align_again:
                shutil.rmtree(alignment_folder(config), ignore_errors=True)
            here = runtime is Runtime.INPROCESS or compare
            loaded = _loaded(config, settings, seen, start) if here else None
            references = fit_references(loaded.truth, settings.seed, seen.step) if compare and loaded else []
            match runtime:
                case Runtime.INPROCESS:
                    summary = run(
                        settings,
                        loaded,
                        out=target,
                        on_round=seen.round,
                        resume=resume,
                        on_step=seen.step,
                        start=start,
                    ).summary
                    told.status.over = "finished" if summary["completed"] else "stopped"
                case Runtime.NVFLARE:
                    summary = train_nvflare(settings, target, config.stem, seen.round, start).summary
                case Runtime.GRPC:
                    summary = train_grpc(config, change or [], target, partial(replay, seen), emulate_latency, start)
            if references:
                summary = add_references(target, references)
            if tracking:
                tracking.finish(target, summary)
        if log_json:
            return
        lines = (
            *start_lines(summary),
            *step_size_lines(summary),
            *budget_lines(summary),
            *noise_lines(summary),
            *label_lines(summary),
        )
        console.print(results_table([summary]), *lines, sep="\n")
        if references:
            console.print(references_table(summary))
            console.print(gained(Summary.model_validate(summary)), soft_wrap=True)
        if "kept" in summary:
            ending = (
                f"ended after round {summary['rounds']}; models are those of round {summary['kept'] + 1}, the best on"
            )
            console.print(f"{ending} validation rows", soft_wrap=True)
        console.print(f"{target}: summary.json, metrics.jsonl, report.html")
        if not summary["completed"]:
            again = f"--resume --out {target}" + (f" --from {from_run}" if from_run else "")
            console.print(
                f"stopped after {summary['rounds']} rounds; go on with: cvfl train {config} {again}",
                soft_wrap=True,
            )
            raise typer.Exit(130)


def _check_runtime(runtime: Runtime, emulate_latency: float, resume: bool) -> None:
    """What a runtime does not have."""
    if emulate_latency and runtime is not Runtime.GRPC:
        raise ConfigError("--emulate-latency needs --runtime grpc: in one process nothing travels")
    if resume and runtime is not Runtime.INPROCESS:
        raise ConfigError("--resume is for runs in one process; `cvfl server` and `cvfl party` go on by themselves")


def _start(run: Path | None, settings: RunConfig) -> Start | None:
    """The models to start from, if a run is named; those of another kind are refused now, not after alignment."""
    if run is None:
        return None
    start = start_from(run)
    start.check(settings)
    return start


def _loaded(config: Path, settings: RunConfig, seen: Observer, start: Start | None) -> Loaded:
    """The rows, and what there is to say of how they were found."""
    loaded = load_data(settings, seen.step, alignment_folder(config), start)
    for note in (*loaded.notes, *filter(None, [loaded.label])):
        seen.event(note)
    if loaded.aligned:
        seen.event(alignment_line(loaded.aligned))
    return loaded


def _stopped(path: Path) -> Path:
    """The newest of path, path-2, path-3, ... whose run was stopped."""
    found = [one for one in path.parent.glob(f"{path.name}*") if is_under_way(one)]
    if not found:
        raise ConfigError(f"--resume: no run {path} was stopped; name its directory with --out")
    return max(found, key=lambda one: one.stat().st_mtime)


def free_path(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    candidates = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(candidate for candidate in candidates if not candidate.exists())
