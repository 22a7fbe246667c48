"""Every message in every phase, from either side: taken as the table says, or refused by name with nothing changed."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import SECURE, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, same
from cvfl.config.schema import RunConfig
from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.federation.agreement.handshake import DOWN, TABLE, UP, Anything, Link, Phase, Seat
from cvfl.types import Direction
from cvfl.wire import (
    Answer,
    Ask,
    Away,
    Blinded,
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Found,
    Gone,
    Gradient,
    Matched,
    Message,
    Owing,
    Passed,
    Prediction,
    Report,
    Runs,
    Spelling,
    Stop,
    encode,
    encode_setup,
)
from cvfl.wire.control import (
    Begin,
    Complete,
    End,
    Have,
    Hello,
    How,
    Offer,
    Recall,
    RowSecret,
    Settle,
    Settled,
    encode_control,
)
from cvfl.wire.targets import Targets

pytestmark = pytest.mark.usefixtures("tidy")
HOWS: tuple[How, ...] = ("known", "as-is", "kept", "align")


def messages(m: int, session: int, how: How = "align") -> list[Anything]:
    """One of each kind, from role m."""
    return [
        Hello(name="bank", terms={}, offer=Offer(width=1, compressor="auto", label=False)),
        Recall(session=session),
        Have(session=session, run="", rounds=[]),
        Settle(session=session, run="ab", m=max(m, 1), how=how),
        RowSecret(session=session, sealed=["00"]),
        Blinded(m, 1, 1, 0, 1, Spelling.TEXT, 32, b""),
        Gone(m, 0, b""),
        Matched(0, b""),
        Targets(m, 0, 1, b"", b""),
        Settled(session=session, rows=[1, 0, 0]),
        Begin(session=session, m=max(m, 1), t0=0),
        Embedding(0, m, b""),
        Evaluation(0, m, b""),
        Prediction(0, m, b""),
        Broadcast(0, (), ()),
        Folded(0, b"", ()),
        Gradient(0, b""),
        Stop(0, 0),
        Passed(0, m, 1 if m == 2 else 2, 1, b""),
        Report(0, m, 0.0),
        Ask(0, m, "ab", bytes(16)),
        Found(0, m, 1, b"\0", b""),
        Answer(0, 1, 1, (b"\0",), b""),
        Runs(m, ("ab",)),
        Away((1,)),
        Owing(0, m),
        Complete(session=session, rounds=1, parameters={}, errors=[], certificates=[(0, 1.0, 1.0, 1.0)]),
        End(rounds=1),
    ]


def frame(message: Anything, m: int) -> bytes:
    if isinstance(message, Blinded | Gone | Matched):
        return encode_setup(message)
    if isinstance(message, Message):
        return encode(message)
    return encode_control(message, m)


SEATS = [Seat(*flags) for flags in itertools.product((True, False), repeat=6)]


def at(link: Link, phase: Phase, how: How) -> Link:
    link.phase, link._how = phase, how
    return link


@pytest.mark.parametrize("seat", SEATS, ids=str)
def test_both_ends_agree_in_every_phase_on_every_message(seat: Seat) -> None:
    """Whatever one end may send the other takes, and both are in the same phase then; nothing else moves either."""
    seen: Counter[bool] = Counter()
    for phase, how, way in itertools.product(Phase, HOWS, Direction):
        for message in messages(1, 3, how):
            ends = [at(Link(direction, seat), phase, how) for direction in (way, DOWN if way is UP else UP)]
            moved = (phase, type(message), way) in TABLE and seat.allows(type(message), way)
            seen[moved] += 1
            if moved:
                ends[0].send(message)
                ends[1].take(message, "peer")
                assert ends[0].phase is ends[1].phase
                continue
            with pytest.raises(LocalProtocolError, match=rf"^a {type(message).__name__} is not to be sent now"):
                ends[0].send(message)
            with pytest.raises(RemoteProtocolError, match=rf"^peer: an unexpected {type(message).__name__} \("):
                ends[1].take(message, "peer")
            assert [end.phase for end in ends] == [phase, phase]
    assert seen.total() == len(Phase) * len(HOWS) * 2 * 28
    assert seen[True] > 60


def reachable(seat: Seat, how: How) -> dict[Phase, set[tuple[str, Direction]]]:
    """By following the table from the start: each phase that there is, and what may pass in it."""
    found: dict[Phase, set[tuple[str, Direction]]] = {}
    todo = [Phase.WAITING]
    while todo:
        phase = todo.pop()
        if phase in found:
            continue
        found[phase] = set()
        for way, message in itertools.product(Direction, messages(1, 3, how)):
            link = at(Link(way, seat), phase, how)
            if link._moves(message, way):
                found[phase].add((type(message).__name__, way))
                todo.append(link.phase)
    return found


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seat", SEATS, ids=str)
def test_labels_and_the_secret_pass_in_one_direction_and_once(seat: Seat, how: How) -> None:
    found = reachable(seat, how)
    anew = seat.tables and how != "known"
    told = anew and (seat.partly or not seat.predicts)
    assert (Phase.SECRET in found, Phase.MATCHED in found) == (anew, told)
    assert (Phase.ALIGNING in found) == (anew and how == "align")
    gives = seat.label if seat.serves else seat.first
    for kind, own, due in (("RowSecret", gives, anew), ("Targets", seat.label, told)):
        passes = [way for said in found.values() for name, way in said if name == kind]
        assert passes == ([UP if own else DOWN] if due else [])
    assert {Phase.WAITING, Phase.RECALLED, Phase.KNOWN, Phase.TOLD} <= found.keys()
    assert (Phase.ENDED in found) is not (seat.predicts and seat.serves)  # serving has no end
    rounds = Phase.TRAINING if not seat.predicts else Phase.SERVING if seat.serves else Phase.PREDICTING
    assert {Phase.TRAINING, Phase.PREDICTING, Phase.SERVING} & found.keys() == {rounds}


@pytest.mark.parametrize("seat", SEATS, ids=str)
def test_batches_pass_in_a_prediction_and_scores_to_the_label(seat: Seat) -> None:
    said = reachable(seat, "align")
    passes = {way for phase in said.values() for name, way in phase if name == "Prediction"}
    assert passes == (set() if not seat.predicts or seat.serves else {UP, DOWN} if seat.label else {UP})
    rounds = {name for phase in said.values() for name, _ in phase} & {"Embedding", "Evaluation", "Gradient", "Stop"}
    assert bool(rounds) is not seat.predicts


@pytest.mark.parametrize("seat", SEATS, ids=str)
def test_the_label_asks_and_hears_scores_and_nobody_else_does(seat: Seat) -> None:
    said = reachable(seat, "as-is")
    passes: dict[str, set[Direction]] = {}
    for phase in said.values():
        for name, way in phase:
            passes.setdefault(name, set()).add(way)
    serves = seat.predicts and seat.serves
    assert passes.get("Ask", set()) == (set() if not serves else {UP} if seat.label else {DOWN})
    assert passes.get("Answer", set()) == ({DOWN} if serves and seat.label else set())
    assert passes.get("Runs", set()) == (set() if not serves else {UP, DOWN} if seat.label else {UP})
    assert passes.get("Found", set()) == ({UP} if serves else set())
    assert passes.get("Away", set()) == ({DOWN} if seat.serves and seat.label else set())
    assert passes.get("Owing", set()) == ({UP, DOWN} if serves and seat.label else set())


def runs(folder: Path) -> dict[str, RunConfig]:
    write_tables(folder)
    return {
        "tables": table_settings(folder, rounds=3),
        "labels at a party": table_settings(folder, rounds=3, privacy={"labels": "bank"}),
        "secure": settings(**SECURE | {"rounds": 3}),
    }


@pytest.mark.parametrize("case", ["tables", "labels at a party", "secure"])
def test_what_does_not_belong_to_a_phase_changes_nothing(case: str, tmp_path: Path) -> None:
    """Before every frame of a run every message that the table does not have is tried on every role."""
    config = runs(tmp_path)[case]
    loop = Loop(config, tmp_path / "loop")
    tried: set[tuple[Any, ...]] = set()
    while not loop.over:
        for m, name in enumerate(loop.names, start=1):
            _try_on_party(loop, name, tried)
            _try_on_server(loop, m, name, tried)
        loop.step()
    same(loop.outcome(), in_process(config))
    phases = {phase for _, phase, _ in tried}
    assert {Phase.RECALLED, Phase.KNOWN, Phase.TRAINING, Phase.COMPLETE} <= phases
    assert len(tried) > 150


def _try_on_party(loop: Loop, name: str, tried: set[tuple[Any, ...]]) -> None:
    role = loop.parties[name].role
    phase = role._link.phase
    for message in [] if role.done else messages(0, role._session):
        kind = type(message)
        own = isinstance(
            message, Embedding | Evaluation | Prediction | Gone | Passed | Report | Found
        )  # only parties send these
        if (phase, kind, DOWN) in TABLE and role._link.seat.allows(kind, DOWN):
            continue
        with pytest.raises(RemoteProtocolError, match=rf"^{name}: from the server: "):
            list(role.receive(frame(messages(1, role._session)[messages(0, 0).index(message)] if own else message, 0)))
        assert role._link.phase is phase
        tried.add((name, phase, kind.__name__))


def _try_on_server(loop: Loop, m: int, name: str, tried: set[tuple[Any, ...]]) -> None:
    role = loop.server.role
    if m not in role._links.here or role.done:
        return
    link = role._links.here[m]
    phase = link.phase
    for message in messages(m, role._session.number):
        kind = type(message)
        if (phase, kind, UP) in TABLE and link.seat.allows(kind, UP):
            continue
        if link.stale:  # what still comes is of the session before: it is left unread
            assert role.receive(m, frame(message, m)) == []
        else:
            with pytest.raises(RemoteProtocolError, match=rf"^{name}: "):
                role.receive(m, frame(message, m))
        assert link.phase is phase
        tried.add(("server", phase, kind.__name__))
