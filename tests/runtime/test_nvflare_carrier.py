"""Both ends of the FLARE carrier without FLARE: parcels that get lost or come twice, slow parties, failures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cases import settings
from cvfl.errors import DataError, DecodeError, RemoteProtocolError
from cvfl.federation.agreement.labels import NamedLabels
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.roles.server import ServerRole
from cvfl.federation.rows.load import load_data
from cvfl.federation.rows.named import NamedRows
from cvfl.federation.train import train
from cvfl.rng import stream
from cvfl.runs.directory import fingerprint
from cvfl.runtime.bytequeue import ByteQueue
from cvfl.runtime.nvflare import conduct as conducting
from cvfl.runtime.nvflare import mailbox as mailboxes
from cvfl.runtime.nvflare import parcel as parcels
from cvfl.runtime.nvflare.conduct import Line, conduct
from cvfl.runtime.nvflare.mailbox import Mailbox
from cvfl.runtime.nvflare.parcel import Parcel, State, fitting, unpack
from cvfl.wire import Embedding, Gradient, encode
from cvfl.wire.frame import kind_of
from cvfl.wire.message import EMBEDDING

pytestmark = pytest.mark.usefixtures("no_pages")
CONFIG = settings(data={"name": "wine", "parties": 3}, rounds=12, compressor="topk:bits=4", evaluate_every=5)
RELAYED = settings(data={"name": "wine", "parties": 3}, rounds=12, evaluate_every=5, privacy={"labels": "bank"})


@given(st.integers(0, 2**64 - 1), st.lists(st.binary(max_size=50)), st.sampled_from(State))
def test_a_parcel_comes_out_as_it_went_in(number, frames, state):
    parcel = Parcel(number, tuple(frames), state)
    assert unpack(parcel.pack()) == parcel


@given(st.binary(max_size=60))
def test_any_bytes_are_a_parcel_or_one_typed_error(data):
    with contextlib.suppress(DecodeError):
        assert unpack(data).pack() == data


def test_a_parcel_is_closed_before_it_gets_too_long(monkeypatch):
    monkeypatch.setattr(parcels, "MAX_PARCEL", 10)
    assert [fitting(frames) for frames in ([], [b"x" * 99], [b"x" * 4] * 3, [b"x"] * 3)] == [0, 1, 2, 3]


class Duty:
    """A role that a test made, and whether it was finished and closed."""

    def __init__(self, role):
        self.role, self.finished, self.closed = role, False, False

    def finish(self):
        self.finished = True

    def close(self):
        self.closed = True


class Echo:
    """A party that says back what it hears, after a while; `end` ends it, `stop` is a refusal."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None):
        self.seconds, self.error, self.heard = seconds, error, []
        self.done, self.refused = False, None

    def hello(self) -> bytes:
        return b"hello"

    def receive(self, frame: bytes) -> Iterator[bytes]:
        self.heard.append(frame)
        if self.error:
            raise self.error
        time.sleep(self.seconds)
        self.done = frame == b"end"
        self.refused = "no" if frame == b"stop" else None
        yield frame


def asked(box: Mailbox, number: int, *frames: bytes) -> Parcel:
    return unpack(box.answer(Parcel(number, frames).pack()))


def test_a_repeated_request_is_answered_from_memory_and_done_once():
    echo = Echo()
    box = Mailbox("bank", lambda: Duty(echo), print)
    assert asked(box, 1).frames == (b"hello",)
    first = asked(box, 2, b"a", b"b")
    assert first == asked(box, 2, b"a", b"b") == Parcel(2, (b"a", b"b"))
    assert echo.heard == [b"a", b"b"]
    assert asked(box, 5).state is State.FAILED
    box.close()


def test_the_end_of_a_job_waits_until_the_party_has_let_go():
    class Slow(Duty):
        def close(self):
            time.sleep(0.3)
            super().close()

    duty = Slow(Echo())
    box = Mailbox("bank", lambda: duty, print)
    asked(box, 1)
    box.close()
    assert duty.closed
    assert not duty.finished


