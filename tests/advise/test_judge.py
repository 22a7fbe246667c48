"""`cvfl plan` without its command: what is tried, who qualifies, who wins, and that predictions come true."""

import itertools
import re
import time

import pytest

from cvfl.advise.candidates import AUTO, CANDIDATES, LOCAL_ITERATIONS, NONE, Setting, candidate, settings
from cvfl.advise.forecast import Network, forecast
from cvfl.advise.judge import advise, best, judge
from cvfl.advise.trials import Calibration, Effort, Trials, calibrate
from cvfl.config.files import parse_config
from cvfl.errors import ConfigError, CvflError
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.protocol import Loss, Plan, StepSize

LAN = Network(bandwidth=1e9, latency=1e-4)
SCALAR, LATTICE, TOPK = candidate("scalar:bits=2"), candidate("lattice:bits=3"), candidate("topk:bits=2")


def digits(**changes):
    values = {"data": {"name": "digits"}, "step_size": {"eta": 0.1}, "batch_size": 128, "local_iterations": 4}
    return parse_config(values | {"epochs": 4} | changes)


def ticks():
    """A clock for which everything takes equally long."""
    return itertools.count(0.0, 0.001).__next__


@pytest.fixture(scope="module")
def data():
    return load_data(digits())


class TestCandidates:
    def test_the_reference_comes_first_and_none_before_its_compressors(self):
        wanted = settings(digits(), CANDIDATES, LOCAL_ITERATIONS)
        assert [setting.Q for setting in wanted[:5]] == [4, 1, 5, 10, 25]
        assert [setting.candidate for setting in wanted[:6]] == [NONE] * 5 + [CANDIDATES[1]]
        assert len(wanted) == len(set(wanted)) == 5 * len(CANDIDATES)

    @pytest.mark.parametrize(
        "changes",
        [
            {"algorithm": 2, "local_iterations": 1},
            {"step_size": {"eta": 0.1, "schedule": "sqrt"}},
            {"step_size": {"eta": 0.1, "schedule": "milestones", "milestones": [9]}},
        ],
    )
    def test_Q_stays_where_it_must(self, changes):
        config = digits(**changes)
        assert {setting.Q for setting in settings(config, CANDIDATES, (1, 5))} == {config.local_iterations}

    def test_none_compresses_nothing_and_the_others_what_is_configured(self):
        plain = digits(server_compressor="identity")
        assert Setting(NONE, 3).of(digits(), 7).server_compressor == "identity"
        assert Setting(SCALAR, 3).of(plain, 7).server_compressor == "scalar:bits=8"
        assert Setting(SCALAR, 3).of(digits(server_compressor="scalar:bits=5"), 7).server_compressor == "scalar:bits=5"
        own = digits(party={"bank": {"compressor": "topk:bits=4"}})
        assert Setting(SCALAR, 3).of(own, 7).compressor_of("bank") == "scalar:bits=2"

    def test_an_unknown_compressor_is_known_as_such_at_once(self):
        with pytest.raises(ConfigError, match="did you mean 'scalar'"):
            candidate("skalar:bits=2")
        assert candidate("identity") is NONE


class TestCalibration:
    def test_loss_and_bytes_are_those_of_training(self, data):
        config = digits(compressor="topk:bits=4", rounds=14, epochs=None)
        history = train(config, data).history
        seen = calibrate(config, data, 14, ticks())
        assert list(seen.losses) == [line["loss"] for line in history]
        for key, sent in (("up", seen.up), ("down", seen.down)):
            assert list(itertools.accumulate(sent)) == [line["bytes"][key] for line in history]
        assert sum(seen.evaluations) * 2 == history[-1]["bytes"]["evaluation"]  # after epoch 1, and at the end

    def test_a_round_takes_the_server_and_then_the_slowest_role(self, data):
        # Every call takes one tick: the server receives four messages, then trains beside four parties.
        assert calibrate(digits(), data, 5, itertools.count().__next__).seconds == 5

    def test_one_slow_party_makes_a_slow_round(self, data):
        slow = {"bank": {"model": {"name": "mlp", "width": 16, "hidden": [2048, 2048]}}}
        seconds = [calibrate(digits(party=party), data, 5, time.thread_time).seconds for party in ({}, slow)]
        assert seconds[1] > 3 * seconds[0] > 0


