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
    "Every embedding that left a party was clipped to a norm and given Gaussian noise. By what is released of a row, "
    "one who knows everything else, models included, tells whether its columns are these or others no better than "
    "(ε, δ) allows. Small is private; an ε of 10 or more promises little. Each release counts: a training row's in "
    "every epoch, a held-out row's in every evaluation. Labels, and what a model learnt from a row, are not covered."
)


def noise_card(account: Account) -> Card:
    """What the account says of a training row."""
    spent = account.training
    more = f"δ {plain(account.delta)}, at one party; ε {amount(spent.all_parties)} over all {account.parties}"
    return Card("Privacy of a training row", f"ε {amount(spent.one_party)}", more)


def noise_section(series: Sequence[Series]) -> Section:
    """Epsilon of rows for each run that has noise."""
    groups = []
    for n, one in enumerate(series):
        if account := one.first.account:
            about = f"norm at most {account.clip:g}, noise {account.noise:g} of it, δ {plain(account.delta)}"
            kinds = {"training row": account.training, "held-out row": account.held_out}
            rows = [(kind, *_cells(spent)) for kind, spent in kinds.items()]
            groups.append((Text(one.label, colour=colour(n), about=about), rows))
    head = ("Run", "Releases", "ε at one party", "ε over all parties")
    return Section("Noise", [_ABOUT, Table("Noise", head, groups=groups)])


def _cells(spent: Spent) -> tuple[str, ...]:
    if not spent.releases:
        return "0", NOTHING, NOTHING
    return f"{spent.releases:,}", amount(spent.one_party), amount(spent.all_parties)
