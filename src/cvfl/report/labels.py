"""What a report shows of labels that their holder told randomised: the guarantee, what it leaves, and true metrics."""

from __future__ import annotations

from collections.abc import Sequence

from cvfl.report.colours import colour
from cvfl.report.format import NOTHING, amount, change, digits, metric_label, plain, score
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.runs.record import LabelAccount, Summary

_ABOUT = (
    "Every label was randomised by its holder, once, before anybody was told. All that anybody else has got follows "
    "from columns and told labels, so whatever is done with it, and for however many rounds, any two labels of a row "
    "make it at most e^ε times as likely. It says nothing of what columns tell of a label anyway, nor of which rows "
    "have one and which classes there are. Releases with other ε, and of a label that has changed, add up. Metrics by "
    "told labels are estimates, and so are those of every table and curve here that are not named as the holder's. A "
    "private model is one that the holder has fitted to the true labels, and scores by; it never leaves the holder."
)
_THREE = digits(3)
ESTIMATE = "estimate, from randomised labels"
ESTIMATES = (
    "An estimate is a metric by labels that were told randomised; by the true ones the holder of labels alone has it."
)


def metric_note(run: Summary) -> str:
    """By which labels the headline metric of a run is, and what else is known of it; nothing if labels are as told."""
    metric, account = run.metric or "", run.label_privacy
    if not run.randomised:
        return ""
    if run.estimated or account is None:
        return f"{ESTIMATE}; their holder alone has it by the true ones"
    known = ["by the true labels"]
    if account.private and metric in account.private.test:
        known.append(f"the holder's private model: {score(account.private.test[metric])}")
    if metric in run.metrics.test:
        known.append(f"{ESTIMATE}: {score(run.metrics.test[metric])}")
    return "; ".join(known)


def guarantee(account: LabelAccount) -> str:
    """In one line: epsilon, what is kept, and what all releases come to."""
    if account.kept is None:
        low, high = account.range or (0.0, 0.0)
        how = f"Laplace noise on values from {plain(low)} to {plain(high)}"
    elif account.classes == 2:
        alone = f"by them alone nobody is right more often than {_THREE(account.kept)}"
        how = f"{_THREE(1 - account.kept)} of them changed; {alone}"
    else:
        how = f"{_THREE(1 - account.kept)} of them changed to any other of {account.classes} classes"
    worth = f"; {account.rows:,} rows, those for training worth {account.effective:,.0f}" if account.effective else ""
    several = len(account.released) > 1
    more = f"; all {len(account.released)} releases so far: ε {amount(account.total)}" if several else ""
    study = "; drawn from the seed, for study: who has it can undo the draw" if account.drawn == "seed" else ""
    return f"ε {amount(account.epsilon)}: {how}{worth}{more}{study}"


def labels_section(series: Sequence[Series]) -> Section:
    """The guarantee of each run that has one, and its metrics by the true labels where the holder's are recorded."""
    groups = []
    for n, one in enumerate(series):
        if account := one.first.label_privacy:
            groups.append((Text(one.label, colour=colour(n), about=guarantee(account)), _rows(one, account)))
    head = ("Test metric", "By true labels, the holder's", "Estimated from told labels", "Difference", "Private model")
    return Section("Labels", [_ABOUT, Table("Labels", head, groups=groups)])


def _rows(one: Series, account: LabelAccount) -> list[Row]:
    true, told = (account.scores.test if account.scores else {}), one.first.metrics.test
    own = account.private.test if account.private else {}
    return [
        (
            metric_label(name),
            score(true[name]) if name in true else NOTHING,
            score(told[name]) if name in told else NOTHING,
            change(told[name] - true[name]) if name in true and name in told else NOTHING,
            score(own[name]) if name in own else NOTHING,
        )
        for name in dict.fromkeys([*true, *told])
    ]
