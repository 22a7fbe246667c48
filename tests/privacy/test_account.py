"""(epsilon, delta): Opacus' figure for the releases that really happened, and where it is told."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opacus.accountants import RDPAccountant
from scipy import special, stats
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.cli.tables import noise_lines
from cvfl.errors import ConfigError
from cvfl.federation.train import train
from cvfl.privacy.account import (
    ORDERS,
    WHOLE_ORDERS,
    Account,
    Spent,
    account,
    check_accountant,
    composed,
    epsilon,
    evaluations,
    shared_epsilon,
    skellam_divergence,
    spent_of_shared,
    training_releases,
)
from cvfl.privacy.noise_of_sum import Shared
from cvfl.report.format import amount
from cvfl.report.report import write_report
from cvfl.runs.compact import compact
from cvfl.runs.read import read_run
from federations import config, data, federation, run

NOISY: dict[str, Any] = {"clip": 1.0, "noise": 2.0, "delta": 1e-6}


def exactly(noise: float, releases: int, delta: float) -> float:
    """Epsilon of the Gaussian mechanism without Rényi privacy: the one at which the exact delta is as asked."""
    mu = 2 * math.sqrt(releases) / noise

    def leak(e: float) -> float:
        return float(stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu))

    low, high = 0.0, 500.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if leak(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize(("noise", "releases"), [(1.0, 1), (2.0, 12), (8.0, 100), (20.0, 7), (60.0, 3)])
def test_epsilon_is_opacus_own_and_an_upper_bound_of_the_exact_one(noise: float, releases: int, delta: float) -> None:
    accountant = RDPAccountant()
    accountant.history = [(noise / 2, 1.0, releases)]
    found, exact = epsilon(noise, releases, delta), exactly(noise, releases, delta)
    assert found == pytest.approx(accountant.get_epsilon(delta, alphas=ORDERS))
    assert exact < found < 1.25 * exact + 0.02


def test_epsilon_of_the_default_orders_is_not_better() -> None:
    accountant = RDPAccountant()
    accountant.history = [(1.0, 1.0, 12)]
    assert epsilon(2.0, 12, 1e-5) <= accountant.get_epsilon(1e-5) == pytest.approx(epsilon(2.0, 12, 1e-5), rel=0.01)


def test_epsilon_grows_with_releases_and_falls_with_noise() -> None:
    by_releases = [epsilon(2.0, n, 1e-5) for n in (0, 1, 2, 10, 1000)]
    assert by_releases[0] == 0
    assert by_releases == sorted(set(by_releases))
    by_noise = [epsilon(noise, 5, 1e-5) for noise in (1e6, 30, 3, 0.3, 1e-3)]
    assert 0 <= by_noise[0] < 1e-3
    assert by_noise == sorted(set(by_noise))  # and no warning for much or for little


@pytest.mark.parametrize("batch_size", [16, 20, 60])
@pytest.mark.parametrize("rounds", [1, 5, 12])
def test_releases_are_the_frames_that_left(rounds: int, batch_size: int) -> None:
    """Counted at the parties themselves, row by row."""
    fed = federation(rounds=rounds, batch_size=batch_size, evaluate_every=2, privacy=NOISY)
    visits: Counter[int] = Counter()
    evaluated = 0
    release, plan = fed.parties[0].release, fed.plan
    assert release is not None

    def counted(h: Any, purpose: str, t0: int) -> Any:
        nonlocal evaluated
        visits.update(plan.batch(t0).tolist() if purpose == "embedding" else ())
        evaluated += purpose == "evaluation"
        return release(h, purpose, t0)

    fed.parties[0].release = counted  # type: ignore[assignment]
    run(fed)
    # Algorithm 1 keeps the packet it sent, so that nothing is released but what is sent.
    assert training_releases(plan, rounds) == max(visits.values()) == -(-rounds // plan.rounds_per_epoch)
    assert evaluations(plan, rounds) == evaluated == (rounds + 1) // 2


def test_a_run_that_was_stopped_counts_what_may_have_been_sent() -> None:
    plan = federation(rounds=20, batch_size=60, evaluate_every=1, privacy=NOISY).plan
    assert [training_releases(plan, done) for done in (0, 1, 18, 19, 20)] == [2, 3, 20, 20, 20]
    assert [evaluations(plan, done) for done in (0, 1, 18, 19, 20)] == [1, 2, 19, 20, 20]


def test_the_account() -> None:
    plan = federation(rounds=8, batch_size=20, evaluate_every=4, privacy=NOISY).plan
    found = account(**NOISY, plan=plan, rounds=8)
    assert found is not None
    assert found.model_dump(exclude_none=True) == {
        **NOISY,
        "parties": 3,
        "training": {"releases": 3, "one_party": epsilon(2, 3, 1e-6), "all_parties": epsilon(2, 9, 1e-6)},
        "held_out": {"releases": 2, "one_party": epsilon(2, 2, 1e-6), "all_parties": epsilon(2, 6, 1e-6)},
    }
    assert account(1.0, None, 1e-5, plan, 8) is None


def divergence(order: float, moved: int, variance: float) -> float:
    """Rényi divergence of a Skellam number that was moved from one that was not, added up term by term."""
    reach = int(3 * moved * order + 40 * math.sqrt(variance) + 60)
    k = np.arange(-reach, reach + moved + 1)
    with np.errstate(divide="ignore"):
        logs = np.log(special.ive(np.abs(k), variance))
    p, q = logs[: len(logs) - moved], logs[moved:]
    kept = np.isfinite(p) & np.isfinite(q)
    terms = order * p[kept] + (1 - order) * q[kept]
    assert max(terms[0], terms[-1]) < terms.max() - 40  # the ends are far enough
    return float(special.logsumexp(terms)) / (order - 1)


@pytest.mark.parametrize("variance", [2.0, 10.0, 60.0, 1000.0, 20_000.0])
@pytest.mark.parametrize("moved", [1, 2, 7, 20])
def test_the_divergence_of_skellam_noise_is_below_its_bound(moved: int, variance: float) -> None:
    """And near it, and that near the Gaussian's, where the variance is large."""
    for order in (2, 3, 5, 12):
        if 1.5 * moved * order > variance and moved > 2:
            continue  # so far out that the sum has no floats for it
        exact, bound = divergence(order, moved, variance), skellam_divergence(order, moved**2, moved, variance)
        gaussian = order * moved**2 / (2 * variance)
        assert exact < bound
        assert gaussian < bound < gaussian * (1 + (2 + 6 / moved) / variance)
        if variance > 50 * moved * order and variance > 500:
            assert bound < 1.02 * exact


