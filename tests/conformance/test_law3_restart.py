"""Law 3: kill any role or cut it off at any frame and start it again; the run continues and ends in the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import NAMED, SERVER, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, same
from cvfl.errors import CvflError

Fault = Callable[[Loop], None]
pytestmark = pytest.mark.usefixtures("tidy")
SHORT: dict[str, Any] = {"rounds": 3, "every": 1}
REPEATED: dict[str, Any] = {"data": {"name": "wine", "parties": 2}, "rounds": 5, "every": 2}
"""Rounds of the second epoch lie between two checkpoints."""


FAULTS: dict[str, Fault] = {
    "server": lambda loop: loop.kill(SERVER),
    "first party": lambda loop: loop.kill(loop.names[0]),
    "last party": lambda loop: loop.kill(loop.names[-1]),
    "everyone": Loop.kill_all,
    "connection of the first": lambda loop: loop.cut(loop.names[0]),
    "connection of the last, nothing lost": lambda loop: loop.cut(loop.names[-1], lost=False),
}


@pytest.mark.parametrize("who", ["server", "last party", pytest.param("everyone", marks=pytest.mark.slow)])
def test_a_fault_at_every_frame(who: str, tmp_path: Path) -> None:
    """Frame by frame, from the first hello until after the last role has heard the end."""
    config = settings(**SHORT)
    expected, undisturbed = in_process(config), Loop(config, tmp_path / "undisturbed")
    same(undisturbed.run(), expected)
    assert undisturbed.server.role.meter.sent_again == 0
    again = 0
    for n in range(undisturbed.delivered + 1):
        loop = Loop(config, tmp_path / str(n))
        same(loop.run({n: FAULTS[who]}), expected)
        again += loop.server.role.meter.sent_again
    # A server that was killed cannot know what it sent since its last checkpoint.
    assert again > 0 or who in (SERVER, "everyone")


@pytest.mark.slow
@pytest.mark.parametrize("who", FAULTS)
@pytest.mark.parametrize(
    "case",
    [
        "short",
        "tables",
        "aligned",
        "top-k",
        "nothing held out",
        "feedback",
        "auto",
        "secure",
        "labels at a party",
        "private model",
    ],
)
def test_a_fault_at_every_frame_of_every_kind_of_run(who: str, case: str, tmp_path: Path) -> None:
    write_tables(tmp_path, aligned=case == "aligned")
    config = {
        "short": settings(**SHORT),
        "tables": table_settings(tmp_path, **SHORT),
        "aligned": table_settings(tmp_path, {"alignment": "aligned"}, **SHORT),
        "top-k": settings(**NAMED["topk"], rounds=5, every=2),
        "nothing held out": settings(data={"name": "wine", "parties": 3, "test_share": 0.0}, **SHORT),
        "feedback": settings(**NAMED["feedback"] | REPEATED),
        "auto": settings(**NAMED["auto"] | REPEATED),
        "secure": settings(**NAMED["secure"] | SHORT),
        "labels at a party": settings(**NAMED["labels at a party"] | SHORT),
        "private model": settings(**NAMED["told labels, private model"] | SHORT),
    }[case]
    expected, undisturbed = in_process(config), Loop(config, tmp_path / "undisturbed")
    same(undisturbed.run(), expected)
    for n in range(undisturbed.delivered + 1):
        same(Loop(config, tmp_path / str(n)).run({n: FAULTS[who]}), expected)


def test_faults_while_rows_are_settled(tmp_path: Path) -> None:
    """Private alignment and labels: a fault at every frame before the first round, of all kinds in turn."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, **SHORT)
    expected = in_process(config)
    for n in range(26):
        fault = FAULTS[list(FAULTS)[n % len(FAULTS)]]
        same(Loop(config, tmp_path / str(n)).run({n: fault}), expected)


