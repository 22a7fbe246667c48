"""How much a role may remember in memory changes where it is kept, and no bit: neither in a run nor by restarts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import NAMED, SERVER, settings
from conformance.loop import Loop
from conformance.outcome import Outcome, in_process, same
from conformance.threads import threads
from cvfl.config.schema import RunConfig
from cvfl.federation.train import train

pytestmark = pytest.mark.usefixtures("tidy")
SLOW = pytest.mark.slow
CASES = (
    "feedback",
    "auto",
    "cached rows",
    pytest.param("feedback, algorithm 2", marks=SLOW),
    pytest.param("cached rows, auto", marks=SLOW),
    pytest.param("labels at a party, auto", marks=SLOW),
)
LONGER: dict[str, Any] = {"rounds": 14, "batch_size": 40}
"""Four epochs or so: pieces are begun, filled, of no use and removed."""


def limited(config: RunConfig, megabytes: int = 0) -> RunConfig:
    network = config.network.model_copy(update={"memory_mb": megabytes})
    return config.model_copy(update={"network": network})


def pieces(loop: Loop, role: str) -> list[Path]:
    return sorted((loop.state(role) / "checkpoints" / "rows").glob("*.rows"))


@pytest.mark.parametrize("case", [*CASES, pytest.param("each its own", marks=SLOW)])
def test_in_one_process(case: str, tmp_path: Path) -> None:
    config = settings(**NAMED[case] | LONGER)
    expected = in_process(config)
    same(in_process(limited(config)), expected)
    same(Outcome.of(train(limited(config), out=tmp_path / "run", keep_seconds=0.0)), expected)


@pytest.mark.parametrize("case", CASES)
def test_roles_apart_with_faults(case: str, tmp_path: Path) -> None:
    """Some remember in memory, some on disk, and after a restart some of them otherwise."""
    config = settings(**NAMED[case] | LONGER, every=2)
    expected = in_process(config)
    for seed in range(3):
        draw = random.Random(seed)
        loop = Loop(limited(config), tmp_path / str(seed), draw)

        def strike(loop: Loop, draw: random.Random = draw) -> None:
            loop.config = limited(config, draw.choice([0, 0, 256]))
            loop.kill(draw.choice([SERVER, *loop.names]))

        same(loop.run({draw.randrange(20, 120): strike for _ in range(6)}), expected)


def test_over_grpc(tmp_path: Path) -> None:
    config = settings(**NAMED["feedback"] | LONGER)
    with threads(limited(config), tmp_path) as federation:
        for role in (SERVER, *federation.names):
            federation.start(role)
        same(federation.outcome(), in_process(config))


def test_only_what_checkpoints_need_is_on_disk(tmp_path: Path) -> None:
    loop = Loop(limited(settings(**NAMED["feedback"] | LONGER, every=2)), tmp_path)
    looked = 0
    while not loop.over:
        loop.step()
        if loop.delivered % 10 == 0 and loop.kept("bank"):
            looked += 1
            checkpoints = loop.parties["bank"].role.rounds._checkpoints
            needed = {piece.name for each in checkpoints._needed.values() for piece in each}
            there = {path.name for path in pieces(loop, "bank")}
            assert needed <= there
            # Besides those, what was begun since the last checkpoint: less than an epoch for each of three senders.
            assert len(there - needed) <= 3 * 8
    assert looked > 5


def test_the_last_state_needs_nothing_of_it(tmp_path: Path) -> None:
    """It is kept twice, in two files that are whole by themselves."""
    config = settings(**NAMED["feedback"])
    loop = Loop(limited(config), tmp_path)
    while not loop.over:
        loop.step()
    for role in (SERVER, *loop.names):
        for path in pieces(loop, role):
            path.write_bytes(b"")
        loop.start(role)
    same(loop.outcome(), in_process(config))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "one bit": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 4]) + path.read_bytes()[1:]),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("role", [SERVER, "bank"])
def test_damage_costs_rounds_and_no_bit(role: str, damage: str, tmp_path: Path) -> None:
    config = settings(**NAMED["feedback"] | LONGER, every=2)
    loop = Loop(limited(config), tmp_path)
    while len(loop.kept(role)) < 3:
        loop.step()
    loop.kill_all()
    checkpoints = (loop.server if role == SERVER else loop.parties[role]).role.rounds._checkpoints
    whole = checkpoints.rounds()
    older, newest = (checkpoints._needed[t0] for t0 in whole[-2:])
    names = {piece.name for piece in newest} - {piece.name for piece in older}
    assert names
    DAMAGE[damage](checkpoints.logs / min(names))
    loop.kill_all()
    assert loop.kept(role) == whole[:-1]
    same(loop.run(), in_process(config))
