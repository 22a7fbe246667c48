"""What error feedback is for: a compressor that stalls by itself converges, at the same bytes a round.

docs/theory.md has these figures in a table.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest

from cvfl.config.files import parse_config
from cvfl.federation.train import RunResult, train

ALONE, TOGETHER = "topk:bits=4,by=entry", "feedback(topk:bits=4,by=entry)"


@cache
def run(compressor: str, server_compressor: str = "identity") -> RunResult:
    """Digits by quadrants, four batches an epoch, 20 epochs."""
    values: dict[str, Any] = {
        "data": {"name": "digits", "parties": 4},
        "step_size": {"eta": 0.5},
        "rounds": 80,
        "batch_size": 360,
        "local_iterations": 5,
        "compressor": compressor,
        "server_compressor": server_compressor,
        "party_model": {"width": 8, "hidden": [16]},
        "evaluate_every": 20,
        "seed": 1,
    }
    return train(parse_config(values), workers=1)


def losses(result: RunResult) -> list[float]:
    """Training loss at each evaluation."""
    return [line["train"]["loss"] for line in result.history if "train" in line]


def errors(result: RunResult) -> list[float]:
    """Squared error of all embeddings of a round, at each evaluation; never above its bound."""
    told = [line["compression_error"] for line in result.history if "train" in line]
    assert all(each["measured"] <= each["bound"] for line in told for each in line.values())
    return [sum(each["measured"] for role, each in line.items() if role != "server") for line in told]


def test_top_k_alone_stalls_and_with_feedback_it_reaches_the_uncompressed_loss() -> None:
    exact, alone, together = run("identity"), run(ALONE), run(TOGETHER)
    for key in ("up", "down", "evaluation"):
        assert alone.summary["bytes"][key] == together.summary["bytes"][key]
    assert exact.summary["bytes"]["up"] > 6 * together.summary["bytes"]["up"]
    assert losses(alone)[-1] > 4 * losses(exact)[-1]
    assert losses(together)[-1] < 1.25 * losses(exact)[-1]


def test_the_error_vanishes_with_feedback_and_does_not_without() -> None:
    alone, together = errors(run(ALONE)), errors(run(TOGETHER))
    assert alone[-1] > alone[0]
    assert together[-1] < together[0] / 10
    assert all(later < earlier / 1.5 for earlier, later in itertools.pairwise(together))


def test_auto_reaches_the_uncompressed_accuracy_with_a_thirtieth_of_the_bytes() -> None:
    exact, auto = (result.summary for result in (run("identity"), run("auto", "auto")))
    assert auto["metrics"]["test"]["accuracy"] > exact["metrics"]["test"]["accuracy"] - 0.02
    assert exact["bytes"]["total"] > 30 * auto["bytes"]["total"]
    sent, all_sent = (each["bytes"]["up"] + each["bytes"]["down"] for each in (auto, exact))
    assert all_sent > 35 * sent
    assert losses(run("auto", "auto"))[-1] == pytest.approx(losses(run("identity"))[-1], abs=0.03)
