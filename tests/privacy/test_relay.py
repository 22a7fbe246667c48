"""Machines of a run whose labels stay with a party: what they pass on, refuse and keep, and who speaks when."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from cvfl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from cvfl.federation.builder.machines import Federation
from cvfl.privacy.relay import Correspondent, Holder, Relay
from cvfl.protocol import Loss
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.wire import Embedding, Gradient, Message, Passed, Report
from federations import data, federation

METRICS = {part: {"accuracy": 0.5} for part in ("train", "validation", "test")}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread_a_role():
        yield


def relayed(holder: str = "org1", **changes: object) -> Federation:
    changes = {"rounds": 4, "evaluate_every": 2, "privacy": {"labels": holder}} | changes
    return federation(data(Loss.BINARY), **changes)


def parts(fed: Federation) -> tuple[Relay, Holder, list[Correspondent]]:
    relay, parties = fed.roles
    assert isinstance(relay, Relay)
    (holder,) = (party for party in parties if isinstance(party, Holder))
    return relay, holder, [party for party in parties if isinstance(party, Correspondent)]


def started(fed: Federation) -> tuple[Relay, Holder, list[Message]]:
    """The others' first embeddings, on their way to the holder."""
    relay, holder, others = parts(fed)
    assert holder.start() == []
    return relay, holder, [message for party in others for message in party.start()]


def test_each_role_has_its_machine_and_no_more() -> None:
    fed = relayed("org2")
    relay, holder, others = parts(fed)
    assert (holder.m, [party.m for party in others]) == (2, [1, 3])
    assert not [value for value in vars(relay).values() if isinstance(value, torch.Tensor | torch.nn.Module)]
    assert relay.models == {}
    assert holder.models.keys() == {"org2", "server"}
    assert others[0].models.keys() == {"org1"}
    assert all(party.holding.labels is None for party in fed.parties)


def test_the_relay_passes_on_what_came() -> None:
    relay, _, sealed = started(relayed("org2"))
    for passed in sealed:
        assert relay.receive(passed) == [(2, passed)]
    assert relay.t0 == 0


def test_nothing_is_passed_on_twice() -> None:
    """Or a party could fill the server's memory with what its holder has not read."""
    relay, _, (first, *_) = started(relayed("org2"))
    relay.receive(first)
    with pytest.raises(RemoteProtocolError, match="Passed of round 0 in round 0"):
        relay.receive(first)
    relay.receive(Report(0, 2, 0.5))
    assert not relay._passed


@pytest.mark.parametrize(
    "message",
    [
        Embedding(0, 1, b""),
        Gradient(0, b""),
        Passed(0, 1, 3, 1, b""),
        Passed(0, 2, 4, 3, b""),
        Passed(2, 1, 2, 1, b""),
        Passed(1, 2, 1, 3, b""),
        Passed(4, 1, 2, 1, b""),
        Report(0, 1, 0.5),
        Report(1, 2, 0.5),
        Report(0, 2, 0.5, METRICS),
    ],
    ids=lambda message: str(message)[:40],
)
def test_what_a_relay_refuses(message: Message) -> None:
    relay = Relay(relayed("org2").plan, 2)
    with pytest.raises(RemoteProtocolError):
        relay.receive(message)
    assert (relay.t0, relay.done) == (0, False)


def test_a_relay_counts_the_rounds_that_are_reported() -> None:
    plan = relayed("org2").plan
    relay = Relay(plan, 2)
    relay.receive(Report(0, 2, 0.5))
    with pytest.raises(RemoteProtocolError, match="metrics of round 1"):
        relay.receive(Report(1, 2, 0.4))
    relay.receive(Report(1, 2, 0.4, METRICS))
    again = Relay(plan, 2)
    again.load_state_dict(relay.settled_state())
    for one in (relay, again):
        assert (one.t0, one.loss) == (2, 0.4)
        assert one.evaluation is not None
        assert (one.evaluation.t0, one.evaluation.test) == (1, {"accuracy": 0.5})
        one.receive(Report(2, 2, 0.3))
        one.receive(Report(3, 2, 0.2, METRICS))
        assert one.done
        with pytest.raises(RemoteProtocolError):
            one.receive(Report(4, 2, 0.1))
    assert math.isnan(Relay(plan, 2).loss)


