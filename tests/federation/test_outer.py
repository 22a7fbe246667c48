"""Rows of the label holder, whoever else holds them: in one process they are those of a left join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.audit.audit import audit_run
from cvfl.cli.align import alignment_line
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data.tables.split import hashed, seed_key
from cvfl.errors import ConfigError, DataError
from cvfl.federation.rows.load import Loaded, load_data
from cvfl.federation.train import train
from cvfl.privacy import Aligned
from cvfl.runs.directory import alignment

pytestmark = pytest.mark.usefixtures("no_pages")
PEOPLE = 60
NAMES = ("shop", "bank", "registry")


def write(
    folder: Path, held: dict[str, list[int]], unlabelled: frozenset[int] = frozenset()
) -> dict[str, pd.DataFrame]:
    """A table of each party, with one number and one word a person; the bank has the label, too."""
    draw = np.random.default_rng(len(held["bank"]))
    tables = {}
    for name, people in held.items():
        ids = [f"p{i:03d}" for i in people]
        columns: dict[str, Any] = {"ID": ids, name: draw.normal(size=len(ids)).round(3)}
        columns |= {f"word of {name}": draw.choice(["a", "b"], len(ids))}
        if name == "bank":
            columns["y"] = [None if i in unlabelled else ("no", "yes")[i % 3 == 0] for i in people]
        tables[name] = pd.DataFrame(columns)
        tables[name].to_csv(folder / f"{name}.csv", index=False)
    return tables


def config(folder: Path, data: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    party: dict[str, Any] = {name: {"table": str(folder / f"{name}.csv")} for name in NAMES}
    party["bank"]["label"] = "y"
    values: dict[str, Any] = {
        "data": {"id": "ID", "alignment": "outer", "prepare": {"scale": "none"}} | (data or {}),
        "party": party,
        "step_size": {"eta": 0.1},
        "rounds": 2,
        "batch_size": 8,
        "party_model": {"width": 4, "hidden": [4]},
        "precision": "float64",
    }
    return parse_config(values | changes)


def usual(folder: Path) -> dict[str, pd.DataFrame]:
    """Sixty people of the bank; the shop knows every second one, the registry the first forty, and strangers."""
    return write(folder, {"shop": list(range(0, 80, 2)), "bank": list(range(PEOPLE)), "registry": [*range(40), 90, 91]})


def joined(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """What pandas makes of the tables, in the order of the rows."""
    rows = tables["bank"].dropna(subset="y")
    for name in ("shop", "registry"):
        rows = rows.merge(tables[name], on="ID", how="left", validate="1:1")
    keys, fractions = hashed(list(rows["ID"]), seed_key(0))
    return rows.assign(key=keys, fraction=fractions).sort_values("key").reset_index(drop=True)


def same_rows(loaded: Loaded, expected: pd.DataFrame, test_share: float, validation_share: float) -> None:
    data, present = loaded.data, loaded.data.present
    assert present is not None
    fraction = expected["fraction"]
    held_out = fraction < test_share + validation_share
    parts = [
        expected[~held_out],
        expected[held_out & (fraction >= test_share)],
        expected[fraction < test_share],
    ]
    labels = [data.train_labels, data.validation_labels, data.test_labels]
    for rows, told in zip(parts, labels, strict=True):
        assert told.tolist() == (rows["y"] == "yes").tolist()
    for m, name in enumerate(NAMES):
        tensors = [data.train[m], *(data.validation[m : m + 1] or [data.train[m][:0]]), data.test[m]]
        bits = [present.train[m], *torch.split(present.held_out[m], [len(parts[1]), len(parts[2])])]
        for x, here, rows in zip(tensors, bits, parts, strict=True):
            assert isinstance(x, torch.Tensor)
            assert here.dtype == torch.bool
            assert here.tolist() == rows[name].notna().tolist()
            assert x[:, 0].tolist() == rows[name].fillna(0.0).tolist()
            assert not bool(x[~here].any())


PEOPLE_OF = st.sets(st.integers(0, PEOPLE - 1))


@settings(deadline=None, max_examples=20)
@given(
    bank=PEOPLE_OF,
    shop=PEOPLE_OF,
    registry=PEOPLE_OF,
    unlabelled=st.frozensets(st.integers(0, 30), max_size=6),
    seed=st.integers(0, 9),
    validation_share=st.sampled_from([0.0, 0.2]),
)
def test_rows_are_those_of_a_left_join(
    tmp_path_factory: pytest.TempPathFactory,
    bank: set[int],
    shop: set[int],
    registry: set[int],
    unlabelled: frozenset[int],
    seed: int,
    validation_share: float,
) -> None:
    folder, random = tmp_path_factory.mktemp("outer"), np.random.default_rng(seed)
    some = set(range(31, 51))  # so that everyone holds training rows of both classes
    people = dict(zip(NAMES, (shop, bank, registry), strict=True))
    held = {name: random.permutation(sorted(own | some)).tolist() for name, own in people.items()}
    tables = write(folder, held, unlabelled)
    loaded = load_data(config(folder, {"validation_share": validation_share}))
    expected = joined(tables)
    same_rows(loaded, expected, 0.25, validation_share)
    aligned = loaded.aligned
    assert aligned is not None
    everyone = expected[["shop", "registry"]].notna()
    assert aligned.held == (everyone["shop"].sum(), len(expected), everyone["registry"].sum())
    assert (aligned.rows, aligned.common) == (len(expected), everyone.all(axis=1).sum())


def test_columns_are_fitted_on_training_rows_that_are_held(tmp_path: Path) -> None:
    expected = joined(usual(tmp_path))
    data = load_data(config(tmp_path, {"prepare": {"scale": "standard"}})).data
    own = expected[expected["fraction"] >= 0.25]["shop"].dropna()
    x, here = data.train[0], data.present.train[0] if data.present else None
    assert isinstance(x, torch.Tensor)
    assert here is not None
    assert 0 < int(here.sum()) < len(here)
    torch.testing.assert_close(x[here, 0], torch.tensor(((own - own.mean()) / own.std(ddof=0)).to_numpy()))


@pytest.mark.parametrize(("key", "column"), [("split_by", "bank"), ("split_groups", "word of bank"), ("stratify", "")])
def test_the_label_holder_splits_its_rows_as_ever(key: str, column: str, tmp_path: Path) -> None:
    usual(tmp_path)
    if key == "split_groups":
        table = pd.read_csv(tmp_path / "bank.csv")
        table.assign(**{column: np.arange(len(table)) // 3}).to_csv(tmp_path / "bank.csv", index=False)
    loaded = load_data(config(tmp_path, {key: column or True}))
    present = loaded.data.present
    assert present is not None
    sizes = [len(loaded.data.train_labels), len(loaded.data.test_labels)]
    assert [sum(sizes), *map(len, (present.train[0], present.held_out[0]))] == [PEOPLE, *sizes]
    assert [int(a.sum() + b.sum()) for a, b in zip(present.train, present.held_out, strict=True)] == [30, 60, 40]


def test_what_is_said_of_it(tmp_path: Path) -> None:
    usual(tmp_path)
    aligned = load_data(config(tmp_path)).aligned
    assert aligned is not None
    assert alignment_line(aligned).splitlines() == [
        "60 rows of bank: shop holds 30, registry 40; all hold 20",
        "warning: only 20 of 60 rows are held by all (33.3%)",
    ]
    told = alignment(aligned)
    assert told is not None
    assert (told["holder"], told["held"]) == ("bank", {"shop": 30, "bank": 60, "registry": 40})
    two = Aligned(("bank", "shop"), (30_000, 12_000), 12_000, holder=1, held=(30_000, 12_000))
    assert alignment_line(two).splitlines()[0] == "30,000 rows of bank: shop holds 12,000"
    assert alignment_line(Aligned(("bank",), (5,), 5, holder=1, held=(5,))) == "5 rows of bank"


def test_what_was_kept_is_taken_up(tmp_path: Path) -> None:
    usual(tmp_path)
    kept = tmp_path / "kept"
    first, again = (load_data(config(tmp_path), kept=kept) for _ in range(2))
    assert (first.found.how, again.found.how) == ("align", "kept")
    assert first.told == again.told
    assert first.aligned is not None
    assert again.aligned is not None
    assert alignment_line(again.aligned).splitlines()[0] == alignment_line(first.aligned).splitlines()[0]
    for one, other in zip(
        *(loaded.data.present.train for loaded in (first, again) if loaded.data.present), strict=True
    ):
        assert torch.equal(one, other)
    assert load_data(config(tmp_path, {"alignment": "private"}), kept=kept).found.how == "align"


def test_some_training_rows_and_no_test_rows_keep_who_holds_them(tmp_path: Path) -> None:
    usual(tmp_path)
    data = load_data(config(tmp_path, {"validation_share": 0.2})).data
    assert data.present is not None
    chosen = torch.arange(20).flip(0)
    some = data.of_training_rows(chosen).present
    assert some is not None
    assert all(torch.equal(a, b[chosen]) for a, b in zip(some.train, data.present.train, strict=True))
    none = data.without_test_rows().present
    assert none is not None
    assert [len(held) for held in none.held_out] == [len(data.validation_labels)] * 3


def test_a_run_says_who_holds_what(tmp_path: Path) -> None:
    usual(tmp_path)
    found = train(config(tmp_path), out=tmp_path / "run").summary
    assert found["alignment"]["held"] == {"shop": 30, "bank": 60, "registry": 40}
    assert sum(found["rows"].values()) == PEOPLE
    with pytest.raises(DataError, match="its parties do not hold all of its rows; that is not audited yet"):
        audit_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"aggregation": "secure"}, "server_model": {"name": "sum"}}, "needs each embedding"),
        ({"data": {"name": "wine", "alignment": "outer"}, "party": {}}, "is for tables of the parties"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        config(tmp_path, **changes)


def test_tables_without_ids_or_without_rows(tmp_path: Path) -> None:
    usual(tmp_path)
    with pytest.raises(DataError, match="needs an id column"):
        load_data(config(tmp_path, {"id": None}))
    write(tmp_path, {"shop": [0, 2, 70], "bank": list(range(40)), "registry": [90, 91, 92]})
    with pytest.raises(DataError, match="registry holds none of the rows of bank"):
        load_data(config(tmp_path))


def test_ids_that_differ_in_case_are_compared_with_the_label_holder_alone(tmp_path: Path) -> None:
    tables = usual(tmp_path)
    shop = tables["shop"].assign(ID=[f"p9{i:02d}" for i in range(len(tables["shop"]) - 1)] + ["p001"])
    shop.to_csv(tmp_path / "shop.csv", index=False)
    registry = tables["registry"].head(5).assign(ID=["p000", "P001", "p002", "p003", "p006"])
    registry.to_csv(tmp_path / "registry.csv", index=False)  # nobody is held by all, but for case
    aligned = load_data(config(tmp_path, {"test_share": 0.0})).aligned
    assert aligned is not None
    assert (aligned.held, aligned.common) == ((1, 60, 4), 0)
    upper = tables["shop"].assign(ID=tables["shop"]["ID"].str.upper())
    upper.to_csv(tmp_path / "shop.csv", index=False)
    with pytest.raises(DataError, match='set id_type = "caseless" for bank and shop'):
        load_data(config(tmp_path))


def test_a_party_none_of_whose_rows_is_for_training(tmp_path: Path) -> None:
    tables = usual(tmp_path)
    expected = joined(tables)
    held_out = set(expected[expected["fraction"] < 0.25]["ID"])
    only = tables["registry"][tables["registry"]["ID"].isin(held_out)]
    only.to_csv(tmp_path / "registry.csv", index=False)
    with pytest.raises(DataError, match=r"registry\.csv: it has no row that is for training"):
        load_data(config(tmp_path))
