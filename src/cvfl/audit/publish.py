"""Audits of many runs as tables: a row a setting, seeds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cvfl.errors import writing
from cvfl.report.leakage import comparison
from cvfl.report.series import to_series
from cvfl.report.table import Table
from cvfl.runs.read import read_run
from cvfl.runs.record import Run


def audit_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for every data set, a row a setting, seeds together."""
    names = dict.fromkeys(data_of(run) for run in runs)
    return [comparison(to_series([run for run in runs if data_of(run) == name]), name) for name in names]


def data_of(run: Run) -> str:
    """The data set by name; tables of the parties have none."""
    return run.settings.get("data.name", "null").replace("null", "own tables")


def publish_audits(paths: Sequence[Path], folder: Path) -> None:
    """Write the tables of audited runs to tables.md."""
    tables = audit_tables([read_run(path) for path in paths])
    tables[:-1] = [replace(table, note="") for table in tables[:-1]]  # it is said once, under the last one
    parts = ["# What can be learned from messages", *(table.markdown().rstrip() for table in tables)]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