@pytest.mark.parametrize("variance", [3.0, 50.0])
def test_rows_of_numbers_that_move_apart_stay_below_the_bound_of_their_squares(variance: float) -> None:
    """Divergences of independent numbers add up; the account knows the sum of squares alone."""
    for row in ((1, 1, 1, 1), (2, 0, 0, 0), (3, 2, 1, 0), (1, 1, 5, 3)):
        squared = sum(k * k for k in row)
        absolute = min(math.sqrt(len(row) * squared), squared)
        assert absolute >= sum(row)
        for order in (2, 4):
            exact = sum(divergence(order, k, variance) for k in row if k)
            assert exact < skellam_divergence(order, squared, absolute, variance)


def exactly_shared(shared: Shared, delta: float, known: int = 0) -> float:
    """Epsilon of one release of one number, by the probabilities of all that can be read."""
    moved = 2 * math.isqrt(shared.length)
    left = shared.variance * (shared.parties - known) / shared.parties
    reach = int(14 * math.sqrt(left)) + moved
    p = stats.skellam.pmf(np.arange(-reach, reach + moved), left / 2, left / 2)
    there, here = p[:-moved], p[moved:]

    def leak(e: float) -> float:
        return float(np.maximum(there - math.exp(e) * here, 0).sum())

    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if leak(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("noise", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("known", [0, 1, 3])
def test_epsilon_of_shared_noise_is_an_upper_bound_of_the_exact_one(noise: float, known: int) -> None:
    shared = Shared.of(1.0, noise, 2 / 63, 4, 1)
    found, exact = shared_epsilon([(shared, 1)], 1e-5, known=known), exactly_shared(shared, 1e-5, known)
    assert exact < found < 1.25 * exact + 0.02


@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("releases", [1, 6])
def test_on_a_fine_grid_it_is_that_of_gaussian_noise_of_the_sum(noise: float, releases: int) -> None:
    """Less what others know: a party its own part, and all but one all but one part."""

    def gaussian(noise: float) -> Any:
        accountant = RDPAccountant()
        accountant.history = [(noise / 2, 1.0, releases)]
        return pytest.approx(accountant.get_epsilon(1e-5, alphas=WHOLE_ORDERS), rel=0.005)

    spent = spent_of_shared([(Shared.of(1.0, noise, 2 / 1023, 4, 2), releases)], 1e-5)
    assert spent.against_server == gaussian(noise)
    assert spent.one_party == gaussian(noise * math.sqrt(3 / 4))
    assert spent.against_others == gaussian(noise / 2)
    assert spent.all_parties == gaussian(noise / 4)
    assert spent.against_server < spent.one_party < spent.against_others < spent.all_parties


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 4.0])
def test_the_grid_of_auto_costs_no_epsilon(noise: float) -> None:
    fine, auto = (spent_of_shared([(Shared.of(1.0, noise, 2 / n, 4, 2), 1)], 1e-5) for n in (511, 63))
    assert auto.one_party == pytest.approx(fine.one_party, rel=0.01)


