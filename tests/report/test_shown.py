"""What the report says of noise and of joint attacks: which noise it was, and what an attack is to be read beside."""

from __future__ import annotations

from typing import Any

import pytest

from cvfl.privacy.account import Account, Spent
from cvfl.privacy.noise_of_sum import Shared
from cvfl.report.leakage import comparison, leakage_column
from cvfl.report.noise import noise_section
from cvfl.report.series import Series
from cvfl.report.table import Table, Text, Value
from cvfl.runs.audit import Audit, ToldFound
from cvfl.runs.record import Run

SHARED = Shared(parties=3, numbers=64, step=0.03, length=992, variance=3969.0)


def series(**values: Any) -> Series:
    sent = {"up": 100, "down": 200, "evaluation": 0, "alignment": 0, "setup": 0}
    known = {"name": "auto", "seed": 1, "rounds": 2, "completed": True, "metrics": {}, "seconds": 1.0}
    known |= {"bytes": sent | {"by_party": {"bank": sent}}, "history": (), "settings": {}}
    run = Run.model_validate(known)
    return Series("auto", (run.model_copy(update=values),))


@pytest.mark.parametrize(("shared", "kind"), [(None, "Gaussian"), (SHARED, "Skellam")])
def test_the_noise_that_was_added_is_named(shared: Shared | None, kind: str) -> None:
    spent = Spent(releases=4, one_party=13.8, all_parties=46.1)
    account = Account(clip=1.0, noise=2.0, delta=1e-5, parties=3, training=spent, held_out=spent, shared=shared)
    section = noise_section([series(account=account)])
    (table,) = (part for part in section.parts if isinstance(part, Table))
    name = table.groups[0][0]
    assert isinstance(name, Text)
    assert f"{kind} noise 2 of it" in name.about
    assert not any("Gaussian" in part for part in section.parts if isinstance(part, str))


def audit(*told: ToldFound) -> Audit:
    return Audit(
        compressor="auto",
        bits=4.0,
        privacy="told",
        algorithm=1,
        parties_get="sums",
        score="ROC AUC",
        rows=100,
        known=50,
        looks=1,
        few=5,
        has_labels=("bank",),
        blind=(),
        task=0.9,
        own={"bank": 0.883, "shop": 0.575},
        by_labels={},
        features=(),
        labels=(),
        told=told,
    )


def test_a_joint_attack_is_read_beside_what_is_known_without_it_and_its_bound() -> None:
    shop = ToldFound(
        observer="shop",
        own=0.575,
        without=0.92,
        joint=0.966,
        chance=0.55,
        right_without=0.83,
        right_joint=0.88,
        kept=0.88,
        bound=0.919,
        error=0.02,
    )
    clinic = shop.model_copy(update={"observer": "clinic", "own": 0.59, "joint": 0.95})
    server = shop.model_copy(update={"observer": "server", "own": 0.5, "joint": 0.99})
    (cell,) = leakage_column([series(audit=audit(server, shop, clinic))], "Party: labels")
    assert isinstance(cell, Value)
    assert cell.mean == "0.966"
    assert cell.about == ["own columns 0.575", "without told labels 0.920", "right 0.880", "bound 0.919"]
    assert "0.966 (own columns 0.575, without told labels 0.920, right 0.880, bound 0.919)" in str(cell)
    table = comparison([series(audit=audit(shop))])
    assert "joint attack" in table.note
    assert "joint attack" not in comparison([series(audit=audit())]).note
