"""Order and split by hash: every party finds the same, whatever the order and the rest of its table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvfl.data.tables.split import Part, Shares, hashed, hashed_rows, seed_key, stratified
from cvfl.errors import ConfigError

KEYS = [4867319984226170412, 3659530410486700697, 1724319623017261358]
FRACTIONS = [0.8093367364555153, 0.751512335165291, 0.008750907743287573]


@given(ids=st.lists(st.text(max_size=8), unique=True, max_size=30), seed=st.integers(0, 2**62), data=st.data())
def test_a_row_is_placed_by_its_own_id_alone(ids, seed, data):
    keys, fractions = hashed(ids, seed_key(seed))
    order = data.draw(st.permutations(range(len(ids))))
    again_keys, again = hashed([ids[i] for i in order], seed_key(seed))
    assert again_keys.tolist() == keys[order].tolist() if ids else not len(again_keys)
    assert again.tolist() == [fractions[i] for i in order]


def test_the_hash_is_frozen():
    """Parties with different versions must agree."""
    keys, fractions = hashed(["7", "Zoë"], seed_key(3))
    assert keys.tolist() == [12985001013794064200, 5856424270186539483]
    assert fractions.tolist() == [0.7751637996053236, 0.7116492414605761]


def test_rows_without_ids_have_a_hash_that_is_frozen_too():
    keys, fractions = hashed_rows(3, seed_key(3))
    assert keys.tolist() == KEYS
    assert fractions.tolist() == FRACTIONS
    longer = hashed_rows(5, seed_key(3))
    assert longer[0][:3].tolist() == KEYS
    assert hashed_rows(3, b"a secret")[0].tolist() != KEYS


def test_another_seed_is_another_order_and_split():
    ids = [str(i) for i in range(100)]
    one, two = hashed(ids, seed_key(1)), hashed(ids, seed_key(2))
    assert np.argsort(one[0]).tolist() != np.argsort(two[0]).tolist()
    assert one[1].tolist() != two[1].tolist()


def test_fractions_are_uniform_and_shares_come_out():
    _, fractions = hashed([str(i) for i in range(20_000)], seed_key(0))
    assert fractions.min() >= 0
    assert fractions.max() < 1
    assert abs(np.mean(fractions) - 0.5) < 0.01
    parts = Shares(test=0.2, validation=0.1).of(fractions)
    share = {part: float(np.mean(parts == part)) for part in Part}
    assert share[Part.TEST] == pytest.approx(0.2, abs=0.01)
    assert share[Part.VALIDATION] == pytest.approx(0.1, abs=0.01)


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    test=st.floats(0, 0.5),
    validation=st.floats(0, 0.4),
)
def test_stratified_shares_are_exact_within_a_row(labels, test, validation):
    _, fractions = hashed([str(i) for i in range(len(labels))], seed_key(0))
    y = np.array(labels)
    parts = stratified(Shares(test, validation), fractions, y)
    for label in np.unique(y):
        mine = parts[y == label]
        assert abs((mine == Part.TEST).sum() - test * len(mine)) <= 0.5 + 1e-9
        assert abs((mine == Part.VALIDATION).sum() - validation * len(mine)) <= 1 + 1e-9


def test_nothing_to_train_on():
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        Shares(0.6, 0.4)