def row(candidate, Q, seconds, sent, *, first=2.0, per_round=0.1, rounds=20, **more):
    """A calibration whose loss falls by so much a round, and whose rounds cost so much."""
    losses = tuple(first - per_round * r for r in range(rounds))
    seen = Calibration(losses, (sent,) * rounds, (3 * sent,) * rounds, (), seconds, **more)
    return Setting(candidate, Q), seen


class TestJudgement:
    """Q0 = 4, 10 epochs of 10 rounds; `none` brings the loss down by 0.1 a round."""

    PLAN = Plan(0, 100, 4, 10, 100, 0, (2,), Loss.BINARY, StepSize(eta=0.1), evaluate_every=10)
    BASE = row(NONE, 4, 0.01, 1000)

    def judged(self, *rows, network=LAN, tolerance=0.01, config=None):
        config = config or digits(epochs=10)
        return judge(Trials(dict([self.BASE, *rows])), config, self.PLAN, network, tolerance)

    def test_who_falls_behind_does_not_qualify(self):
        advice = self.judged(row(SCALAR, 4, 0.01, 100, per_round=0.0995), row(TOPK, 4, 0.01, 1, per_round=0.05))
        none, scalar, topk = advice.rows
        assert (none.objection, scalar.objection, topk.objection) == ("", "", "loss")
        assert none.learnt == 1
        assert scalar.learnt == pytest.approx(0.995)
        assert advice.best is scalar
        assert self.judged(row(TOPK, 4, 0.01, 1, per_round=0.098), tolerance=0.05).best.setting.candidate == TOPK

    def test_who_lags_a_little_gets_the_rounds_that_it_lacks(self):
        slow, slower = (self.judged(row(TOPK, 4, 0.01, 1, per_round=fall)).rows[1] for fall in (0.08, 0.04))
        assert (slow.objection, slower.objection) == ("", "loss")
        assert slow.learnt < 0.9
        assert 100 < slow.forecast.rounds <= 150

    def test_validation_rows_have_a_say(self):
        self.BASE = row(NONE, 4, 0.01, 1000, validation={"roc_auc": 0.80})
        rows = [row(one, 4, 0.01, 100, validation={"roc_auc": auc}) for one, auc in ((SCALAR, 0.785), (LATTICE, 0.795))]
        advice = self.judged(*rows)
        assert [one.objection for one in advice.rows] == ["", "roc_auc", ""]
        assert advice.rows[1].gap == pytest.approx(-0.015)
        assert advice.metric == "roc_auc"
        assert advice.best.setting.candidate == LATTICE

    def test_more_local_iterations_need_fewer_rounds(self):
        rows = row(NONE, 8, 0.02, 1000, per_round=0.2), row(SCALAR, 8, 0.02, 100, per_round=0.2)
        advice = self.judged(*rows, network=Network(1e9, 0.1))
        twice = advice.rows[2]
        assert twice.keys["epochs"] == 7  # 13 rounds to where the reference is after 20, and whole epochs
        assert twice.forecast.rounds == 70
        assert twice.forecast.sent.total == 70 * 400
        assert advice.best is twice

    def test_rounds_instead_of_epochs_are_exact(self):
        advice = self.judged(row(NONE, 8, 0.02, 1000, per_round=0.2), config=digits(rounds=100, epochs=None))
        assert advice.rows[0].keys["rounds"] == 100
        assert advice.rows[1].keys["rounds"] == advice.rows[1].forecast.rounds == 65

    def test_a_schedule_by_rounds_keeps_its_length(self):
        config = digits(epochs=10, step_size={"eta": 0.1, "schedule": "inverse"})
        late = row(SCALAR, 4, 0.01, 100, per_round=0.09)
        assert self.judged(late, config=config, tolerance=0.2).rows[1].forecast.rounds == 100
        assert (
            self.judged(late, tolerance=0.2).rows[1].forecast.rounds == 110
        )  # 19 rounds instead of 18, both with a lag of 5

    def test_the_network_decides_between_few_rounds_and_light_ones(self):
        rows = row(NONE, 8, 0.5, 1000, per_round=0.2), row(SCALAR, 4, 0.01, 100)
        assert self.judged(*rows, network=Network(1e9, 0.0)).best.setting == Setting(SCALAR, 4)
        assert self.judged(*rows, network=Network(1e9, 1.0)).best.setting == Setting(NONE, 8)

    def test_of_nearly_equal_times_the_fewest_bytes_win(self):
        rows = row(SCALAR, 4, 0.0104, 100), row(LATTICE, 4, 0.01, 150)
        assert self.judged(*rows, network=Network(1e12, 0.0)).best.setting.candidate == SCALAR
        rows = row(SCALAR, 4, 0.0107, 100), row(LATTICE, 4, 0.01, 150)
        assert self.judged(*rows, network=Network(1e12, 0.0)).best.setting.candidate == LATTICE

    def test_a_Q_that_does_not_get_there_is_out(self):
        advice = self.judged(row(NONE, 1, 0.001, 1000, per_round=0.05), row(SCALAR, 1, 0.001, 10, per_round=0.05))
        assert [one.objection for one in advice.rows] == ["", "too slow", "too slow"]
        assert advice.rows[2].forecast is None
        assert advice.best is advice.reference

    def test_what_failed_is_said(self):
        failed = {Setting(SCALAR, 4): "bank, round 3: the embedding spans too much", Setting(NONE, 25): "diverged"}
        trials = Trials(dict([self.BASE]) | failed | dict([row(SCALAR, 25, 0.01, 1)]))
        advice = judge(trials, digits(), self.PLAN, LAN, 0.01)
        assert [one.objection for one in advice.rows] == ["", "failed", "failed", "none failed"]
        assert "embedding spans" in advice.rows[1].error

    def test_a_reference_that_learns_nothing_is_an_error(self):
        self.BASE = row(NONE, 4, 0.01, 1000, per_round=-0.1)
        with pytest.raises(ConfigError, match=r"in 20 rounds without compression the loss went from 2 to 3\.45"):
            self.judged()

    def test_best_has_no_favourite_without_a_qualified_row(self):
        rows = self.judged(row(TOPK, 4, 0.001, 1, per_round=0.01)).rows
        assert best(rows) is rows[0]


