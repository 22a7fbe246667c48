"""Tables of a terminal, and what it shows of summaries: a row of results for each, and what noise keeps private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from cvfl.report.format import MB, digits
from cvfl.runs.record import Summary


def number_table(first: str, *others: str, **options: Any) -> Table:
    """An empty table: names in its first column, numbers in the others."""
    table = Table(**options)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def results_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """A row a run: metric, rounds, megabytes; reduction against the first run when there are several."""
    runs = [Summary.model_validate(summary) for summary in summaries]
    metric, first, several = runs[0].metric or "", runs[0].sent.training, len(runs) > 1
    heads = (f"test {metric}", "rounds", "MB up", "MB down", *(["reduction"] if several else []), "seconds")
    caption = "MB: 10^6 bytes of frames as measured, without evaluation"
    table = number_table("compressor", *heads, caption=caption)
    one, two, three = (digits(places) for places in (1, 2, 3))
    for run in runs:
        score = run.metrics.test.get(metric)
        table.add_row(
            run.name,
            "-" if score is None else three(score),
            str(run.rounds),
            two(run.sent.up / MB),
            two(run.sent.down / MB),
            *([f"{one(first / run.sent.training)}x"] if several else []),
            one(run.seconds),
        )
    return table


def noise_lines(summary: dict[str, Any]) -> list[str]:
    """What noise keeps private, if there is any: epsilon of a row that is for training, and of one that is held out."""
    account = Summary.model_validate(summary).account
    spent = {"training": account.training, "held-out": account.held_out} if account else {}
    return [
        f"{kind} row: ε {row.one_party:.3g} at one party, {row.all_parties:.3g} at all {account.parties}; "
        f"δ {account.delta:g}; sent {row.releases} times"
        for kind, row in spent.items()
        if account and row.releases
    ]