def test_nothing_released_is_nothing_spent() -> None:
    spent = spent_of_shared([(Shared.of(1.0, 1.0, 0.1, 3, 2), 0)], 1e-5)
    assert {*spent.model_dump().values()} == {0}


SHARED: dict[str, Any] = {"aggregation": "secure", "noise_shared": True}


def test_the_account_of_shared_noise(tmp_path: Path) -> None:
    """In the record of a run, its report and the terminal; and of several runs together."""
    changes: dict[str, Any] = {"server_model": {"name": "sum"}, "compressor": "auto", "privacy": NOISY | SHARED}
    summary = train(config(rounds=8, batch_size=20, evaluate_every=4, **changes), data(), out=tmp_path / "run").summary
    shared = Shared.of(1.0, 2.0, 2 / 63, 3, 4)
    found = read_run(tmp_path / "run").account
    assert found is not None
    assert found == Account.model_validate(summary["privacy"])
    assert (found.shared, found.parties) == (shared, 3)
    assert found.training == spent_of_shared([(shared, 3)], 1e-6)
    assert found.held_out == spent_of_shared([(shared, 2)], 1e-6)
    both = composed([found, found])
    assert both.training == spent_of_shared([(shared, 6)], 1e-6)
    wider = shared.model_copy(update={"numbers": 9})
    more = found.model_copy(update={"shared": wider})
    assert composed([found, more]).training == spent_of_shared([(shared, 3), (wider, 3)], 1e-6)
    assert both.training.one_party < composed([found, more]).training.one_party
    one = found.training
    text = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "run" / "report.html").read_text()).split())
    noise = "norm at most 1, Skellam noise 2 of it in the sum of 3, δ 10⁻⁶"
    assert f"{noise}; ε at one party is against any one other party" in text
    assert f"training row, against the server alone 3 {amount(one.against_server or 0)}" in text
    assert f"training row, against all others together 3 {amount(one.against_others or 0)}" in text
    assert f"{amount(one.one_party)} δ 10⁻⁶, at one party, against any one other party; ε " in text
    said = f"ε {one.one_party:.3g} at one party (against any one other party; {one.against_server:.3g} against the "
    assert said in noise_lines(summary)[0]


@pytest.mark.parametrize(("M", "others"), [(2, 0.007), (4, 0.016), (8, 0.034), (16, 0.07)])
def test_what_a_coarse_grid_costs_is_as_the_page_says(M: int, others: float) -> None:
    """docs/noise.md: that of `auto` beside one that is so fine that it costs nothing."""
    for noise, most, most_of_all in ((0.5, 0.007, others), (1.0, 0.016, 0.016), (2.0, 0.003, 0.003)):
        coarse = Shared.of(1.0, noise, 2 / 63, M, 256)
        steps = 2.0**19
        fine = coarse.model_copy(update={"length": int(steps**2), "variance": (noise * steps) ** 2, "step": 1 / steps})
        ours, best = (spent_of_shared([(one, 1)], 1e-5) for one in (coarse, fine))
        assert ours.one_party < (1 + most) * best.one_party
        assert ours.all_parties < (1 + most) * best.all_parties
        assert (ours.against_server or 9e9) < (1 + most) * (best.against_server or 0)
        assert (ours.against_others or 9e9) < (1 + most_of_all) * (best.against_others or 0)
        if noise == 0.5:
            assert (ours.against_others or 0) > (1 + 0.9 * others) * (best.against_others or 9e9)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("noisy") / "run"
    train(config(rounds=8, batch_size=20, evaluate_every=4, privacy=NOISY), data(), out=out, name="noisy")
    return out


