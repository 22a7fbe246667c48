"""Audits of many runs as a folder to commit: DIR/tables.md for readers, DIR/audits.json for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cvfl.experiments.audit_table import comparison
from cvfl.experiments.columns import Table
from cvfl.experiments.publish import writing
from cvfl.experiments.recorded import Run, read_run
from cvfl.experiments.series import to_series


def audit_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for every data set, a row a setting, seeds together."""
    names = dict.fromkeys(data_of(run) for run in runs)
    return [comparison(to_series([run for run in runs if data_of(run) == name]), name) for name in names]


def data_of(run: Run) -> str:
    """The data set by name; tables of the parties have none."""
    return run.settings.get("data.name", "null").replace("null", "own tables")


def publish_audits(paths: Sequence[Path], folder: Path) -> None:
    """Write the tables of audited runs, and everything that was found."""
    runs = [read_run(path) for path in paths]
    tables = audit_tables(runs)
    parts = ["# What can be learned from messages", *(table.markdown().rstrip() for table in _one_note(tables))]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        text = json.dumps([_record(run) for run in runs], indent=1, ensure_ascii=False)
        (folder / "audits.json").write_text(text + "\n", encoding="utf-8")


def _one_note(tables: Sequence[Table]) -> list[Table]:
    """The note is said once, under the last table."""
    return [Table(each.title, each.head, each.rows, each.note if each is tables[-1] else "") for each in tables]


def _record(run: Run) -> dict[str, Any]:
    """One run: what it is, what it reached, what it sent, and what was found."""
    sent = {"up": run.sent.up, "down": run.sent.down, "evaluation": run.sent.evaluation}
    audit = run.audit.model_dump(mode="json") if run.audit else None
    return {
        "run": run.name,
        "seed": run.seed,
        "data": data_of(run),
        "rounds": run.rounds,
        "test": dict(run.test),
        "bytes": sent,
        "parameters": dict(run.parameters),
        "versions": dict(run.versions),
        "audit": audit,
    }
