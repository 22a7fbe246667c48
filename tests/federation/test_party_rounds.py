"""What a party notes of its rounds: in every checkpoint, as numbers in a block, and the same after a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cvfl.federation.agreement.terms import MOST_ERRORS
from cvfl.federation.roles.party_rounds import PartyRounds
from cvfl.protocol import Certificate, Measured, PartyMachine
from cvfl.runtime import checkpoint
from cvfl.wire import Message


class Machine(SimpleNamespace):
    """A party that only measures."""

    @property
    def measured(self) -> Measured:
        return Measured(self.t0 / 7, 1.5, 2.0)

    def start(self) -> list[Message]:
        return []

    def receive(self, message: Message) -> list[Message]:
        self.t0 += 1
        self.certified = Certificate(0.9, 1 / (1 + message.t0), 1.0) if message.t0 % 3 == 0 else None
        return [message]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t0 = state["t0"]

    def state_dict(self) -> dict[str, Any]:
        return {"t0": self.t0}


def machine(t0: int = 0, rounds: int = 50) -> Any:
    plan = SimpleNamespace(rounds=rounds)
    return Machine(t0=t0, plan=plan, certified=None, settled=True, done=False, models={})


def trained(rounds: PartyRounds, party: Any, until: int) -> None:
    while party.t0 < until:
        assert [*rounds.receive(cast("Message", SimpleNamespace(t0=party.t0)))]


def begun(folder: Path, party: Any) -> PartyRounds:
    rounds = PartyRounds(folder, "bank", 10)
    go_on(rounds, party)
    return rounds


def go_on(rounds: PartyRounds, party: Any) -> None:
    rounds.begin(cast("PartyMachine", party), party.t0)
    assert [*rounds.start(cast("PartyMachine", party))] == []


def test_a_restart_ends_in_the_same_figures(tmp_path: Path) -> None:
    party = machine()
    rounds = begun(tmp_path / "one", party)
    trained(rounds, party, 50)
    expected = rounds.complete(party, 1)
    assert [line[0] for line in expected.errors] == [*range(50)]
    assert [line[0] for line in expected.certificates] == [*range(0, 50, 3)]
    first = machine()
    trained(begun(tmp_path / "two", first), first, 37)
    for back in (30, 40):
        again = machine()
        rounds = PartyRounds(tmp_path / "two", "bank", 10)
        rounds.load(cast("PartyMachine", again), back)
        go_on(rounds, again)
        trained(rounds, again, 50)
        assert rounds.complete(again, 1) == expected


def test_a_checkpoint_of_version_0_1_has_them_by_round(tmp_path: Path) -> None:
    party = machine(20)
    noted = {"errors": {8: (0.5, 1.0, 2.0), 9: (0.25, 1.0, 2.0)}, "certificates": {9: (0.9, 1.0, 1.0)}}
    rounds = PartyRounds(tmp_path, "bank", 10)
    checkpoint.Checkpoints(tmp_path, "bank in run ").save(20, {"party": {"t0": 20}} | noted)
    rounds.load(cast("PartyMachine", party), 20)
    told = rounds.complete(party, 1)
    assert told.errors == [(8, 0.5, 1.0, 2.0), (9, 0.25, 1.0, 2.0)]
    assert told.certificates == [(9, 0.9, 1.0, 1.0)]


def test_a_checkpoint_of_a_long_run_is_no_more_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has of rounds is written as it is, not number by number."""
    flattened, calls = checkpoint._flattened, [0]

    def counted(*given: Any) -> Any:
        calls[0] += 1
        return flattened(*given)

    monkeypatch.setattr(checkpoint, "_flattened", counted)
    party = machine(rounds=3 * MOST_ERRORS)
    rounds, works = begun(tmp_path, party), []
    rounds._every = 1000
    for until in range(1000, 13_000, 1000):
        calls[0] = 0
        trained(rounds, party, until)
        works.append(calls[0])
    assert max(works) < 50
    assert len(rounds.complete(party, 1).errors) <= MOST_ERRORS