def test_a_run_records_it_and_the_report_shows_it(noisy: Path, tmp_path: Path) -> None:
    found = read_run(noisy).account
    training, held_out = (
        Spent(releases=n, one_party=epsilon(2, n, 1e-6), all_parties=epsilon(2, 3 * n, 1e-6)) for n in (3, 2)
    )
    assert found == Account(**NOISY, parties=3, training=training, held_out=held_out)
    text = " ".join(re.sub(r"<[^>]*>", " ", (noisy / "report.html").read_text()).split())
    against = "at one party, against all others together; ε "
    assert f"Privacy of a training row ε {amount(training.one_party)} δ 10⁻⁶, {against}" in text
    assert f"ε {amount(training.all_parties)} over all 3" in text
    assert "norm at most 1, Gaussian noise 2 of it, δ 10⁻⁶; ε at one party is against all others together" in text
    assert f"training row 3 {amount(training.one_party)} {amount(training.all_parties)} held-out row 2 " in text
    open_run = tmp_path / "open"
    train(config(rounds=2), data(), out=open_run, name="open")
    assert "Noise" not in (open_run / "report.html").read_text()
    assert json.loads((open_run / "summary.json").read_text())["privacy"] is None
    write_report([open_run, noisy], tmp_path / "both.html")
    both = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "both.html").read_text()).split())
    assert "Rounds ε Total MB" in both
    assert "ε is that of a training row at one party, against all others together." in both
    summary = json.loads((noisy / "summary.json").read_text())
    of_all = Shared.of(1.0, 2.0, 2 / 63, 3, 4).model_dump()
    parts = {kind: summary["privacy"][kind] | {"against_server": 1.0} for kind in ("training", "held_out")}
    shared = summary["privacy"] | parts | {"shared": of_all}
    shutil.copytree(noisy, tmp_path / "shared")
    (tmp_path / "shared" / "summary.json").write_text(json.dumps(summary | {"privacy": shared, "name": "shared"}))
    write_report([noisy, tmp_path / "shared"], tmp_path / "kinds.html")
    kinds = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "kinds.html").read_text()).split())
    assert "against all others together (noisy); against any one other party (shared)." in kinds


def test_a_published_record_keeps_it(noisy: Path, tmp_path: Path) -> None:
    compact(noisy, tmp_path / "small", "accuracy")
    kept = read_run(tmp_path / "small").account
    assert kept is not None
    assert kept.training.one_party == pytest.approx(epsilon(2, 3, 1e-6), rel=1e-5)


def test_the_terminal_shows_it(noisy: Path) -> None:
    summary = json.loads((noisy / "summary.json").read_text())
    one, other = noise_lines(summary)
    against = "at one party (against all others together), "
    numbers = f"ε {epsilon(2, 3, 1e-6):.3g} {against}{epsilon(2, 9, 1e-6):.3g} at all 3; δ 1e-06; sent 3 times"
    assert one == f"training row: {numbers}"
    assert other.startswith(f"held-out row: ε {epsilon(2, 2, 1e-6):.3g} {against}")
    assert noise_lines(summary | {"privacy": None}) == []
    never = summary["privacy"]["held_out"] | {"releases": 0}
    assert noise_lines(summary | {"privacy": summary["privacy"] | {"held_out": never}}) == [one]


def test_a_missing_extra_is_told_before_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_accountant(None)
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_accountant(None)
    rounds: list[object] = []
    with pytest.raises(ConfigError, match=r"privacy.noise needs: pip install 'cvfl\[privacy\]'"):
        train(config(privacy=NOISY), data(), on_round=rounds.append, out=tmp_path / "run")
    assert rounds == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("privacy.noise=1", "privacy.noise needs privacy.clip"),
        ("privacy.noise=0", "privacy.noise: input should be greater than"),
        ("privacy.clip=-1", "privacy.clip: input should be greater than"),
        ("privacy.clip=inf", "privacy.clip: input should be less than"),
        ("privacy.delta=1", "privacy.delta: input should be less than 1"),
        ("privacy.sigma=1", "unknown key 'privacy.sigma'"),
    ],
)
def test_a_bad_configuration_is_one_line(change: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('rounds = 2\n[data]\nname = "wine"\n[step_size]\neta = 0.1\n')
    result = CliRunner().invoke(app, ["train", str(path), "--set", change])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert len(result.output.strip().splitlines()) <= 2


def test_a_compressor_that_noise_would_break_is_refused_by_its_key() -> None:
    limited = "feedback(scalar:bits=2,low=-1,high=1)"
    for key, changes in {
        "compressor": {"compressor": limited},
        "party.org2.compressor": {"party": {"org2": {"compressor": limited}}},
    }.items():
        with pytest.raises(ConfigError, match=rf"{key}: low and high inside feedback limit differences"):
            config(privacy=NOISY, **changes)
        config(**changes)
