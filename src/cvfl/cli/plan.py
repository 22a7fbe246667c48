"""`cvfl plan`: which compressor and how many local iterations suit a federation and its network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cvfl.advise.candidates import CANDIDATES, LOCAL_ITERATIONS, NONE, candidate, fixed_Q
from cvfl.advise.forecast import Forecast, Network
from cvfl.advise.judge import Advice, Row, advise
from cvfl.advise.trials import Effort, OnWork
from cvfl.cli.align import alignment_line
from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import one_line
from cvfl.cli.tables import number_table
from cvfl.config.files import load_config, write_changed
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.rows.keeping import alignment_folder
from cvfl.federation.rows.load import load_data
from cvfl.report.format import MB, brief, share, shares


def plan(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML), as `cvfl train` takes it.")],
    bandwidth: Annotated[
        float, typer.Option(min=0.001, metavar="MBIT/S", help="Of the server's link, each way.")
    ] = 100.0,
    latency: Annotated[float, typer.Option(min=0, metavar="MS", help="Of a message, one way.")] = 20.0,
    tolerance: Annotated[
        float, typer.Option(min=0, max=0.5, help="How far a candidate may be behind no compression, as a share.")
    ] = 0.01,
    out: Annotated[Path | None, typer.Option(help="Write the recommended configuration to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Length of the calibration at the configured Q.")] = 3,
    seconds: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="About the most that all of the calibration takes.")
    ] = None,
    compressor: Annotated[
        list[str] | None, typer.Option(metavar="SPEC", help="Try this instead of the usual ones; repeat for more.")
    ] = None,
    local: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="Q", help="Try this Q; repeat for more.", show_default="1, 5, 10, 25"),
    ] = None,
) -> None:
    """Recommend compressor and local iterations (Q) for your network, with the bytes and the time to expect.

    Candidates are tried for a few epochs on the real data, in this process. The first to learn as much as none wins.

    docs/plan.md says how, and what a short trial cannot know.

    Example: cvfl plan examples/digits.toml --bandwidth 20 --latency 30 --tolerance 0.01 --out planned.toml
    """
    console = Console(highlight=False, markup=False)
    with one_line():
        if out and out.exists() and not force:
            raise ConfigError(f"{out} exists already; choose another name or use --force")
        settings = load_config(config, change or [])
        candidates = [candidate(spec) for spec in compressor or []] or CANDIDATES
        network = Network(bandwidth * 1e6, latency / 1e3)
        with StepDisplay(console) as steps:
            loaded = load_data(settings, steps, alignment_folder(config))
            effort, tried = Effort(epochs, seconds), local or LOCAL_ITERATIONS
            on_work: OnWork = lambda done, total: steps("trying candidates", done, total)  # noqa: E731
            advice = advise(settings, loaded, network, tolerance, effort, candidates, tried, on_work=on_work)
        if loaded.aligned:
            console.print(alignment_line(loaded.aligned))
        for line in (advice_table(advice, tolerance), *_notes(advice, settings)):
            console.print(line)
        if not advice.complete:
            console.print(f"stopped; the best of {len(advice.rows)} tried: {_told(advice)}")
            raise typer.Exit(130)
        console.print(f"recommended: {_told(advice)}")
        if out:
            comment = f"By cvfl plan for {bandwidth:g} Mbit/s and {latency:g} ms: {_told(advice)}"
            keys = {**advice.best.keys, **{f"party.{name}.compressor": None for name in settings.party}}
            write_changed(config, change or [], keys, out, comment)
            console.print(f"{out}: the configuration\nnext: cvfl train {out}")


def advice_table(advice: Advice, tolerance: float) -> Table:
    """A row a setting, by Q; the recommended one in bold."""
    caption = f"predicted: MB of all frames, seconds of the rounds; ok: at most {tolerance:.4g} behind none, or later"
    heads = ["Q", "rounds", "MB", "of it\ntrain", "seconds", "compute/\ntransfer/\nlatency", "learnt\nvs none"]
    gap = [f"{advice.metric}\nvs none"] if advice.metric else []
    table = number_table("compressor", *heads, *gap, "ok", caption=caption, padding=(0, 1, 0, 0))
    rows = sorted(advice.rows, key=lambda row: row.setting.Q)
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(
            *_cells(row, bool(advice.metric)),
            style="bold" if row is advice.best else "",
            end_section=after is not None and after.setting.Q != row.setting.Q,
        )
    return table


def _cells(row: Row, with_gap: bool) -> list[str]:
    cost, figures = row.forecast, ["-"] * 5
    if cost:
        parts = "/".join(map(brief, (cost.compute, cost.transfer, cost.latency)))
        train = f"{cost.sent.total / cost.total:.0%}"
        figures = [f"{cost.rounds:,}", brief(cost.total / MB), train, brief(cost.seconds), parts]
    gap = ["-" if row.gap is None else f"{row.gap:+.3f}"] if with_gap else []
    learnt = "-" if row.learnt is None else share(row.learnt)
    return [row.setting.candidate.name, str(row.setting.Q), *figures, learnt, *gap, "no" if row.objection else "yes"]


def _told(advice: Advice) -> str:
    """The recommendation in one sentence."""
    row, base = advice.best, advice.reference
    assert row.forecast is not None  # the best one has a forecast, and so has the reference
    assert base.forecast is not None
    if row is base:
        return f"none with Q = {row.setting.Q} for {_length(row)}, {_cost(row.forecast)}; nothing that is ok is faster"
    return (
        f"{row.setting.candidate.name} with Q = {row.setting.Q} for {_length(row)}, {_cost(row.forecast)}; without "
        f"compression and with Q = {base.setting.Q} for {_length(base)} it would be {_cost(base.forecast)}"
    )


def _length(row: Row) -> str:
    (count, unit), *_ = ((value, key) for key, value in row.keys.items() if key in ("epochs", "rounds"))
    return f"{count:,} {unit}"


def _cost(cost: Forecast) -> str:
    return f"{brief(cost.total / MB)} MB ({shares(cost.purposes)}) and {brief(cost.seconds)} s"


def _notes(advice: Advice, config: RunConfig) -> Iterator[str]:
    """What the table does not say."""
    yield f"tried for {advice.calibrated} rounds at Q = {config.local_iterations}, and for no fewer steps at another Q"
    if why := fixed_Q(config):
        yield f"Q stays {config.local_iterations}: {why}"
    if own := [name for name, party in config.party.items() if party.compressor]:
        yield f"one compressor for all: the one of party.{own[0]} is not kept"
    if config.budget is not None:
        yield f"budget {brief(config.budget / MB)} MB: tried without it; a run with auto keeps it, others cannot"
    without = {row.setting.Q for row in advice.rows if row.forecast is None and row.setting.candidate == NONE}
    for Q in sorted({setting.Q for setting in advice.skipped} - without):
        yield f"Q = {Q}: slower even if bytes took no time, so no compressor was tried"
    for row in advice.rows:
        if row.error:
            yield f"{row.setting.candidate.name}, Q = {row.setting.Q}: {row.error}"
        elif row.setting.Q in without:
            yield f"Q = {row.setting.Q}: does not learn as much as Q = {config.local_iterations} while it is tried"