def test_a_party_that_computes_for_long_says_so_and_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(mailboxes, "WAIT", 0.05)
    box = Mailbox("bank", lambda: Duty(Echo(0.5)), print)
    asked(box, 1)
    began, number, answers = time.monotonic(), 2, [asked(box, 2, b"a")]
    assert time.monotonic() - began < 0.4
    while answers[-1].state is State.WORKING:
        number += 1
        answers.append(asked(box, number))
    assert len(answers) > 3
    assert [frame for answer in answers for frame in answer.frames] == [b"a"]
    box.close()


def test_the_same_request_twice_at_once_is_done_once(monkeypatch):
    echo = Echo(0.2)
    box = Mailbox("bank", lambda: Duty(echo), print)
    asked(box, 1)
    answers: list[Parcel] = []
    threads = [threading.Thread(target=lambda: answers.append(asked(box, 2, b"a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [Parcel(2, (b"a",))] * 4
    assert echo.heard == [b"a"]
    box.close()


def fed(box: Mailbox, frames: list[bytes]) -> list[bytes]:
    """Requests of one frame each, repeated while there is no room, until all is answered; the answers in order."""
    answers, number, most, left, state = [], 1, 0, [*frames], State.WORKING
    while left or state is State.WORKING:
        number += 1
        while (answer := asked(box, number, *left[:1])).state is State.FULL:
            pass
        left, state = left[1:], answer.state
        answers += answer.frames
        most = max(most, sum(map(len, box._inbox)), sum(map(len, box._outbox)))
    assert most <= 6_000
    return answers


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_what_waits_at_a_party_is_bounded_in_bytes(seconds, monkeypatch):
    """Also when it has more to say than it hears, and nobody waits for ever."""
    monkeypatch.setattr(mailboxes, "PEER", 4_000)
    monkeypatch.setattr(mailboxes, "WAIT", 0.02)
    echo = Echo(seconds)
    box = Mailbox("bank", lambda: Duty(echo), print)
    asked(box, 1)
    frames = [bytes([n]) * 1000 for n in range(100)]
    assert fed(box, frames) == frames
    assert echo.heard == frames
    box.close()


def test_a_party_without_room_is_not_out_of_reach(monkeypatch):
    """Its line asks again, for longer than it would wait for one that does not answer."""
    monkeypatch.setattr(conducting, "_PAUSE", 0.01)
    until, asks = time.monotonic() + 0.5, []

    def ask(name, data, seconds):
        asks.append(bytes(data))
        return Parcel(unpack(data).number, (), State.FULL if time.monotonic() < until else State.WAITING).pack()

    answers = ByteQueue()
    line = Line("bank", ask, answers, patience=0.1)
    assert answers.get(5)[1].state is State.WAITING
    assert len(set(asks)) == 1
    assert len(asks) > 5
    line.close()


def test_a_party_that_does_not_read_ends_the_run_by_name(monkeypatch):
    monkeypatch.setattr(conducting, "UNREAD", 5 << 20)
    line = Line("bank", lambda name, data, seconds: time.sleep(0.1), ByteQueue(), patience=10)  # no answer
    for _ in range(5):
        line.post(bytes(1 << 20))
    with pytest.raises(RemoteProtocolError, match=r"^bank: it has left more than 5 MB unread$"):
        line.post(b"more")
    line.close()


def test_what_an_error_says_of_the_data_stays_at_the_party(caplog):
    here: list[str] = []
    box = Mailbox("bank", lambda: Duty(Echo(error=DataError("bank.csv: id 4711 appears twice"))), here.append)
    asked(box, 1)
    answer = asked(box, 2, b"a")
    assert answer.state is State.FAILED
    assert "DataError" in answer.reason
    assert "4711" not in answer.reason + caplog.text
    assert here == ["bank.csv: id 4711 appears twice"]


def test_a_bug_is_no_hang_and_its_traceback_stays_at_the_party(caplog):
    here: list[str] = []
    box = Mailbox("bank", lambda: Duty(Echo(error=ZeroDivisionError("4711"))), here.append)
    asked(box, 1)
    assert asked(box, 2, b"a").state is State.FAILED
    assert "4711" not in caplog.text
    assert "Traceback" in here[0]


def test_a_party_that_is_refused_or_done_says_so_and_closes():
    for word, state, finished in ((b"stop", State.FAILED, False), (b"end", State.WAITING, True)):
        duty = Duty(Echo())
        box = Mailbox("bank", lambda duty=duty: duty, print)
        asked(box, 1)
        assert asked(box, 2, word).state is state
        assert duty.finished is finished
        box.close()
        until = time.monotonic() + 5
        while not duty.closed and time.monotonic() < until:
            time.sleep(0.01)
        assert duty.closed


@pytest.fixture(scope="module")
def data():
    return load_data(CONFIG).data


def federation(folder: Path, data, config=CONFIG, told=CONFIG):
    """A server role, and a mailbox with its role for every party."""
    roles = {
        name: PartyRole(NamedRows(told, name, data), terms_of(told), offer_of(told, name), folder / name)
        for name in data.names
    }
    boxes = {name: Mailbox(name, lambda role=role: Duty(role), print) for name, role in roles.items()}
    server = ServerRole(data.names, terms_of(config), NamedLabels(config, data), folder / "server")
    return server, roles, boxes


@pytest.mark.parametrize("config", [CONFIG, RELAYED], ids=["labels shared", "labels at a party"])
def test_losses_on_the_way_change_neither_bits_nor_bytes(tmp_path, data, monkeypatch, config):
    """Law 2 on a bad line: a third of the requests is lost, a third of the answers, and some requests come twice."""
    monkeypatch.setattr(conducting, "_PAUSE", 0.001)
    server, roles, boxes = federation(tmp_path, data, config, config)
    luck, lock, lost = stream(7, "test"), threading.Lock(), [0, 0]

    def ask(name: str, request: bytes, seconds: float) -> bytes | None:
        with lock:
            there, back, twice = luck.uniform(3) < 1 / 3
        if there:
            lost[0] += 1
            return None
        answer = boxes[name].answer(request)
        if twice:
            assert boxes[name].answer(request) == answer
        if back:
            lost[1] += 1
            return None
        return answer

    assert conduct(server, ask, lambda: False, 60.0)
    reference = train(config).summary
    models = dict(server.rounds.server.models)
    for role in roles.values():
        models |= role.party.models
    assert {name: fingerprint(model) for name, model in models.items()} == reference["parameters"]
    sent = server.rounds.meter.total()
    assert [sent.up, sent.down, sent.evaluation] == [reference["bytes"][key] for key in ("up", "down", "evaluation")]
    assert all(role.done for role in roles.values())
    assert min(lost) > 10


def test_different_terms_are_refused_by_name_at_both_ends(tmp_path, data):
    server, roles, boxes = federation(tmp_path, data, CONFIG.model_copy(update={"batch_size": 8}))
    with pytest.raises(RemoteProtocolError, match="batch_size differs") as caught:
        conduct(server, lambda name, request, seconds: boxes[name].answer(request), lambda: False, 60.0)
    assert {role.refused for role in roles.values()} == {str(caught.value)}


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"garbage", "or none at all"),
        (encode(Embedding(7, 2, b"")), "Embedding of round 7 in round 0"),
        (encode(Gradient(0, b"")), "an unexpected Gradient"),
    ],
)
def test_a_frame_that_is_wrong_ends_the_run_with_the_name_of_its_sender(frame, said, tmp_path, data, monkeypatch):
    monkeypatch.setattr(conducting, "_FAREWELL", 0.1)
    server, _, boxes = federation(tmp_path, data)
    guilty = data.names[1]

    def ask(name: str, request: bytes, seconds: float) -> bytes | None:
        answer = unpack(boxes[name].answer(request))
        frames = [frame if name == guilty and kind_of(sent) == EMBEDDING else sent for sent in answer.frames]
        return Parcel(answer.number, tuple(frames), answer.state).pack()

    with pytest.raises(RemoteProtocolError, match=f"^{guilty}: .*{said}"):
        conduct(server, ask, lambda: False, 60.0)


def test_a_party_out_of_reach_ends_the_run_when_patience_does(tmp_path, data, monkeypatch):
    monkeypatch.setattr(conducting, "_PAUSE", 0.001)
    monkeypatch.setattr(conducting, "_FAREWELL", 0.1)
    server, _, boxes = federation(tmp_path, data)
    away = data.names[1]

    def ask(name: str, request: bytes, seconds: float) -> bytes | None:
        return None if name == away else boxes[name].answer(request)

    with pytest.raises(RemoteProtocolError, match=f"{away}: no answer for"):
        conduct(server, ask, lambda: False, 0.2)


@pytest.mark.parametrize("state", [State.WORKING, State.WAITING])
def test_a_party_that_answers_and_says_nothing_ends_the_run_with_its_name(state, tmp_path, data, monkeypatch, caplog):
    """It is in reach, and claims to work; a line says so at the first limit, and patience counts from there."""
    monkeypatch.setattr(conducting, "_PAUSE", 0.01)
    monkeypatch.setattr(conducting, "_FAREWELL", 0.1)
    server, _, boxes = federation(tmp_path, data)
    silent = data.names[1]

    def ask(name: str, request: bytes, seconds: float) -> bytes | None:
        answer = unpack(boxes[name].answer(request))
        if name != silent or not any(kind_of(frame) == EMBEDDING for frame in answer.frames):
            return answer.pack()
        monkeypatch.setattr(boxes[name], "answer", lambda data: Parcel(unpack(data).number, (), state).pack())
        return Parcel(answer.number, (), state).pack()

    with pytest.raises(RemoteProtocolError, match=rf"^nothing came from {silent} for ([2-9]|\d\d) s$"):
        conduct(server, ask, lambda: False, 0.5, round_limit=1.5)
    lines = [record.message for record in caplog.records if record.name == conducting.__name__]
    assert lines[-1].startswith(f"nothing came from {silent} for ")  # a slow start may have had a line of its own


def test_parcels_that_nobody_works_on_are_bounded_in_bytes(tmp_path, data, monkeypatch):
    """A party that answers with more and more is not asked again before the server has caught up."""
    monkeypatch.setattr(conducting, "_FAREWELL", 0.1)
    server, _, boxes = federation(tmp_path, data)
    loud, asked, meanwhile = data.names[1], [], []
    receive = server.receive

    def slow(m: int, frame: bytes):
        time.sleep(1.0)
        meanwhile.append(len(asked))
        return receive(m, frame)

    monkeypatch.setattr(server, "receive", slow)

    def ask(name: str, request: bytes, seconds: float) -> bytes | None:
        parcel = unpack(request)
        if name != loud or parcel.number == 1:
            return boxes[name].answer(request)
        asked.append(parcel.number)
        return Parcel(parcel.number, (bytes(4 << 20),), State.WORKING).pack()

    with pytest.raises(RemoteProtocolError, match=f"^{loud}: "):
        conduct(server, ask, lambda: False, 60.0)
    assert 0 < max(meanwhile) <= 8


def test_what_a_party_says_of_its_failure_cannot_steer_a_terminal():
    assert Parcel.failed(1, "\x1b[2Jgone\n").reason == r"\x1b[2Jgone\n"


def test_a_stopped_job_ends_the_run(tmp_path, data):
    server, _, boxes = federation(tmp_path, data)
    stopped = threading.Event()

    def ask(name: str, request: bytes, seconds: float) -> bytes | None:
        stopped.set()
        return boxes[name].answer(request)

    assert conduct(server, ask, stopped.is_set, 60.0) is False
