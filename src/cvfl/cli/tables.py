"""Tables of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from cvfl.cli.display import MB


def results_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """A row a run: metric, rounds, megabytes; reduction against the first run when there are several."""
    metric = summaries[0]["metric"]
    several = len(summaries) > 1
    table = Table(caption="MB: 10^6 bytes of frames as measured, without evaluation")
    table.add_column("compressor", no_wrap=True)
    for heading in (f"test {metric}", "rounds", "MB up", "MB down", *(["reduction"] if several else []), "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    first = _training_bytes(summaries[0])
    for summary in summaries:
        sent = summary["bytes"]
        score = summary["metrics"]["test"].get(metric)
        table.add_row(
            summary["name"],
            "-" if score is None else f"{score:.3f}",
            str(summary["rounds"]),
            f"{sent['up'] / MB:.2f}",
            f"{sent['down'] / MB:.2f}",
            *([f"{first / _training_bytes(summary):.1f}x"] if several else []),
            f"{summary['seconds']:.1f}",
        )
    return table


def noise_lines(summary: dict[str, Any]) -> list[str]:
    """What noise keeps private, if there is any: epsilon of a row that is for training, and of one that is held out."""
    account: dict[str, Any] = summary.get("privacy") or {}
    spent = {kind: account[part] for kind, part in (("training", "training"), ("held-out", "held_out")) if account}
    return [
        f"{kind} row: ε {row['one_party']:.3g} at one party, {row['all_parties']:.3g} at all {account['parties']}; "
        f"δ {account['delta']:g}; sent {row['releases']} times"
        for kind, row in spent.items()
        if row["releases"]
    ]


def _training_bytes(summary: dict[str, Any]) -> int:
    return int(summary["bytes"]["up"] + summary["bytes"]["down"])
