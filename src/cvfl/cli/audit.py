"""`cvfl audit`: what a curious server or party could learn of recorded runs, measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Shown

from cvfl.audit.audit import audit_run
from cvfl.cli.display import StepDisplay
from cvfl.cli.errors import one_line
from cvfl.errors import DataError
from cvfl.runs.audit import read_audit, write_audit

_TEXTS = frozenset(("Observer", "Sees", "Of", "Run", "Privacy", "Parties get"))
_LEFT_OUT = frozenset(
    (
        *("Compressor", "Parties get", "Server, one message: columns R²", "Best column R²", "Held-out columns R²"),
        *("Server: labels", "Own columns: labels"),
    )
)
"""Columns of a comparison that a terminal has no room for; reports and --out have them, and deviations."""


def audit(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold them.")],
    out: Annotated[
        Path | None, typer.Option(help="Write tables.md, a row for each of these runs, to this folder.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the audits that are there already.")] = False,
) -> None:
    """Measure what messages give away: columns and labels, by attacks on the frames of a run.

    Takes run directories whose data can be loaded here. Writes audit.json into each, and its report anew. Ctrl-C leaves
    what is complete; --resume goes on.

    docs/audit.md says what is measured, what the attacker is assumed to know, and how to read the figures.

    Example: cvfl audit runs/digits-0 runs/digits-0-2 --out docs/results/privacy
    """
    console = Console(highlight=False, markup=False)
    with one_line():
        found = list(dict.fromkeys(path.parent for run in runs for path in sorted(run.rglob("summary.json"))))
        if missing := [run for run in runs if not any(path.is_relative_to(run) for path in found)]:
            raise DataError(f"{missing[0]}: there is no run directory (with a summary.json)")
        todo = [run for run in found if not (resume and read_audit(run))]
        for n, run in enumerate(todo, start=1):
            _audit(console, run, f"{n}/{len(todo)} {run.name}: " if len(todo) > 1 else "")
        _show(console, found)
        if out:
            from cvfl.audit.publish import publish_audits  # noqa: PLC0415  matplotlib is slow to load

            publish_audits(found, out)
            console.print(f"{out}: tables.md")


def _audit(console: Console, run: Path, prefix: str) -> None:
    """Audit a run, and write what was found into its directory; Ctrl-C leaves it as it was."""
    with StepDisplay(console) as steps:
        write_audit(audit_run(run, lambda step, done, total: steps(prefix + step, done, total)), run)
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report([run], run / "report.html")


def _show(console: Console, found: Sequence[Path]) -> None:
    from cvfl.audit.publish import audit_tables  # noqa: PLC0415  matplotlib is slow to load
    from cvfl.report.leakage import run_tables  # noqa: PLC0415
    from cvfl.report.table import without_deviation  # noqa: PLC0415
    from cvfl.runs.read import read_run  # noqa: PLC0415

    read = [read_run(run) for run in found]
    single = read[0].audit if len(read) == 1 else None
    for table in run_tables(single) if single else audit_tables(read):
        heads = [name for name in table.head if name not in _LEFT_OUT]
        shown = Shown(title=table.title, caption=table.note, padding=(0, 1, 0, 0))
        for name in heads:
            shown.add_column(name, justify="left" if name in _TEXTS else "right")
        for row in table.rows:
            cells = [cell for name, cell in zip(table.head, row, strict=True) if name in heads]
            shown.add_row(*(str(without_deviation(cell)) for cell in cells))
        console.print(shown)
    for run in found:
        console.print(f"{run}: audit.json, report.html")
