"""Normal scores by rank: in order, without tails, and no value takes more of the scale than its share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from cvfl.data.tables.encoders import Number, Quantile, _capped

finite = st.floats(-1e300, 1e300, allow_nan=False)


@given(st.lists(finite, min_size=2, max_size=400), st.lists(finite, max_size=20))
def test_scores_keep_the_order_and_are_bounded(values, others):
    fitted = Quantile.fit(np.array(values)[:, None])
    seen = np.sort(np.array([*values, *others]))
    scores = fitted.apply(seen[:, None])[:, 0]
    assert (np.diff(scores) >= -1e-9).all()
    assert np.abs(scores).max() <= 3.1


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200), st.integers(1, 64))
def test_no_share_is_above_the_most_there_can_be(counts, pieces):
    shares = _capped(np.array(counts) / sum(counts), 1 / pieces)
    assert shares.sum() == pytest.approx(1)
    assert shares.max() <= max(1 / pieces, 1 / len(counts)) * (1 + 1e-6)
    assert (np.diff(shares[np.argsort(counts, kind="stable")]) >= -1e-12).all()


def test_many_different_values_have_the_scores_of_their_ranks():
    values = np.random.default_rng(0).lognormal(size=4_000)
    scores = Quantile.fit(values[:, None]).apply(values[:, None])[:, 0]
    places = (values.argsort().argsort() + 0.5) / len(values)
    inner = np.abs(places - 0.5) < 0.49
    assert np.abs(norm.cdf(scores) - places)[inner].max() < 0.005


def test_a_value_that_is_most_of_a_column_leaves_room_for_the_others():
    values = np.concatenate([np.zeros(9_000), np.arange(1, 1_001)])
    places = norm.cdf(Quantile.fit(values[:, None]).apply(np.array([[0.0], [500.0], [1_000.0]])))[:, 0]
    assert places[0] == pytest.approx(1 / 64)
    assert places[1] == pytest.approx(1 / 32 + 31 / 64, abs=0.01)


def test_few_values_stand_at_even_distances_whatever_their_counts():
    values = np.repeat([-2.0, 1.0, 5.0, 100.0], [1, 500, 20, 3])
    places = norm.cdf(Quantile.fit(values[:, None]).apply(np.unique(values)[:, None]))[:, 0]
    np.testing.assert_allclose(places, [0.125, 0.375, 0.625, 0.875], atol=1e-12)


def test_gaps_are_marked_and_survive_a_file_in_the_same_bits():
    values = np.random.default_rng(1).standard_cauchy(300)
    values[::5] = np.nan
    fitted = Number.fit(values, "median", Quantile)
    again = Number.model_validate_json(fitted.model_dump_json())
    encoded = fitted.encode(values)
    assert encoded.shape == (300, 2)
    assert np.array_equal(np.unique(encoded[::5], axis=0), encoded[:1])
    assert np.array_equal(again.encode(values), encoded)