class TestPlan:
    FEW = (NONE, SCALAR, TOPK)

    def plan(self, config, data, network=LAN, effort=Effort(1), local=(10,), **more):  # noqa: B008
        return advise(config, data, network, 0.02, effort, self.FEW, local, **more)

    def test_the_same_configuration_gives_the_same_plan(self, data):
        plans = [self.plan(digits(), data, Network(1e7, 0.02), clock=ticks()) for _ in range(2)]
        assert plans[0] == plans[1]
        assert plans[0].complete
        slower = self.plan(digits(), data, Network(1e7, 0.02), clock=itertools.count(0.0, 0.0011).__next__)
        judged = [
            {one.setting: (one.objection, one.learnt, one.keys, one.forecast.sent) for one in advice.rows}
            for advice in (plans[0], slower)
        ]
        assert judged[0] == judged[1]
        assert slower.best.forecast.compute > plans[0].best.forecast.compute

    def test_the_predicted_bytes_are_those_of_the_run(self, data):
        """Every row that was tried at the configured Q, and the best: trained in full and metered."""
        advice = self.plan(digits(epochs=3), data, Network(1e7, 0.02))
        rows = [advice.best, *(one for one in advice.rows if one.setting.Q == 4)]
        for one in rows:
            config = one.setting.of(digits(epochs=3), one.forecast.rounds)
            sent = train(config, data).summary["bytes"]
            predicted = (one.forecast.sent.up, one.forecast.sent.down, one.forecast.evaluation)
            assert predicted == (sent["up"], sent["down"], sent["evaluation"]), one.setting
            assert one.forecast.alignment == sent["alignment"] == 0
            # An error is told as text, of which the length differs.
            assert one.forecast.setup == pytest.approx(sent["setup"], rel=0.02)
            assert one.forecast.total == pytest.approx(sent["total"], rel=0.002)

    @pytest.mark.slow
    def test_messages_that_shrink_are_foreseen_within_a_third(self, data):
        config = digits(compressor="auto", server_compressor="auto", batch_size=128, local_iterations=10, epochs=20)
        seen = calibrate(config, data, 33, ticks())
        cost = forecast(seen, recipe_for(config, data.data).plan, LAN, AUTO.falling)
        sent = train(config, data).summary["bytes"]
        assert cost.sent.total == pytest.approx(sent["up"] + sent["down"], rel=1 / 3)
        constant = forecast(seen, recipe_for(config, data.data).plan, LAN)
        assert constant.sent.total > 1.2 * cost.sent.total

    def test_a_few_rounds_already_tell_the_bytes(self, data):
        config = digits(compressor="lattice:bits=3", server_compressor="scalar:bits=8", rounds=40, epochs=None)
        cost = forecast(calibrate(config, data, 4, ticks()), recipe_for(config, data.data).plan, LAN)
        sent = train(config, data).summary["bytes"]
        assert cost.sent.up == pytest.approx(sent["up"], rel=0.01)
        assert cost.sent.down == pytest.approx(sent["down"], rel=0.02)
        assert cost.evaluation == sent["evaluation"]

    def test_what_cannot_win_is_not_tried(self, data):
        advice = self.plan(digits(), data, Network(1e9, 1.0), local=(1, 10), clock=ticks())  # a second of latency
        assert {setting.Q for setting in advice.skipped} == {1}
        assert {one.setting for one in advice.rows} >= {Setting(one, Q) for one in self.FEW for Q in (4, 10)}
        assert advice.best.setting.Q == 10

    def test_ctrl_c_leaves_what_is_known(self, data):
        def on_work(done, total):
            if done > total // 2:
                raise KeyboardInterrupt

        advice = self.plan(digits(), data, clock=ticks(), on_work=on_work)
        assert not advice.complete
        assert 1 <= len(advice.rows) < 2 * len(self.FEW)
        assert advice.best.forecast

    def test_ctrl_c_before_anything_is_known(self, data):
        def on_work(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.plan(digits(), data, on_work=on_work)

    def test_work_is_counted_to_the_end(self, data):
        told = []
        self.plan(digits(), data, clock=ticks(), on_work=lambda *work: told.append(work))
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1]
        assert len({total for _, total in told}) == 1

    def test_a_candidate_that_fails_does_not_stop_the_others(self, data):
        narrow = candidate("scalar:bits=2,low=-0.01,high=0.01")
        advice = advise(digits(), data, LAN, 0.02, Effort(1), (NONE, narrow, LATTICE), (4,))
        assert [one.objection for one in advice.rows] == ["", "failed", ""]
        assert "hospital, round 0: the embedding spans" in advice.rows[1].error

    def test_a_reference_that_diverges_ends_it(self, data):
        config = digits(step_size={"eta": 1e30}, party_model={"name": "linear"})
        with pytest.raises(CvflError, match="hospital, round 1: the embedding reaches"):
            self.plan(config, data)

    def test_seconds_shorten_the_calibration_or_are_too_few(self, data):
        with pytest.raises(ConfigError, match=r"--seconds 0\.01: 10 rounds of each of 6 candidates take") as error:
            self.plan(digits(epochs=50), data, effort=Effort(50, 0.01))
        needed = int(re.search(r"about (\d+);", str(error.value))[1])
        advice = self.plan(digits(epochs=50), data, effort=Effort(50, 2.0 * (needed + 1)))
        assert 10 <= advice.calibrated < 550

    def test_algorithm_2(self, data):
        config = digits(algorithm=2, local_iterations=1, epochs=2)
        advice = self.plan(config, data)
        assert {one.setting.Q for one in advice.rows} == {1}
        assert advice.best.forecast.rounds >= 22
