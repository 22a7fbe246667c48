"""Tables of a terminal, and what it shows of summaries: a row of results for each, and what noise keeps private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from cvfl.privacy.account import Account, Spent
from cvfl.report.format import MB, brief, digits, metric_label
from cvfl.report.labels import guarantee
from cvfl.report.references import reference_name, shown_metrics
from cvfl.runs.record import LabelAccount, Summary


def number_table(first: str, *others: str, **options: Any) -> Table:
    """An empty table: names in its first column, numbers in the others."""
    table = Table(**options)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def results_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """A row a run: metric, rounds, all megabytes and what they were for; how many times fewer where there are several.

    Fewer is against the first run: of all bytes, and beside it of training frames only.
    """
    runs = [Summary.model_validate(summary) for summary in summaries]
    metric, first, several = runs[0].metric or "", runs[0].sent, len(runs) > 1
    fewer = ("times\nfewer", "train\nonly") if several else ()
    bytes_ = ("MB\nin all", "train-\ning", "evalu-\nation", "other")
    heads = (f"test\n{metric}", *(() if several else ("rounds",)), *bytes_, *fewer, "seconds")
    caption = "MB: 10^6 bytes of frames as measured; other: alignment and set-up"
    table = number_table("compressor", *heads, caption=caption, padding=(0, 1, 0, 0))
    one, two, three = (digits(places) for places in (1, 2, 3))
    for run in runs:
        score, sent = run.metrics.test.get(metric), run.sent
        parts = (sent.total, sent.training, sent.evaluation, (sent.alignment or 0) + (sent.setup or 0))
        factors = (first.total / sent.total, first.training / sent.training) if several else ()
        table.add_row(
            run.name,
            "-" if score is None else three(score),
            *(() if several else (f"{run.rounds:,}",)),
            *(two(value / MB) for value in parts),
            *(f"{one(factor)}x" for factor in factors),
            one(run.seconds),
        )
    return table


def references_table(summary: dict[str, Any]) -> Table:
    """A run beside the usual models that it was compared with, the metric that tables show first."""
    run = Summary.model_validate(summary)
    metrics, one, four = shown_metrics(run), digits(1), digits(4)
    heads = ("columns", *(f"test\n{metric_label(name)}" for name in metrics), "seconds")
    table = number_table("model", *heads, padding=(0, 1, 0, 0))
    lines = [("federation", "", run.tested, run.seconds)]
    lines += [(reference_name(each), f"{each.columns:,}", each.metrics.test, each.seconds) for each in run.references]
    for name, columns, test, seconds in lines:
        scores = (four(test[metric]) if metric in test else "-" for metric in metrics)
        table.add_row(name, columns, *scores, one(seconds), style="bold" if not columns else "")
    return table


def budget_lines(summary: dict[str, Any]) -> list[str]:
    """How much of its budget a run has sent, if it had one; less than nearly all of it is all that it needed."""
    budget, sent = summary["config"].get("budget"), Summary.model_validate(summary).sent.total
    if budget is None:
        return []
    needed = ", more was not needed" if summary["completed"] and sent < 0.95 * budget else ""
    return [f"budget {brief(budget / MB)} MB: {sent / budget:.0%} of it sent{needed}"]


def step_size_lines(summary: dict[str, Any]) -> list[str]:
    """How the step size was found, if it was not given, and what that would have sent."""
    found = Summary.model_validate(summary).range_test
    if found is None:
        return []
    tried = f"the best of {len(found.tried)} in short trials"
    return [f"step size {found.eta:g}: {tried}, which would send {brief(found.sent / MB)} MB between machines"]


def start_lines(summary: dict[str, Any]) -> list[str]:
    """The run whose models this one started from, if they were not fresh."""
    found = Summary.model_validate(summary).started_from
    return [f"started from the models of {found.path}, run {found.run}"] if found else []


def label_lines(summary: dict[str, Any]) -> list[str]:
    """What is guaranteed for labels that were told randomised, and how good the model is by the true ones."""
    run = Summary.model_validate(summary)
    return label_account_lines(run.label_privacy, run.metric or "") if run.label_privacy else []


def label_account_lines(account: LabelAccount, metric: str) -> list[str]:
    """For the holder's eyes, if the account has its ledger and its scores."""
    lines = [f"labels of {account.holder}, told with {guarantee(account)}"]
    if account.scores and metric in account.scores.test:
        true = digits(4)(account.scores.test[metric])
        lines.append(
            f"test {metric_label(metric)} {true} by the true labels, which {account.holder} alone knows; others have "
            "estimates from told labels, as the table does"
        )
    if account.private and metric in account.private.test:
        own = digits(4)(account.private.test[metric])
        lines.append(f"test {metric_label(metric)} {own} by the model of its own that {account.holder} scores with")
    return lines


def noise_lines(summary: dict[str, Any]) -> list[str]:
    """What noise keeps private, if there is any."""
    account = Summary.model_validate(summary).account
    return account_lines(account) if account else []


def account_lines(account: Account) -> list[str]:
    """Epsilon of a row that is for training, and of one that is held out."""
    spent = {"training": account.training, "held-out": account.held_out}
    return [
        f"{kind} row: ε {row.one_party:.3g} at one party (against {account.against}{_against(row)}), "
        f"{row.all_parties:.3g} at all "
        f"{account.parties}; δ {account.delta:g}; sent {row.releases} times"
        for kind, row in spent.items()
        if row.releases
    ]


def _against(spent: Spent) -> str:
    """The same against others than any one party, where parties share their noise."""
    if spent.against_server is None or spent.against_others is None:
        return ""
    return f"; {spent.against_server:.3g} against the server alone, {spent.against_others:.3g} against all others"
