"""Randomised response: its probabilities, who repeats a draw, and what does not repeat it; the ledger of releases."""

from __future__ import annotations

import math
import stat
from pathlib import Path

import numpy as np
import pytest

from cvfl.errors import DataError
from cvfl.federation.told_labels.secret import Release, told_before
from cvfl.privacy.label_draw import tell_classes, tell_quantities
from cvfl.protocol.learning.randomised import GRID, Randomised

SECRET, N = bytes(range(32)), 40_000
IDS = [f"id {i}" for i in range(N)]


def told(
    epsilon: float, codes: np.ndarray, names: tuple[str, ...] = ("no", "yes"), secret: bytes = SECRET
) -> np.ndarray:
    return tell_classes(secret, Randomised(epsilon), "late", IDS[: len(codes)], codes, names)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.1, 2), (1.0, 2), (1.0, 5), (3.0, 3), (20.0, 2)])
def test_shares_are_those_of_the_definition(epsilon: float, classes: int) -> None:
    noise, names = Randomised(epsilon), tuple("cabde")[:classes]
    assert noise.keep(classes) == pytest.approx(math.exp(epsilon) * noise.other(classes))
    for own in range(classes):
        found = np.bincount(told(epsilon, np.full(N, own), names), minlength=classes) / N
        for c in range(classes):
            p = noise.keep(classes) if c == own else noise.other(classes)
            assert abs(found[c] - p) <= 5 * math.sqrt(p * (1 - p) / N) + 1e-9


def test_two_classes_flip_with_rho() -> None:
    assert Randomised(1.0).other(2) == pytest.approx(1 / (1 + math.e))
    assert Randomised(1.0).tells(2) == pytest.approx(math.tanh(0.5))


def test_a_row_is_told_alike_again_whatever_else_there_is() -> None:
    codes = np.arange(1000) % 3
    whole, names = told(1.0, codes, ("a", "b", "c")), ("a", "b", "c")
    some = np.arange(999, -1, -7)
    ids = [IDS[place] for place in some]
    assert (tell_classes(SECRET, Randomised(1.0), "late", ids, codes[some], names) == whole[some]).all()
    assert not (told(1.0, codes, names, bytes(32)) == whole).all()


def test_the_order_of_classes_does_not_matter() -> None:
    codes = np.arange(1000) % 3
    assert (told(1.0, codes, ("a", "b", "c")) == 2 - told(1.0, 2 - codes, ("c", "b", "a"))).all()


@pytest.mark.parametrize("other", [Randomised(0.5), Randomised(1.0000001)])
def test_draws_of_another_epsilon_are_independent(other: Randomised) -> None:
    """One number for both would show which labels are true: flips of the smaller epsilon would contain the others."""
    codes = np.zeros(N, dtype=np.int64)
    one, two = told(1.0, codes), tell_classes(SECRET, other, "late", IDS, codes, ("no", "yes"))
    expected = Randomised(1.0).other(2) * other.other(2)
    assert abs(float((one * two).mean()) - expected) <= 5 * math.sqrt(expected / N)


def test_a_changed_label_is_drawn_anew() -> None:
    before, after = told(1.0, np.zeros(N, dtype=np.int64)), 1 - told(1.0, np.ones(N, dtype=np.int64))
    rho = Randomised(1.0).other(2)
    assert abs(float((before * after).mean()) - rho**2) <= 5 * rho / math.sqrt(N)  # flipped in both, by chance alone


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_quantities_have_the_noise_that_is_stated(epsilon: float) -> None:
    noise = Randomised(epsilon, (-1.0, 3.0))
    values = np.repeat([-9.0, 0.25, 3.0, 80.0], N // 4)
    found = tell_quantities(SECRET, noise, "amount", IDS, values)
    steps = (found + 1) / 4 * GRID
    assert np.abs(steps - np.rint(steps)).max() < 1e-6  # nothing but whole steps of the grid
    away = found - np.clip(values, -1, 3)
    deviation = math.sqrt(noise.variance(1.0))
    assert deviation == pytest.approx(math.sqrt(2) * 4 / epsilon, rel=1e-3)
    assert abs(away.mean()) <= 5 * deviation / math.sqrt(N)
    assert away.std() == pytest.approx(deviation, rel=0.05)


def test_no_step_of_a_quantity_is_told_more_than_e_epsilon_as_often() -> None:
    noise, few = Randomised(2.0, (0.0, 1.0)), [str(i) for i in range(200_000)]
    low, high = (tell_quantities(SECRET, noise, "amount", few, np.full(len(few), at)) for at in (0.0, 1.0))
    edges = np.array([-np.inf, -1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, np.inf])
    counts = [np.histogram(side, edges)[0] for side in (low, high)]
    ratios = [np.maximum(a, 1) / np.maximum(b, 1) for a, b in (counts, counts[::-1])]
    assert max(ratio.max() for ratio in ratios) <= math.exp(2.0) * 1.1
    assert max(ratio.max() for ratio in ratios) >= math.exp(2.0) * 0.9  # it is all that epsilon allows


def release(epsilon: float, column: str = "late") -> Release:
    return Release(column=column, epsilon=epsilon, labels=("no", "yes"))


def test_the_ledger_has_every_release_once(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv.label_secret"
    secret, first = told_before(path, release(1.0))
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.epsilon for one in first] == [1.0]
    again, twice = told_before(path, release(1.0))
    assert (again, twice) == (secret, first)
    told_before(path, release(3.0, "other"))
    assert [one.epsilon for one in told_before(path, release(0.5))[1]] == [1.0, 0.5]


def test_a_line_that_a_crash_cut_short_told_nothing(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret, _ = told_before(path, release(1.0))
    path.write_bytes(path.read_bytes() + b'{"column":"late","eps')
    assert told_before(path, release(2.0)) == (secret, [release(1.0), release(2.0)])


def test_a_damaged_secret_is_not_drawn_anew(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text('{"secret": "00"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="bring it back from a backup"):
        told_before(path, release(1.0))
    assert path.read_text(encoding="utf-8") == '{"secret": "00"}\n'
