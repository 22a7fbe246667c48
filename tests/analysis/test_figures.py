"""Figures of an analysis against scikit-learn and SciPy, and that none rests on few people."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn import metrics
from sklearn.calibration import calibration_curve

from cvfl.analysis.buckets import binned, cuts, grouped, hidden
from cvfl.analysis.many import many_classes
from cvfl.analysis.quantity import quantity, residuals
from cvfl.analysis.resample import INTERVAL, RESAMPLE, TIMES, interval
from cvfl.analysis.two import Ranking, two_classes
from cvfl.rng import stream
from cvfl.runs.analysis import FEW

DRAW = np.random.default_rng(0)
N = 700
Z = np.round(DRAW.normal(size=N), 1)  # with ties
P = 1 / (1 + np.exp(-Z))
Y = (DRAW.uniform(size=N) < P).astype(float)


def near(value: object) -> object:
    return pytest.approx(value, abs=1e-6)


def test_two_classes_as_scikit_learn_has_them() -> None:
    found = two_classes(Y, P, 0.4, 3)
    assert found.roc_auc.value == near(metrics.roc_auc_score(Y, P))
    assert found.average_precision.value == near(metrics.average_precision_score(Y, P))
    assert found.f1.value == near(metrics.f1_score(Y, P >= 0.4))
    assert found.precision == near(metrics.precision_score(Y, P >= 0.4))
    assert found.recall == near(metrics.recall_score(Y, P >= 0.4))
    assert found.accuracy == near(metrics.accuracy_score(Y, P >= 0.4))
    assert found.log_loss == near(metrics.log_loss(Y, P))
    assert found.brier == near(metrics.brier_score_loss(Y, P))
    assert found.ks == near(ks_2samp(P[Y > 0], P[Y == 0]).statistic)
    assert found.confusion == tuple(map(tuple, metrics.confusion_matrix(Y, P >= 0.4).tolist()))
    assert sum(one.people for one in found.calibration) == sum(one.people for one in found.tenths) == N


def test_every_point_of_a_curve_is_one_of_scikit_learn() -> None:
    found = two_classes(Y, P, 0.4, 3)
    fpr, tpr, _ = metrics.roc_curve(Y, P, drop_intermediate=False)
    precision, recall, _ = metrics.precision_recall_curve(Y, P)
    for curve, exact in ((found.roc, (fpr, tpr)), (found.precision_recall, (recall, precision))):
        for point in zip(curve.x, curve.y, strict=True):
            assert np.abs(np.column_stack(exact) - point).sum(1).min() < 1e-6


def test_calibration_before_buckets_are_merged() -> None:
    actual, predicted = calibration_curve(Y, P, n_bins=10)
    found = binned(P, Y, least=1)
    assert [one.actual for one in found] == near(actual.tolist())
    assert [one.predicted for one in found] == near(predicted.tolist())


def test_gain_and_lift_by_hand() -> None:
    y = np.array([1.0] * 10 + [0.0] * 40)
    first, *_, last = two_classes(y, np.linspace(1, 0, 50), 0.5, 0).tenths
    assert (first.people, first.gain, first.lift) == (5, 0.5, 5.0)
    assert (last.gain, last.lift) == (1.0, 0.0)


def test_resampled_figures_are_those_of_weighted_rows() -> None:
    counts = np.bincount((stream(3, RESAMPLE).words(N) % np.uint64(N)).astype(int), minlength=N).astype(float)
    tp, fp = Ranking(Y, P).found(counts)
    fpr, tpr, _ = metrics.roc_curve(Y, P, sample_weight=counts, drop_intermediate=False)
    assert metrics.auc(np.append(0, fp / fp[-1]), np.append(0, tp / tp[-1])) == near(metrics.auc(fpr, tpr))
    low, high = interval(lambda each: np.array([(each * Z).sum() / each.sum()]), N, 3)
    drawn = stream(3, RESAMPLE)
    means = [Z[(drawn.words(N) % np.uint64(N)).astype(int)].mean() for _ in range(TIMES)]
    assert [low[0], high[0]] == near(np.percentile(means, INTERVAL).tolist())


def test_an_interval_has_its_figure_and_comes_again() -> None:
    found = two_classes(Y, P, 0.4, 3)
    for one in (found.roc_auc, found.average_precision, found.f1):
        assert 0 < one.low < one.value < one.high < 1
    assert two_classes(Y, P, 0.4, 3) == found
    assert two_classes(Y, P, 0.4, 4) != found


def test_several_classes_as_scikit_learn_has_them() -> None:
    p = DRAW.dirichlet([1, 1, 1, 0.02], size=N)
    y = np.array([DRAW.choice(4, p=row) for row in p])
    y[:3], y[3:] = 3, np.minimum(y[3:], 2)
    found = many_classes(y, p, 0)
    assert found.accuracy.value == near(metrics.accuracy_score(y, p.argmax(1)))
    assert found.log_loss == near(metrics.log_loss(y, p, labels=range(4)))
    assert found.brier == near(metrics.brier_score_loss(y, p, labels=range(4), scale_by_half=False))
    assert found.f1 == near(metrics.f1_score(y, p.argmax(1), average="macro", zero_division=0.0))
    for c, one in enumerate(found.classes[:3]):
        assert one.roc_auc == near(metrics.roc_auc_score(y == c, p[:, c]))
        assert one.average_precision == near(metrics.average_precision_score(y == c, p[:, c]))
        assert one.f1 == pytest.approx(metrics.f1_score(y == c, p.argmax(1) == c), abs=0.03)  # of rounded counts
    assert found.classes[3].people is found.classes[3].roc_auc is None  # of three people nothing is told
    several = np.minimum(y, 2)
    decisions = p[:, :3].argmax(1)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(several, decisions)
    exact = many_classes(several, p[:, :3] / p[:, :3].sum(1, keepdims=True), 0)
    assert [one.precision for one in exact.classes] == near(precision.tolist())
    assert [one.recall for one in exact.classes] == near(recall.tolist())
    assert [one.f1 for one in exact.classes] == near(f1.tolist())


def test_a_quantity_as_scikit_learn_has_it() -> None:
    y = 100 + 20 * Z
    predicted = 98 + 15 * np.roll(Z, 1)
    found = quantity(y, predicted, 0)
    assert found.rmse.value == near(metrics.root_mean_squared_error(y, predicted))
    assert found.mae.value == near(metrics.mean_absolute_error(y, predicted))
    assert found.r2.value == near(metrics.r2_score(y, predicted))
    assert sum(one.people for one in found.residuals) == sum(one.people for one in found.fit) == N
    edges = [found.residuals[0].start, *(one.end for one in found.residuals)]
    inner = np.clip(y - predicted, edges[0], edges[-1])
    assert [one.people for one in found.residuals] == np.histogram(inner, edges)[0].tolist()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40))
def test_merged_buckets_have_enough_people_if_there_are(counts: list[int]) -> None:
    ends = cuts(np.cumsum(counts))
    people = grouped(np.array(counts), ends)
    assert people.sum() == sum(counts)
    assert ends[-1] == len(counts) - 1
    assert all(people >= min(FEW, sum(counts)))


@settings(max_examples=15)
@given(st.integers(10, 60), st.integers(0, 1000))
def test_nothing_that_is_told_rests_on_few_people(n: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    p = draw.uniform(size=n)
    y = (draw.uniform(size=n) < p).astype(float)
    y[:2] = 0, 1
    found = two_classes(y, p, 0.5, seed)
    for buckets in (found.calibration, found.tenths, residuals(p - y)):
        assert all(one.people >= FEW for one in buckets)
    assert all(cell is None or cell >= FEW for row in found.confusion for cell in row)
    positives, negatives = y.sum(), (1 - y).sum()
    people = np.array(found.roc.x) * negatives + np.array(found.roc.y) * positives
    assert np.diff(people).min() >= FEW - 1e-9


def test_cells_of_few_people_are_hidden() -> None:
    assert hidden(np.array([[5, 4], [0, 9]])) == ((5, None), (None, 10))
    assert hidden(np.array([[6, 5], [7, 9]])) == ((6, 5), (7, 9))


def test_what_is_beside_a_hidden_cell_does_not_tell_it() -> None:
    """Of a hundred positives one or two are missed: all that is said of decisions is the same."""

    def decided(missed: int) -> dict[str, object]:
        y = np.array([1.0] * 100 + [0.0] * 200)
        p = np.where(y > 0, 0.9, 0.1)
        p[:missed], p[100:140] = 0.2, 0.8
        found = two_classes(y, p, 0.5, 0)
        names = ("confusion", "accuracy", "precision", "recall")
        return {name: getattr(found, name) for name in names} | {"f1": found.f1.value}

    assert decided(1) == decided(2)
    assert decided(1)["confusion"] == ((160, 40), (None, 100))
    assert decided(30) != decided(31)  # of many people figures are exact


def test_of_several_classes_neither() -> None:
    def decided(wrong: int) -> list[tuple[float | None, ...]]:
        y = np.repeat([0, 1, 2], 50)
        p = np.eye(3)[y] * 0.8 + 0.2 / 3
        p[:wrong] = p[60]
        return [(one.precision, one.recall, one.f1) for one in many_classes(y, p, 0).classes]

    assert decided(1) == decided(2)
    assert decided(1) != decided(20)
