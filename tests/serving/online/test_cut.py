"""Somebody does not answer, and no connection is closed: requests say who it is, and are right again afterwards."""

from __future__ import annotations

import threading
import time

import pytest

from conformance.network import Proxy
from cvfl.errors import DecodeError
from cvfl.serving.online.door import Limits
from cvfl.wire import Owing, decode, encode
from serving.online.doors import Answer, Serving, Trained, trained

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("private"), privacy={"labels": "bank"})


class Far(Serving):
    """One party reaches the server by a proxy, which can stop to pass on bytes."""

    def __init__(self, folder, given: Trained, limits: Limits, party: str) -> None:
        super().__init__(folder, given, limits)
        self.proxy = Proxy(self.config.network.address)
        stock = self.stocks[party]
        network = stock.config.network.model_copy(update={"address": self.proxy.address})
        stock.config = stock.config.model_copy(update={"network": network})
        self.stack.callback(self.proxy.close)

    def __enter__(self) -> Far:
        super().__enter__()
        return self


def told(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.code, answer.body["error"]["message"]


@pytest.mark.parametrize("labels", ["shared", "bank"])
def test_a_timeout_names_the_party_that_has_not_answered(labels, given, private, tmp_path):
    run = given if labels == "shared" else private
    name = next(iter(run.expected))
    with Serving(tmp_path, run, Limits(timeout=0.5)) as serving:
        with serving.turns["shop"].taken():
            for _ in range(4):  # two are under way, the others wait for them
                assert told(serving.predict(name)) == (504, "timeout", "no answer within 0.5 s from shop")
        serving.until(lambda: serving.predict(name).status == 200)
        assert serving.predict(name).body["scores"] == [{"id": name} | run.expected[name]]


def test_a_timeout_names_the_server_if_nothing_comes_from_it(given, tmp_path):
    name = next(iter(given.expected))
    with Far(tmp_path, given, Limits(timeout=0.5), "bank") as serving:
        stalled = threading.Thread(target=serving.proxy.stall, args=(1.5,))
        stalled.start()
        for _ in range(2):
            assert told(serving.predict(name)) == (504, "timeout", "no answer within 0.5 s from the server")
        stalled.join()
        serving.until(lambda: serving.predict(name).status == 200)


@pytest.mark.parametrize("seconds", [2.5, pytest.param(30.0, marks=pytest.mark.slow)])
def test_a_party_is_cut_off_in_silence_and_comes_back_without_a_restart(seconds, given, tmp_path):
    """Until the server has noticed it is a timeout, then the party is away; both with its name."""
    name, expected = next(iter(given.expected)), {"no answer within 0.5 s from shop", "shop is away"}
    with Far(tmp_path, given, Limits(timeout=0.5), "shop") as serving:
        assert serving.predict(name).status == 200
        stalled = threading.Thread(target=serving.proxy.stall, args=(seconds,))
        stalled.start()
        time.sleep(0.1)
        meanwhile = []
        while stalled.is_alive():
            meanwhile.append(serving.predict(name))
            time.sleep(0.05)
        stalled.join()
        serving.until(lambda: serving.predict(name).status == 200)
        assert serving.predict(name).body["scores"] == [{"id": name} | given.expected[name]]
    wrong = [answer for answer in meanwhile[:-1] if answer.body["error"]["message"] not in expected]
    assert not wrong
    assert {answer.status for answer in meanwhile[:-1]} <= {503, 504}
    assert len(meanwhile) > seconds / 2


def test_a_party_does_not_say_who_owes_an_answer():
    assert decode(encode(Owing(7, 1))) == Owing(7, 1)
    with pytest.raises(DecodeError, match=r"^role 1 says who owes an answer; the server does$"):
        decode(encode(Owing(7, 1, (2,))))
    with pytest.raises(DecodeError, match=r"^the server names itself"):
        decode(encode(Owing(7, 0, (0,))))