def test_answers_leave_before_the_holder_takes_its_own_steps() -> None:
    _, holder, (first, last) = started(relayed())
    assert list(holder.receive(first)) == []
    answers = holder.receive(last)
    passed = [next(answers), next(answers)]
    assert [(message.m, message.to) for message in passed if isinstance(message, Passed)] == [(1, 2), (1, 3)]
    assert (holder.t0, holder.server.t0, holder.settled) == (0, 0, False)
    (report,) = answers
    assert isinstance(report, Report)
    assert (report.t0, report.loss, report.metrics) == (0, holder.server.loss, None)
    assert (holder.t0, holder.server.t0, holder.settled) == (1, 1, True)


def test_the_state_of_a_holder_is_that_between_two_rounds() -> None:
    """Complete, without keys, and without what came of the next round already."""
    fed = relayed()
    _, holder, (first, last) = started(fed)
    [*holder.receive(first)]
    answers = holder.receive(last)
    next(answers)
    with pytest.raises(LocalProtocolError, match="kept between rounds"):
        holder.state_dict()
    assert len(list(answers)) == 2
    state = holder.state_dict()
    assert state["server"]["embeddings"] == {}
    fresh = parts(relayed())[1]
    fresh.load_state_dict(state)
    assert (fresh.t0, fresh.settled, fresh.start()) == (1, True, [])
    for one, other in zip(fresh.server.model.parameters(), holder.server.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_who_writes_to_whom() -> None:
    fed = relayed()
    _, holder, sealed = started(fed)
    one, two = parts(fed)[2]
    with pytest.raises(RemoteProtocolError, match="org1: an open Embedding"):
        holder.receive(Embedding(0, 2, b""))
    with pytest.raises(RemoteProtocolError, match="org2: an open Gradient"):
        one.receive(Gradient(0, b""))
    with pytest.raises(RemoteProtocolError, match="org3: a message of party 2, which holds no labels"):
        two.receive(one._sealing.seal(3, Gradient(0, b"")))
    with pytest.raises(RemoteProtocolError, match="org2: a message of round 0 does not open"):
        holder.receive(started(relayed())[2][0])  # of another session
    [*holder.receive(sealed[0])]
    with pytest.raises(RemoteProtocolError, match="org2: a message of round 0 does not open"):
        holder.receive(sealed[0])


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Embedding(3, 2, b""), "org2: Embedding of round 3 in round 0"),
        (Gradient(0, b""), "org2: Gradient of round 0 in round 0"),
        (Embedding(0, 2, b""), "org2: a second or unknown Embedding of party 2 in round 0"),
    ],
)
def test_a_message_at_the_wrong_time_names_its_sender(message: Message, said: str) -> None:
    fed = relayed()
    _, holder, (first, _) = started(fed)
    assert list(holder.receive(first)) == []
    with pytest.raises(RemoteProtocolError) as caught:
        list(holder.receive(parts(fed)[2][0]._sealing.seal(1, message)))
    assert str(caught.value) == said


def test_bytes_that_are_no_embedding_name_their_party() -> None:
    """Also when they are only opened with the message of another."""
    fed = relayed()
    _, holder, others = parts(fed)
    holder.start()
    bad, good = others[0]._sealing.seal(1, Embedding(0, 2, b"garbage")), others[1].start()
    assert list(holder.receive(bad)) == []
    with pytest.raises(RemoteProtocolError, match=r"^org2, round 0: "):
        list(holder.receive(good[0]))


def test_without_the_keys_of_a_session_nothing_begins() -> None:
    fed = relayed()
    holder, other = Holder(fed.parties[0], fed.server, fed.recipe.names, None), Correspondent(fed.parties[1], 1, None)
    with pytest.raises(RemoteProtocolError, match="org2: the server began without the keys"):
        other.start()
    with pytest.raises(RemoteProtocolError, match="org1: the server began without the keys"):
        holder.receive(Passed(0, 2, 1, 1, b""))


@pytest.mark.parametrize(
    ("M", "holder", "said"),
    [
        (3, "org4", "privacy.labels: there is no party 'org4'; did you mean 'org3'?"),
        (3, "x", "privacy.labels: there is no party 'x' (known: org1, org2, org3)"),
        (1, "org1", "privacy.labels: org1 is the only party, there is nobody to keep labels from"),
    ],
)
def test_a_holder_that_is_no_party(M: int, holder: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation(data(Loss.BINARY, M), privacy={"labels": holder})
    assert str(caught.value) == said
