"""Attacks against what is known exactly: a map that can be inverted, gradients that are labels, and pure noise."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from cvfl.audit.attacks import (
    FEW,
    Errors,
    by_direction,
    by_norm,
    by_weights,
    infer_labels,
    invert,
    score,
    with_directions,
)
from cvfl.compress import Context, build
from cvfl.protocol import Loss

ROWS, KNOWN = 600, 300


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = normal(ROWS, 6)


def embedding(width: int = 8) -> Tensor:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.Tanh()).double()
        return model(X)


def test_a_linear_embedding_of_full_rank_gives_all_columns_away():
    found = invert(X @ normal(6, 6, seed=2), 5 + 3 * X, KNOWN, 0)
    assert found.r2 > 0.999
    assert found.best()[0] > 0.999
    assert found.baseline.mean() == pytest.approx(1, abs=0.1)


def test_a_network_recovers_what_a_linear_map_cannot():
    x = 2 * torch.rand(2000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1
    seen = torch.cat([x.sign(), x.abs()], 1)  # x is their product
    assert invert(seen, x, 1000, 0).r2 > 0.95


@pytest.mark.parametrize("seen", [torch.ones(ROWS, 4), torch.zeros(ROWS, 1), normal(ROWS, 4, seed=9)])
def test_what_says_nothing_is_no_better_than_the_mean(seen):
    found = invert(seen, X, KNOWN, 0)
    assert -0.02 < found.r2 < 0.02
    assert found.best()[0] < 0.05


def test_an_error_is_that_of_rows_that_are_not_known():
    """Known rows can be learned by heart; the others here have nothing to do with them."""
    seen = torch.arange(ROWS, dtype=torch.float64)[:, None]
    features = torch.cat([torch.arange(KNOWN), -torch.arange(ROWS - KNOWN)]).double()[:, None]
    assert invert(seen, features, KNOWN, 0).r2 < 0


def test_finer_quantization_never_hides_more():
    h = embedding()
    r2 = [invert(quantized(h, f"scalar:bits={bits}"), X, KNOWN, 0).r2 for bits in (1, 2, 4, 8)]
    r2.append(invert(h, X, KNOWN, 0).r2)
    assert all(later > earlier - 0.02 for earlier, later in itertools.pairwise(r2)), r2
    assert r2[0] < r2[-1] - 0.1
    assert r2[-1] > 0.6


def quantized(h: Tensor, spec: str) -> Tensor:
    compressor, context = build(spec), Context(seed=1, t0=2, m=1)
    return compressor.decompress(compressor.compress(h, context), context)


def test_columns_that_do_not_vary_count_for_nothing():
    features = torch.cat([X[:, :2], torch.full((ROWS, 3), 7.0)], 1)
    found = invert(X, features, KNOWN, 0)
    assert found.r2 > 0.99
    assert found.attack[2:].tolist() == found.baseline[2:].tolist() == [0, 0, 0]
    assert found.of(slice(2, 5)).r2 == 0
    assert found.of(slice(2, 5)).best() == (0, 0)


def test_a_column_that_is_rare_among_known_rows_does_not_drown_the_others():
    rare = torch.zeros(ROWS, 1)
    rare[0], rare[KNOWN:] = 1e-3, normal(ROWS - KNOWN, 1, seed=3)
    found = invert(X, torch.cat([X, rare], 1), KNOWN, 0)
    assert found.baseline.max() < 4
    assert found.of(slice(0, 6)).r2 > 0.99


def test_psnr_is_that_of_the_range():
    one = torch.ones(4)
    found = Errors(0.01 * one, one, 0.25 * one, -one, one)
    attack, baseline = found.psnr()
    assert baseline == pytest.approx(10 * math.log10(2**2 / 0.25))
    assert attack == pytest.approx(baseline + 20)


def test_one_seed_gives_one_attack():
    first, again = (invert(embedding(), X, KNOWN, 5) for _ in range(2))
    assert torch.equal(first.attack, again.attack)


def logistic(classes: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a linear model that has learned something, the weights, and labels."""
    W, logits = normal(classes, 12, seed=5), normal(ROWS, classes, seed=6)
    if classes == 1:
        y = (torch.sigmoid(2 * logits[:, 0]) > torch.rand(ROWS, generator=torch.Generator().manual_seed(2))).double()
        residual = torch.sigmoid(logits) - y[:, None]
    else:
        y = (logits + normal(ROWS, classes, seed=7)).argmax(1)
        residual = logits.softmax(1) - nn.functional.one_hot(y, classes)
    return residual @ W, W, y


