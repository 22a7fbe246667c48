"""Serving as operators run it: every role a process, killed at random; every answer is right or says what is wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import ssl
import threading
import time
import tomllib
from collections import Counter
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from conformance.network import free_port
from conformance.processes import Processes
from cvfl.federation.consent import FILE
from cvfl.runs.actions import NAME, read_actions, verified
from cvfl.runtime.grpc.certificates import make_certificates
from serving.online.doors import Trained, trained

pytestmark = pytest.mark.usefixtures("no_pages")
ROLES = ("bank", "server", "shop")
CODES = {"party_away", "server_away", "starting", "timeout", "no_common_model", "stopping"}


class Serving(Processes):
    """`cvfl server --serve`, `cvfl party --serve` and `cvfl serve`."""

    def __init__(self, folder: Path, given: Trained, *more: str) -> None:
        super().__init__(given.config, folder)
        self.run, self.http, self.more = given.run, free_port(), more
        self.more_of: dict[str, list[str]] = {}
        self.context: ssl.SSLContext | None = None

    def __enter__(self) -> Serving:
        return self

    def command(self, role: str) -> list[str]:
        return ["serve", "--name", "bank"] if role == "bank" else super().command(role)

    def options(self, role: str) -> list[str]:
        shared = ["--model", str(self.run), *self.more_of.get(role, [])]
        if role == "bank":
            return ["--http", f"127.0.0.1:{self.http}", "--state", str(self.folder / "kept"), *shared, *self.more]
        return ["--serve", *shared]

    def call(self, method: str, path: str, body: Any = None, seconds: float = 20.0) -> tuple[int, Any]:
        if self.context is None:
            connection = HTTPConnection("127.0.0.1", self.http, timeout=seconds)
        else:
            connection = HTTPSConnection("127.0.0.1", self.http, timeout=seconds, context=self.context)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def until_ready(self, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                if self.call("GET", "/v2/health/ready")[0] == 200:
                    return
            except (OSError, HTTPException):
                pass
            assert time.monotonic() < end, {role: self.errors(role) for role in self.children}
            time.sleep(0.05)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("given"))


def test_roles_are_killed_and_every_answer_is_right_or_says_what_is_wrong(given, tmp_path):
    chaos(given, tmp_path, seconds=6.0)


@pytest.mark.slow
def test_consent_to_answers_online_and_a_log_of_them(given, tmp_path):
    """Who needs consent and has none does not begin; a role that is stopped writes down what it did until then."""
    with Serving(tmp_path, given) as serving:
        serving.more_of = {role: ["--set", "consent.required=true"] for role in ("bank", "shop")}
        for role in ("bank", "shop"):
            serving.start(role)
            assert serving.children[role].wait(60) == 2
            line = f"error: {role}: nobody has approved the terms of answers online, which consent.required asks for"
            assert serving.errors(role).startswith(line)
        serving.more_of = {role: [*more, "--approve"] for role, more in serving.more_of.items()}
        serving.start("server")
        for role in ("bank", "shop"):
            serving.start(role, answer=b"y\n")
        serving.until_ready()
        names = [*given.expected][:3]
        for _ in range(20):
            assert serving.call("POST", "/predict", {"ids": names})[0] == 200
        for role in ROLES:
            serving.children[role].terminate()
            serving.children[role].wait(60)
    state = tmp_path / "state" / "fed"
    for role, place in (
        ("server", state / "serve-server"),
        ("shop", state / "serve-shop"),
        ("bank", tmp_path / "kept"),
    ):
        verified(place / NAME)
        lines = list(read_actions(place / NAME))
        assert sum(sum(line["rows"].values()) for line in lines if line["event"] == "served") == 60
        assert lines[-1]["event"] == "ended"
        assert len(lines) < 20
        events = [line["event"] for line in lines]
        assert role == "server" or events[:4] == ["started", "ended", "started", "approved"]
    assert tomllib.loads((tmp_path / FILE).read_text())["serve"].keys() == {"bank", "shop"}


@pytest.mark.slow
def test_the_same_for_ten_minutes(given, tmp_path):
    chaos(given, tmp_path, seconds=600.0)


def chaos(given: Trained, folder: Path, seconds: float) -> None:
    with Serving(folder, given, "--timeout", "10") as serving:
        serving.start_all()
        serving.until_ready()
        askers = Askers(serving, given)
        killed, held = kill_at_random(serving, seconds)
        serving.until_ready()
        rights = askers.seen.count("right")
        time.sleep(1.0)  # the service has come back by itself
        askers.end()
        end_well(serving, given)
    print(f"kills {dict(killed)}, held {dict(held)}, answers {dict(Counter(askers.seen))}, wrong {len(askers.wrong)}")
    assert not askers.wrong, askers.wrong
    assert askers.seen.count("right") > rights
    assert set(killed) == set(ROLES)
    assert len(set(askers.seen)) > 1


class Askers:
    """Threads that ask all the time, and look at every answer."""

    def __init__(self, serving: Serving, given: Trained) -> None:
        self._serving, self._given, self._over = serving, given, threading.Event()
        self.seen: list[str] = []
        self.wrong: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed),), daemon=True) for seed in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, pick: random.Random) -> None:
        names = list(self._given.expected)
        try:
            while not self._over.is_set():
                self.seen.append(self._ask(pick.choices(names, k=pick.randint(1, 5))))
        except BaseException as error:
            self.wrong.append(error)

    def _ask(self, asked: list[str]) -> str:
        try:
            status, body = self._serving.call("POST", "/predict", {"ids": asked})
        except (OSError, HTTPException):  # it was killed itself
            time.sleep(0.05)
            return "no door"
        if status == 200:
            assert body["scores"] == [{"id": one} | self._given.expected[one] for one in asked]
            return "right"
        assert body["error"]["code"] in CODES, body
        time.sleep(0.02)
        code: str = body["error"]["code"]
        return code


def kill_at_random(serving: Serving, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """Kill roles, or hold them for a moment, and start them again; how often each was killed, and held."""
    draw, end = random.Random(7), time.monotonic() + seconds
    killed, held = Counter[str](), Counter[str]()
    while time.monotonic() < end or len(killed) < len(ROLES):
        time.sleep(draw.uniform(0.2, 1.0))
        role = draw.choice([one for one in ROLES if one not in killed] or ROLES)  # each of them at least once
        if draw.random() < 0.3:  # slow for a while, instead of gone
            serving.children[role].send_signal(signal.SIGSTOP)
            time.sleep(draw.uniform(0.1, 0.5))
            serving.children[role].send_signal(signal.SIGCONT)
            held[role] += 1
            continue
        serving.kill(role)
        killed[role] += 1
        time.sleep(0.1)
        serving.start(role)
        if draw.random() < 0.7:
            serving.until_ready()
    return killed, held


def end_well(serving: Serving, given: Trained) -> None:
    """SIGTERM: a request that is under way is answered, and then the door ends."""
    name, found = next(iter(given.expected)), list[tuple[int, Any]]()
    serving.children["shop"].send_signal(signal.SIGSTOP)
    asking = threading.Thread(target=lambda: found.append(serving.call("POST", "/predict", {"ids": [name]}, 30.0)))
    asking.start()
    time.sleep(0.5)
    os.kill(serving.children["bank"].pid, signal.SIGTERM)
    time.sleep(0.3)
    serving.children["shop"].send_signal(signal.SIGCONT)
    asking.join()
    assert found == [(200, {"run": found[0][1]["run"], "scores": [{"id": name} | given.expected[name]]})]
    assert serving.children["bank"].wait(30) == 128 + signal.SIGTERM
    assert "Traceback" not in serving.errors("bank")


@pytest.mark.slow
def test_the_door_over_https_lets_requests_under_way_finish(given, tmp_path):
    """With a certificate of the door, asking for one of who asks; SIGTERM waits for who is there already."""
    make_certificates(tmp_path / "web", ["127.0.0.1"], ("asker",))
    web = [f"--tls-{end}={tmp_path / 'web' / name}" for end, name in (("cert", "server.crt"), ("key", "server.key"))]
    with Serving(tmp_path, given, *web, f"--tls-ca={tmp_path / 'web' / 'ca.crt'}", "--timeout", "20") as serving:
        serving.context = ssl.create_default_context(cafile=str(tmp_path / "web" / "ca.crt"))
        serving.context.load_cert_chain(tmp_path / "web" / "asker.crt", tmp_path / "web" / "asker.key")
        serving.start_all()
        serving.until_ready()
        stranger = ssl.create_default_context(cafile=str(tmp_path / "web" / "ca.crt"))
        with pytest.raises(OSError):  # noqa: PT011  which error it is depends on when the door hangs up
            live(HTTPSConnection("127.0.0.1", serving.http, timeout=5, context=stranger))
        end_well(serving, given)


def live(connection: HTTPSConnection) -> int:
    connection.request("GET", "/v2/health/live")
    return connection.getresponse().status
