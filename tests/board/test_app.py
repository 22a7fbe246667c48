"""The board over HTTP: who may look, what is answered, what news there are, and names that are text and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from email.message import Message
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from board.made import CONFIG, finished, line, shown, under_way
from cvfl.board import listen
from cvfl.board.guard import Gate, read_token
from cvfl.errors import ConfigError
from cvfl.runs.status import StatusFile

pytestmark = pytest.mark.usefixtures("no_pages")
SCRIPT = '<script>document.title="owned"</script>'
IMAGE = '"><img src=x onerror=alert(1)>'
TOKEN = "correct horse battery staple"


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Message
    body: bytes


@contextmanager
def asked(port: int, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for key, value in headers.items():
            connection.putheader(key, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode() if body is not None else None)
        with connection.getresponse() as answer:
            yield answer


def ask(port: int, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
    with asked(port, path, method, body, **headers) as answer:
        return Answer(answer.status, answer.headers, answer.read())


def get(port: int, path: str) -> Any:
    answer = ask(port, path)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("here") / "runs"
    finished(root / "none", config=CONFIG | {"compressor": "identity"}, scale=30)
    finished(root / "auto", config=CONFIG | {"compressor": "auto"})
    under_way(root / "going")
    hostile = CONFIG | {"compressor": IMAGE, "party": {SCRIPT: {"label": IMAGE}}}
    finished(root / IMAGE.replace("/", ""), config=hostile, parties=(SCRIPT, IMAGE, "a\ud800b"))
    return root


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with shown(folder) as port:
        yield port


def test_the_page_and_its_files_come_with_headers_that_hold_it_down(port: int) -> None:
    page = ask(port, "/")
    text = page.body.decode()
    named = re.findall(r'(?:src|href)="(/[^"]*)"', text)
    assert "/assets/board.js" in named
    imported = ["/assets/plot.js", "/assets/dom.js", "/assets/scale.js", "/assets/list.js", "/assets/figures.js"]
    answers = [page, *(ask(port, path) for path in [*named, *imported])]
    assert all(answer.status == 200 for answer in answers)
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert (answer.headers["X-Content-Type-Options"], answer.headers["X-Frame-Options"]) == ("nosniff", "DENY")
        assert "uvicorn" not in str(answer.headers)
    assert not re.search(r"<script(?! type=\"module\" src=)|\son\w+=|javascript:", text)
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/app.py", "/assets/%2e%2e/app.py", "/config.json", "/.."]
)
def test_no_other_file_is_given(port: int, path: str) -> None:
    assert ask(port, path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_there_is_nothing_to_write(port: int, method: str) -> None:
    assert ask(port, "/api/runs", method).status == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.7", "", "[::2]"]
)
def test_another_name_of_this_machine_is_refused(port: int, host: str) -> None:
    assert ask(port, "/api/runs", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "LOCALHOST", "127.0.0.1:9", "127.9.9.9", "[::1]:80"])
def test_names_of_loopback_are_served(port: int, host: str) -> None:
    assert ask(port, "/api/runs", Host=host).status == 200


def test_the_list_has_every_run(port: int, folder: Path) -> None:
    found = get(port, "/api/runs")
    assert {row["name"] for row in found["rows"]} == {path.name for path in folder.iterdir()}
    assert (found["folder"], found["more"]) == ("runs", False)
    assert str(folder) not in json.dumps(found)


def test_a_run(port: int) -> None:
    found = get(port, "/api/view?run=auto")
    assert [run["label"] for run in found["runs"]] == ["auto"]
    assert found["bytes"][0]["parties"]["bank"] == {
        "up": 4000,
        "down": 16000,
        "evaluation": 350,
        "alignment": 30,
        "setup": 20,
    }
    assert "0.9875" in found["cards"]
    assert "100 rounds a second" in found["cards"]
    assert "step_size.eta" in found["settings"]
    assert found["results"] == ""


def test_runs_compared(port: int) -> None:
    found = get(port, "/api/view?run=none&run=auto&run=going")
    assert "Largest reduction" in found["cards"]
    assert "Settings that differ" in found["settings"]
    differing = found["settings"].partition("All settings")[0]
    assert "compressor" in differing
    assert "step_size.eta" not in differing
    for name, colour in (("none", "#0072b2"), ("auto", "#d55e00"), ("going", "#009e73")):
        assert re.search(rf'background:{colour}"></i><span>{name}<', found["results"])


def test_curves_and_a_part_of_them(port: int) -> None:
    whole, part = (
        get(port, "/api/curves?run=auto&axis=round"),
        get(port, "/api/curves?run=auto&axis=round&from=10&to=12"),
    )
    assert len(whole["loss"]["x"]) == 40
    assert part["loss"]["x"] == [9, 10, 11, 12, 13]


def test_many_questions_at_once_have_the_answers_of_one(tmp_path: Path) -> None:
    finished(tmp_path / "one", rounds=3000)
    with shown(tmp_path) as port, ThreadPoolExecutor(8) as pool:
        paths = [f"/api/curves?run=one&axis={axis}" for axis in ("epoch", "bytes", "round", "seconds")] * 4
        answers = [*pool.map(lambda path: get(port, path), paths)]
        assert {answer["rounds"] for answer in answers} == {3000}
        assert len({json.dumps(answer["loss"]["y"]) for answer in answers}) == 1


@pytest.mark.parametrize("query", ["axis=rubbish&from=x&to=nan", "axis=&from=1e999", "from=5&to=1"])
def test_rubbish_in_a_question_is_no_error(port: int, query: str) -> None:
    assert get(port, f"/api/curves?run=auto&{query}")["rounds"] == 40


@pytest.mark.parametrize("query", ["", "run=", "run=../auto", "run=/etc", "run=auto/..", "run=nobody"])
def test_a_run_that_is_not_listed_is_not_there(port: int, query: str) -> None:
    assert ask(port, f"/api/view?{query}").status == 404
    assert ask(port, f"/api/curves?{query}").status == 404


def test_too_many_runs_are_refused(port: int) -> None:
    assert ask(port, "/api/view?" + "&".join(["run=auto"] * 37)).status == 400


def test_names_are_text_wherever_html_is_made(port: int) -> None:
    name = quote(IMAGE.replace("/", ""))
    for query in (f"run={name}", f"run={name}&run=auto"):
        found = get(port, f"/api/view?{query}")
        html = "".join(found[part] for part in ("cards", "parties", "results", "table", "settings"))
        assert "<script" not in html
        assert "<img" not in html
        assert "&lt;script&gt;" in html
        assert "&lt;img src=x" in html
    assert SCRIPT in found["bytes"][0]["parties"]  # as data, which the page writes as text


def events(answer: HTTPResponse) -> Iterator[tuple[str, Any]]:
    while True:
        kind = answer.readline().decode()
        if kind.startswith("event: "):
            yield kind.strip().removeprefix("event: "), json.loads(answer.readline().decode().removeprefix("data: "))


def test_news_come_when_lines_do(tmp_path: Path) -> None:
    path = under_way(tmp_path / "going")
    with shown(tmp_path) as port, asked(port, "/api/follow") as answer:
        news = events(answer)
        kind, first = next(news)
        assert kind == "all"
        assert [row["rounds"] for row in first["rows"]] == [10]
        with (path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line(10)) + "\n" + json.dumps(line(11))[:40])
        kind, second = next(news)
        assert kind == "some"
        assert [(row["name"], row["rounds"]) for row in second["rows"]] == [("going", 11)]


def test_it_ends_while_somebody_looks(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(shown(tmp_path))
        ends = stack.pop_all()
        with asked(port, "/api/follow") as answer:
            assert next(events(answer))[0] == "all"
            ends.close()
            assert answer.read().strip() == b""


def test_who_is_away_is_told_and_what_failed_has_no_text_of_it(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "fed", CONFIG, tmp_path / "state" / "metrics.jsonl")
    file.look(("shop", IMAGE), [IMAGE], {"shop": 0})
    file.tell("waiting")
    with shown(tmp_path) as port:
        parties = get(port, "/api/view?run=fed")["parties"]
    assert re.search(r"shop</th><td>\s*here", parties)
    assert "not here yet" in parties
    assert "&#34;&gt;&lt;img" in parties


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[int]:
    with shown(folder, "0.0.0.0:0", TOKEN) as port:
        yield port


def test_beyond_this_machine_a_token_is_needed(guarded: int) -> None:
    for path in ("/api/runs", "/api/follow", "/api/view?run=auto", "/api/curves?run=auto", "/nowhere"):
        answer = ask(guarded, path)
        assert (answer.status, answer.body) == (401, b"a token is needed")
    page = ask(guarded, "/")
    assert page.status == 401
    assert "auto" not in page.body.decode().replace("autofocus", "").replace("autocomplete", "")
    assert ask(guarded, "/assets/board.css").status == 200
    for wrong in ("Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer é"):
        assert ask(guarded, "/api/runs", Authorization=wrong.encode("utf-8").decode("latin-1")).status == 401
    assert ask(guarded, "/api/runs", Authorization=f"Bearer {TOKEN}").status == 200


def test_the_form_gives_a_cookie_that_is_not_the_token(guarded: int) -> None:
    wrong = ask(guarded, "/enter", "POST", "token=nothing")
    assert (wrong.status, wrong.headers["Set-Cookie"]) == (303, None)
    right = ask(guarded, "/enter", "POST", f"token={quote(TOKEN)}")
    cookie = right.headers["Set-Cookie"]
    assert right.headers["Location"] == "/"
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert ask(guarded, "/api/runs", Cookie=cookie.partition(";")[0]).status == 200
    for bad in ("cvfl-board=", "cvfl-board=0", 'cvfl-board="', f"cvfl-board={TOKEN.replace(' ', '')}"):
        assert ask(guarded, "/api/runs", Cookie=bad).status == 401
    assert ask(guarded, "/enter", "POST", "token=" + "x" * 5000).status == 413


def test_a_name_that_is_no_address_of_this_machine_is_refused_there_too(guarded: int) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(guarded, "/api/runs", Host="evil.example", **headers).status == 421
    assert ask(guarded, "/api/runs", Host="192.0.2.7:8080", **headers).status == 200


def test_other_addresses_without_a_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a token; give --token FILE"):
        Gate("0.0.0.0:8080")
    (tmp_path / "short").write_text("0123")
    with pytest.raises(ConfigError, match="16 characters or more"):
        read_token(tmp_path / "short")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "nowhere")


def test_a_board_beside_something_else_ends_with_it(tmp_path: Path) -> None:
    with listen.beside(tmp_path, "127.0.0.1:0") as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        assert get(port, "/api/runs")["rows"] == []
    with pytest.raises(ConnectionError):
        ask(port, "/api/runs")