def test_the_direction_of_a_linear_models_gradient_is_the_label():
    gradients, W, y = logistic()
    assert by_direction(gradients, y, Loss.BINARY) == 1.0
    assert by_weights(gradients, W, y, Loss.BINARY) == 1.0
    assert infer_labels(with_directions(gradients), y, Loss.BINARY, KNOWN, few=True) == 1.0


def test_the_norm_of_a_gradient_tells_rare_labels():
    y = (torch.arange(ROWS) % 10 == 0).double()
    assert by_norm((0.1 - y)[:, None] * normal(1, 5), y, Loss.BINARY) == 1.0


def test_weights_tell_the_label_among_many_classes():
    gradients, W, y = logistic(5)
    assert by_weights(gradients, W, y, Loss.MULTICLASS) == 1.0
    assert by_norm(gradients, y, Loss.MULTICLASS) is None
    assert by_direction(gradients, y, Loss.MULTICLASS) is None


def test_random_gradients_tell_nothing():
    gradients, y = normal(ROWS, 12, seed=8), logistic()[2]
    for found in (
        by_norm(gradients, y, Loss.BINARY),
        by_direction(gradients, y, Loss.BINARY),
        infer_labels(gradients, y, Loss.BINARY, KNOWN, few=True),
        infer_labels(gradients, y, Loss.BINARY, KNOWN),
    ):
        assert 0.4 < found < 0.6


def test_the_gradient_of_a_squared_error_tells_of_the_residual():
    y = normal(ROWS, seed=10)
    gradients = -2 * y[:, None] * normal(1, 4)  # of a model that always says 0
    assert by_direction(gradients, y, Loss.SQUARED) == pytest.approx(1)
    assert infer_labels(gradients, y, Loss.SQUARED, KNOWN, few=True) > 0.99
    assert infer_labels(normal(ROWS, 4, seed=11), y, Loss.SQUARED, KNOWN) < 0.05


def test_few_labels_are_few():
    """The first FEW of a class decide; what is said of the others does not matter."""
    y = (torch.arange(ROWS) % 2).double()
    x = y[:, None] + 0.1 * normal(ROWS, 1)
    wrong = y.clone()
    wrong[2 * FEW : KNOWN] = 1 - y[2 * FEW : KNOWN]
    assert infer_labels(x, wrong, Loss.BINARY, KNOWN, few=True) == 1.0
    assert infer_labels(x, wrong, Loss.BINARY, KNOWN) == 0.0


def test_a_class_that_no_known_row_has_is_not_recognised():
    y = torch.arange(ROWS) % 3
    x = nn.functional.one_hot(y, 3).double()
    y[:KNOWN] %= 2
    assert infer_labels(x, y, Loss.MULTICLASS, KNOWN) < 1
    assert infer_labels(x, torch.cat([torch.zeros(KNOWN), y[KNOWN:]]).long(), Loss.MULTICLASS, KNOWN) == 0.5


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_the_score_of_two_classes_is_the_area_under_the_curve(rows):
    labels, scores = torch.tensor(rows, dtype=torch.float64).t()
    if 0 < labels.sum() < len(labels):
        assert score(Loss.BINARY, labels, scores) == pytest.approx(roc_auc_score(labels, scores))


def test_the_score_of_many_classes_is_the_mean_over_them():
    y = torch.arange(60) % 4
    outputs = normal(60, 4).softmax(1)
    assert score(Loss.MULTICLASS, y, outputs) == pytest.approx(roc_auc_score(y, outputs, multi_class="ovr"))
