"""Serving as operators run it: every role a process, killed at random; every answer is right or says what is wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import ssl
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from conformance.network import free_port
from conformance.processes import Processes
from cvfl.runtime.grpc.certificates import make_certificates
from serving.online.doors import Trained, trained

CODES = {"party_away", "server_away", "starting", "timeout", "no_common_model", "stopping"}


class Serving(Processes):
    """`cvfl server --serve`, `cvfl party --serve` and `cvfl serve`."""

    def __init__(self, folder: Path, given: Trained, *more: str) -> None:
        super().__init__(given.config, folder)
        self.run, self.http, self.more = given.run, free_port(), more
        self.context: ssl.SSLContext | None = None

    def command(self, role: str) -> list[str]:
        return ["serve", "--name", "bank"] if role == "bank" else super().command(role)

    def options(self, role: str) -> list[str]:
        shared = ["--model", str(self.run)]
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
    chaos(given, tmp_path, seconds=8.0)


@pytest.mark.slow
def test_the_same_for_ten_minutes(given, tmp_path):
    chaos(given, tmp_path, seconds=600.0)


def chaos(given: Trained, folder: Path, seconds: float) -> None:
    seen, over, names = list[str](), threading.Event(), list(given.expected)
    draw = random.Random(7)

    def ask(seed: int) -> None:
        pick = random.Random(seed)
        while not over.is_set():
            asked = pick.choices(names, k=pick.randint(1, 5))
            try:
                status, body = serving.call("POST", "/predict", {"ids": asked})
            except (OSError, HTTPException):
                seen.append("no door")  # it was killed itself
                time.sleep(0.05)
                continue
            if status != 200:
                assert body["error"]["code"] in CODES, body
                seen.append(body["error"]["code"])
                time.sleep(0.02)
                continue
            assert body["scores"] == [{"id": one} | given.expected[one] for one in asked]
            seen.append("right")

    wrong: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            ask(seed)
        except BaseException as error:
            wrong.append(error)

    with Serving(folder, given) as serving:
        serving.start_all()
        serving.until_ready()
        asking = [threading.Thread(target=guarded, args=(seed,)) for seed in range(3)]
        for thread in asking:
            thread.start()
        end, killed = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            time.sleep(draw.uniform(0.2, 1.0))
            role = ("shop", "server", "bank")[killed % 3]
            if draw.random() < 0.3:  # slow for a while, instead of gone
                serving.children[role].send_signal(signal.SIGSTOP)
                time.sleep(draw.uniform(0.1, 0.5))
                serving.children[role].send_signal(signal.SIGCONT)
                continue
            serving.kill(role)
            killed += 1
            time.sleep(0.1)
            serving.start(role)
            if draw.random() < 0.7:
                serving.until_ready()
        serving.until_ready()
        rights = seen.count("right")
        time.sleep(1.0)  # the service has come back by itself
        over.set()
        for thread in asking:
            thread.join()
    assert not wrong, wrong
    assert seen.count("right") > rights
    assert killed >= 2
    assert len(set(seen)) > 1


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
            connection = HTTPSConnection("127.0.0.1", serving.http, timeout=5, context=stranger)
            connection.request("GET", "/v2/health/live")
            connection.getresponse()
        name, found = next(iter(given.expected)), []
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
