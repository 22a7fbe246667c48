"""The account of noise as a report shows it."""

from __future__ import annotations

from collections.abc import Sequence

from cvfl.privacy.account import Account, Spent
from cvfl.report.colours import colour
from cvfl.report.format import NOTHING, amount, plain
from cvfl.report.html import Card, Section
from cvfl.report.series import Series
from cvfl.report.table import Table, Text

_ABOUT = (
    "Every embedding that left a party was clipped to a norm and given noise. By what is released of a row, "
    "one who knows everything else, models included, tells whether its columns are these or others no better than "
    "(ε, δ) allows. Small is private; an ε of 10 or more promises little. Each release counts: a training row's in "
    "every epoch, a held-out row's in every evaluation. Labels, and what a model learnt from a row, are not covered."
)
_ABOUT_SHARED = (
    "Where parties share their noise, each added its part and only the sum could be read: ε at one party is against "
    "any other party, which knows its own part and may tell the server. It is less against the server alone, and more "
    "if all others put together what they know."
)


def noise_card(account: Account) -> Card:
    """What the account says of a training row."""
    spent = account.training
    one = f"at one party, against {account.against}"
    more = f"δ {plain(account.delta)}, {one}; ε {amount(spent.all_parties)} over all {account.parties}"
    return Card("Privacy of a training row", f"ε {amount(spent.one_party)}", more)


def what_epsilon_is(series: Sequence[Series]) -> str:
    """What the column of epsilon says, and against whom; of some runs it is another guarantee than of others."""
    by: dict[str, list[str]] = {}
    for one in series:
        if account := one.first.account:
            by.setdefault(account.against, []).append(one.label)
    said = [f"against {whom}" for whom in by]
    if len(by) > 1:
        said = [f"{one} ({', '.join(runs)})" for one, runs in zip(said, by.values(), strict=True)]
    return f"ε is that of a training row at one party, {'; '.join(said)}."


def noise_section(series: Sequence[Series]) -> Section:
    """Epsilon of rows for each run that has noise."""
    groups = []
    for n, one in enumerate(series):
        if account := one.first.account:
            where = f" in the sum of {account.parties}" if account.shared else ""
            kind = "Skellam" if account.shared else "Gaussian"
            noise = f"{kind} noise {account.noise:g} of it{where}, δ {plain(account.delta)}"
            about = f"norm at most {account.clip:g}, {noise}; ε at one party is against {account.against}"
            kinds = {"training row": account.training, "held-out row": account.held_out}
            rows = [row for kind, spent in kinds.items() for row in _rows(kind, spent)]
            groups.append((Text(one.label, colour=colour(n), about=about), rows))
    head = ("Run", "Releases", "ε at one party", "ε over all parties")
    shared = any(one.first.account and one.first.account.shared for one in series)
    return Section("Noise", [_ABOUT, *([_ABOUT_SHARED] if shared else []), Table("Noise", head, groups=groups)])


def _rows(kind: str, spent: Spent) -> list[tuple[str, ...]]:
    """Epsilon of a kind of row; with noise that is shared also against others than any one party."""
    if not spent.releases:
        return [(kind, "0", NOTHING, NOTHING)]
    releases = f"{spent.releases:,}"
    rows: list[tuple[str, ...]] = [(kind, releases, amount(spent.one_party), amount(spent.all_parties))]
    if spent.against_server is not None and spent.against_others is not None:
        rows.append((f"{kind}, against the server alone", releases, amount(spent.against_server), NOTHING))
        rows.append((f"{kind}, against all others together", releases, amount(spent.against_others), NOTHING))
    return rows
