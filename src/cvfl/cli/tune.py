"""`cvfl tune`: a search for the settings that do best on validation rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cvfl.cli.align import alignment_line
from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import extra, one_line
from cvfl.cli.tables import account_lines, number_table
from cvfl.config.files import load_config, write_changed
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.rows.keeping import alignment_folder
from cvfl.federation.rows.load import load_data
from cvfl.privacy.account import check_accountant
from cvfl.report.format import MB, brief, score, share

if TYPE_CHECKING:
    from cvfl.advise.tuning import Tried, Tuned

SHOWN = 10
"""Most trials in the table."""


def tune(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML), as `cvfl train` takes it.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, with those of an earlier call.")] = 30,
    out: Annotated[Path | None, typer.Option(help="Folder of the search; runs/NAME-tune when not given.")] = None,
    search: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Search this setting alone; repeat for more.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
) -> None:
    """Search model sizes, step size, Q, batch size, weight decay and compressor by the validation metric.

    Trials run in this process, on this machine alone: all tables must be here, or stand-ins for a rehearsal.

    The same command goes on after Ctrl-C. The best configuration is in best.toml; test rows are never looked at.

    Example: cvfl tune federation.toml --trials 40 --set data.validation_share=0.2 --search step_size.eta
    """
    console = Console(highlight=False, markup=False)
    with one_line():
        with extra("tune", "cvfl tune"):
            from cvfl.advise.tuning import Tuning  # noqa: PLC0415  an extra
        settings, changes = load_config(config, change or []), change or []
        _check(settings)
        target = out or Path("runs") / f"{config.stem}-tune"
        stopped = False
        with StepDisplay(console) as steps:
            loaded = load_data(settings, steps, alignment_folder(config))
            if loaded.aligned:
                console.print(alignment_line(loaded.aligned))
            tuning = Tuning(config, changes, loaded, target, search or [])
            try:
                tuning.run(
                    trials,
                    lambda number, at: steps(f"trial {number + 1} of {trials}", at.report.t0 + 1, at.rounds),
                    lambda tried: console.print(_line(tried, tuning.metric), soft_wrap=True),
                )
            except KeyboardInterrupt:
                stopped = True
        tuned = tuning.result()
        _show(console, tuned)
        if tuned.best:
            comment = f"By cvfl tune, the best of {len(tuned.tried)} trials: {_told(tuned.best, tuned.metric)}"
            write_changed(config, changes, tuned.best.keys, target / "best.toml", comment)
            console.print(f"{target / 'best.toml'}: {_told(tuned.best, tuned.metric)}", soft_wrap=True)
        if stopped:
            console.print(f"stopped after {len(tuned.tried)} trials; the same command goes on", soft_wrap=True)
            raise typer.Exit(130)
        if not tuned.best:
            raise ConfigError(f"no trial ran to its end; the first: {tuned.tried[0].error}")
        console.print(f"next: cvfl train {target / 'best.toml'}", soft_wrap=True)


def _check(settings: RunConfig) -> None:
    """Refuse what cannot be searched before tables are read."""
    if settings.data.name is not None:
        raise ConfigError(f"cvfl tune needs validation rows, and {settings.data.name} has none; it is for own tables")
    if not settings.data.validation_share:
        raise ConfigError("cvfl tune needs validation rows: set data.validation_share, such as 0.2")
    check_accountant(settings.privacy.noise)


def _line(tried: Tried, metric: str) -> str:
    """A trial that has just ended."""
    outcome = tried.error or ("stopped early" if tried.pruned else f"{metric} {score(tried.value or 0.0)}")
    return f"trial {tried.number + 1}: {outcome}; {_spelled(tried.settings)}"


def _told(best: Tried, metric: str) -> str:
    return f"validation {metric} {score(best.value or 0.0)}; {_spelled(best.settings)}"


def _spelled(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in settings.items()) or "as configured"


def _show(console: Console, tuned: Tuned) -> None:
    """The best trials, which settings matter, and what all trials cost."""
    if tuned.best:
        console.print(best_table(tuned))
    for line in _notes(tuned):
        console.print(line, soft_wrap=True)


def best_table(tuned: Tuned) -> Table:
    """A row a trial that ran to its end, the best first."""
    table = number_table("trial", f"validation\n{tuned.metric}", "MB", "seconds", padding=(0, 1, 0, 0))
    table.add_column("changed")
    for tried in tuned.tried[:SHOWN]:
        if tried.value is not None:
            cells = (score(tried.value), brief(tried.bytes / MB), brief(tried.seconds))
            table.add_row(
                str(tried.number + 1), *cells, _spelled(tried.settings), style="bold" if tried is tuned.best else ""
            )
    return table


def _notes(tuned: Tuned) -> Iterator[str]:
    pruned, failed = sum(one.pruned for one in tuned.tried), sum(bool(one.error) for one in tuned.tried)
    if tuned.importance:
        yield "what matters: " + ", ".join(f"{key} {share(value)}" for key, value in tuned.importance.items())
    parts = [f"{count} {what}" for count, what in ((pruned, "stopped early"), (failed, "failed")) if count]
    told = f" ({', '.join(parts)})" if parts else ""
    yield f"{len(tuned.tried)} trials{told} would send {brief(tuned.bytes / MB)} MB between machines"
    if tuned.account:
        yield "all of them together would spend:"
        yield from account_lines(tuned.account)