def test_a_connection_that_breaks_before_the_labels_arrive(tmp_path: Path) -> None:
    """The server has the labels of this alignment, the party not yet: its rows must not be taken as known."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, **SHORT)
    loop = Loop(config, tmp_path / "loop")
    while not (loop.server.role.rows.sizes() and loop.down["shop"]):
        loop.step()
    loop.cut("shop")
    expected = in_process(config)
    same(loop.run(), expected)
    assert 0 < loop.server.role.meter.sent_again < expected.bytes["alignment"]  # it is taken up, and counted once


RESTLESS: dict[str, dict[str, Any]] = {
    "top-k": NAMED["topk"],
    "batch norm, dropout, momentum": NAMED["batch norm and dropout"] | {"optimizer": {"name": "sgd", "momentum": 0.9}},
    "algorithm 2, adam": {"algorithm": 2, "local_iterations": 1, "optimizer": {"name": "adam"}},
    "nothing held out": NAMED["nothing held out"],
    "schedule, a checkpoint a round": NAMED["schedule"] | {"every": 1},
    "a checkpoint never": {"every": 100},
    "feedback": NAMED["feedback"] | {"every": 3},
    "feedback, algorithm 2": NAMED["feedback, algorithm 2"] | {"every": 3},
    "auto": NAMED["auto"] | {"every": 3},
    "auto, budget": NAMED["auto, budget"] | {"every": 3},
    "auto, attention, budget": NAMED["auto, attention, budget"] | {"every": 3},
    "cached rows": NAMED["cached rows"] | {"every": 3},
    "cached rows, auto": NAMED["cached rows, auto"] | {"every": 3},
    "auto, attention, a checkpoint a round": NAMED["auto, attention"] | {"every": 1},
    "private labels": NAMED["private labels"],
    "secure": NAMED["secure"] | {"every": 3},
    "secure, private labels": NAMED["secure, private labels"] | {"every": 1},
    "labels at a party": NAMED["labels at a party"],
    "labels at a party, auto": NAMED["labels at a party, auto"] | {"every": 3},
    "secure, labels at a party": NAMED["secure, labels at a party"] | {"every": 1},
    "told labels, private model": NAMED["told labels, private model"] | {"every": 3},
    "told labels, private model, secure": NAMED["told labels, private model, secure"] | {"every": 1},
    "told quantities, algorithm 2": NAMED["told quantities, algorithm 2"],
    "reconstruction penalty": NAMED["reconstruction penalty"] | {"every": 3},
    "secure, reconstruction penalty": NAMED["secure, reconstruction penalty"] | {"every": 1},
    "absence": NAMED["absence"] | {"every": 3},
    "absence, labels at a party": NAMED["absence, labels at a party"],
    "each its own, a checkpoint never": NAMED["each its own"] | {"every": 100},
}


MIXED = {
    "auto, attention, budget",
    "cached rows, auto",
    "feedback, algorithm 2",
    "told labels, private model, secure",
    "secure, reconstruction penalty",
    "labels at a party, auto",
    "each its own, a checkpoint never",
}
"""What other cases have one by one."""


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in MIXED)) for case in RESTLESS])
def test_random_faults_and_orders(case: str, tmp_path: Path) -> None:
    """Frames of different parties overtake each other, and several faults strike, also one right after another."""
    config = settings(**RESTLESS[case])
    expected = in_process(config)
    for seed in range(4):
        draw = random.Random(seed)
        at = draw.randrange(60)
        places = [at, at + draw.randrange(1, 4), draw.randrange(60), draw.randrange(60)]
        faults = {n: FAULTS[draw.choice(list(FAULTS))] for n in places}
        same(Loop(config, tmp_path / str(seed), draw).run(faults), expected)


def test_a_frame_that_comes_twice_never_ends_in_other_bits(tmp_path: Path) -> None:
    config = settings(**SHORT)
    expected, count = in_process(config), Loop(config, tmp_path / "count")
    count.run()
    refused = 0
    for n in range(2, count.delivered):
        loop = Loop(config, tmp_path / str(n))

        def twice(loop: Loop) -> None:
            queues = next(q for q in (*loop.down.values(), *loop.up.values()) if q)
            queues.append(queues[-1])  # type: ignore[attr-defined]

        try:
            same(loop.run({n: twice}), expected)
        except CvflError:
            refused += 1
    assert refused > 0


def test_a_server_that_is_restarted_after_the_end_needs_no_party(tmp_path: Path) -> None:
    config = settings(**SHORT)
    loop = Loop(config, tmp_path)
    while not loop.over:
        loop.step()
    for party in loop.parties.values():
        party.finish(tmp_path / "models")
        assert not party.state.path.exists()
    loop.start(SERVER)
    assert loop.server.role.done
    result = loop.server.finish(tmp_path / "run")
    assert result.summary["parameters"]["server"] == in_process(config).parameters["server"]
