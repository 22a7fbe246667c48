"""What changes while rows are served: parties leave and come back, new models, new tables; and little memory."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.agreement.handshake import Phase
from cvfl.federation.train import train
from cvfl.runs.directory import PARAMETERS
from cvfl.serving.online.door import Limits
from cvfl.serving.online.roles import check_serves, server_role
from cvfl.serving.online.stock import PartyStock
from cvfl.wire import Answer, Ask, Found, Runs, encode
from serving import tables
from serving.online.doors import MEMORY, Serving, scores, trained

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def next_run(given, tmp_path_factory):
    """Of the same terms, on other people."""
    folder = tmp_path_factory.mktemp("next")
    config = tables.config(tables.write(tables.frames(first=500), folder / "in"))
    return train(config, out=folder / "run", workers=1).path


def test_a_party_that_is_away_is_named_at_once_and_comes_back(given, tmp_path):
    name = next(iter(given.expected))
    right = [{"id": name} | given.expected[name]]
    with Serving(tmp_path, given) as serving:
        assert serving.predict(name).body["scores"] == right
        serving.stop_party("shop")
        serving.until(lambda: serving.get("/v2/health/ready").status == 503)
        began, found = time.monotonic(), serving.predict(name)
        assert (found.status, found.code, found.body["error"]["message"]) == (503, "party_away", "shop is away")
        assert time.monotonic() - began < 1
        ready = serving.get("/v2/health/ready").body
        assert ready["roles"] == {"server": True, "shop": False}
        assert ready["error"]["code"] == "party_away"
        assert serving.get("/v2/health/live").status == 200
        serving.start_party("shop")
        serving.until_ready()
        assert serving.predict(name).body["scores"] == right
        serving.stop_server()
        serving.until(lambda: serving.predict(name).code == "server_away")
        serving.start_server()
        serving.until_ready()
        assert serving.predict(name).body["scores"] == right


def test_a_request_under_way_is_told_when_its_party_leaves(given, tmp_path):
    name, found = next(iter(given.expected)), []
    with Serving(tmp_path, given, Limits(timeout=20.0)) as serving:
        with serving.turns["shop"].taken():
            asking = threading.Thread(target=lambda: found.append(serving.predict(name)))
            asking.start()
            serving.until(lambda: serving.desk.batching._under_way)
            serving.carrier._parties[2].cancel()  # its stream breaks
            asking.join(10)
        assert found[0].code == "party_away"
        serving.until_ready()
        assert serving.predict(name).status == 200


@pytest.mark.parametrize("labels", ["shared", "bank"])
def test_a_new_model_is_taken_up_without_a_lost_request(labels, next_run, given, tmp_path):
    privacy = {"privacy": {"labels": labels}}
    if labels == "shared":
        run, after = given, next_run
    else:
        run = trained(tmp_path / "first", **privacy)
        paths = tables.write(tables.frames(first=500), tmp_path / "second")
        after = train(tables.config(paths, **privacy), out=tmp_path / "run", workers=1).path
    new = scores(after, run.paths)
    answers, over = [], threading.Event()
    names = list(run.expected)[:5]

    def ask(serving) -> None:
        while not over.is_set():
            answers.append(serving.predict(*names))

    with Serving(tmp_path, run) as serving:
        asking = [threading.Thread(target=ask, args=(serving,)) for _ in range(3)]
        for thread in asking:
            thread.start()
        for role in serving.models:  # one after the other, as operators do
            time.sleep(0.2)
            serving.bring(role, after)
        name = json.loads((after / PARAMETERS / "bank.model.json").read_text())["run"]
        serving.until(lambda: serving.get("/v2/health/ready").body["run"] == name)
        time.sleep(0.2)
        over.set()
        for thread in asking:
            thread.join()
        assert serving.stocks["shop"].kept.runs == (name,)  # the old one is given up
    assert len(answers) > 20
    expected = {serving.stocks["bank"].bundle.run: new}
    for answer in answers:
        assert answer.status == 200
        rows = expected.get(answer.body["run"], run.expected)
        assert answer.body["scores"] == [{"id": one} | rows[one] for one in names]
    assert {answer.body["run"] for answer in answers} == {
        name,
        json.loads((run.run / PARAMETERS / "bank.model.json").read_text())["run"],
    }


def test_a_bundle_half_written_is_said_once_and_taken_when_it_is_whole(given, next_run, tmp_path):
    name = next(iter(given.expected))
    with Serving(tmp_path, given) as serving:
        weights = next_run / PARAMETERS / "shop.safetensors"
        shutil.copy(next_run / PARAMETERS / "shop.model.json", serving.models["shop"])
        (serving.models["shop"] / "shop.safetensors").write_bytes(weights.read_bytes()[:100])
        said = lambda: [line for role, line in serving.events if role == "shop" and "not taken" in line]  # noqa: E731
        serving.until(said)
        time.sleep(0.5)
        assert len(said()) == 1
        assert serving.predict(name).body["scores"] == [{"id": name} | given.expected[name]]
        for role in serving.models:
            serving.bring(role, next_run)
        run = json.loads((next_run / PARAMETERS / "bank.model.json").read_text())["run"]
        serving.until(lambda: serving.get("/v2/health/ready").body["run"] == run)
        new = scores(next_run, given.paths)
        assert serving.predict(name).body["scores"] == [{"id": name} | new[name]]


def test_roles_without_a_run_in_common_say_so(given, next_run, tmp_path):
    with Serving(tmp_path, given) as serving:
        serving.stop_party("shop")
        serving.bring("shop", next_run)
        serving.stocks["shop"] = PartyStock(serving.config, "shop", serving.models["shop"], MEMORY, 600.0)
        serving.start_party("shop")
        serving.until(lambda: serving.predict("p1010").code == "no_common_model")
        for role in ("server", "bank"):
            serving.bring(role, next_run)
        serving.until_ready()
        assert serving.predict("p1010").status == 200


def test_a_changed_table_is_read_again(given, tmp_path):
    (tmp_path / "new").mkdir()
    paths = {name: Path(shutil.copy(path, tmp_path / "new")) for name, path in given.paths.items()}
    moved = given._replace(config=tables.config(paths), paths=paths)
    with Serving(tmp_path, moved) as serving:
        assert serving.predict("p1003").code == "unknown_ids"
        found = tables.frames(first=1000, rows=80)
        tables.write({"bank": found["bank"].drop_columns("target"), "shop": found["shop"]}, tmp_path / "new")
        serving.until(lambda: serving.predict("p1003").status == 200)
        expected = scores(given.run, paths)
        serving.until(lambda: serving.predict("p1079").status == 200)
        names = list(expected)[:40]
        assert serving.predict(*names).body["scores"] == [{"id": one} | expected[one] for one in names]
        paths["shop"].write_text("person\nnobody\n")  # columns are missing: the old table stays
        serving.until(lambda: any("not taken" in line and "missing" in line for _, line in serving.events))
        assert serving.predict("p1079").status == 200


@pytest.mark.parametrize("memory", [0, 20 * 4 * 4], ids=["none", "some rows"])
def test_beyond_its_memory_rows_are_computed_on_demand(memory, given, tmp_path):
    with Serving(tmp_path, given, memory=memory) as serving:
        names = list(given.expected)
        found = serving.predict(*names, names[0]).body["scores"]
        assert found == [{"id": one} | given.expected[one] for one in (*names, names[0])]
        store = serving.stocks["shop"].kept.newest
        assert store.ahead == (
            0 if not memory else min(store.rows.table.rows, memory // (4 * store.model.bundle.width))
        )
        kept = sum(store.rows._places[one] < store.ahead for one in (*names, names[0]))
        assert store.on_demand == len(names) - kept  # an id that is asked for twice travels once
        assert kept == 0 or memory


def test_a_row_that_is_no_number_has_no_score(given, tmp_path):
    with Serving(tmp_path, given) as serving:
        name, other, *_ = given.expected
        store = serving.stocks["shop"].kept.newest
        store._h[store.rows._places[name]] = np.nan
        store._all_fine = False
        found = serving.predict(name, other).body["scores"]
        assert found == [{"id": name, "error": "unknown at shop"}, {"id": other} | given.expected[other]]


@pytest.mark.parametrize(
    "lie",
    [
        lambda number: Found(number, 2, 1, b"\1", b""),
        lambda number: Found(number + 9, 2, 1, b"\0", b""),
        lambda number: Found(number, 2, 2, b"\0", b""),
        lambda number: Found(number, 1, 1, b"\0", b""),
        lambda number: Ask(number, 2, "ab", bytes(16)),
        lambda number: Answer(number, 1, 2, (b"\1",), b""),
    ],
    ids=["no embedding", "not asked", "other rows", "another's name", "asks", "answers"],
)
def test_a_party_that_lies_is_cut_off_and_the_others_go_on(lie, given, serving_of_lies):
    serving, name = serving_of_lies, next(iter(given.expected))
    number = serving.role.rounds.server._number + 1
    with serving.turns["shop"].taken():
        asking = threading.Thread(target=lambda: serving.predict(name))
        asking.start()
        serving.until(lambda: serving.role.rounds.server and serving.role.rounds.server._number == number)
        serving.turns["shop"]._send(encode(lie(number)))
        asking.join()
    serving.until_ready()
    assert serving.predict(name).body["scores"] == [{"id": name} | given.expected[name]]


@pytest.fixture(scope="module")
def serving_of_lies(given, tmp_path_factory):
    with Serving(tmp_path_factory.mktemp("lies"), given, Limits(timeout=20.0)) as serving:
        yield serving


@pytest.mark.parametrize(
    "lie",
    [
        lambda number, run: Answer(number, 1, 2, (b"\1",) * 3, b""),
        lambda number, run: Answer(number, 1, 2, (b"\1",) * 3, np.full(2, np.nan).tobytes()),
        lambda number, run: Answer(number, 2, 2, (b"\1",) * 3, bytes(16)),
        lambda number, run: Answer(number, 1, 2, (b"\1", b"\1", b"\0"), bytes(16)),
        lambda number, run: Answer(number + 3, 1, 2, (b"\1",) * 3, bytes(16)),
        lambda number, run: Ask(number, 0, run, bytes(16)),
    ],
    ids=["no scores", "no number", "other rows", "too few", "not asked", "asks the door"],
)
def test_a_server_that_lies_is_refused_by_the_door(lie, given, serving_of_lies):
    serving = serving_of_lies
    role, door = serving.desk.end.role, serving.desk._door
    with serving.turns["bank"].taken():
        number, _ = door.ask(bytes(16))
        with pytest.raises(RemoteProtocolError, match=r"^bank: from the server"):
            list(role.receive(encode(lie(number, door.run))))
        assert role._link.phase is Phase.SERVING
    serving.turns["bank"].hang_up()
    serving.until(lambda: serving.desk._door is not door)
    serving.until_ready()


def test_pseudonyms_are_the_same_after_a_restart_and_nobody_can_guess_them(given, tmp_path):
    def asked(serving) -> set[bytes]:
        before = len(serving.frames)
        serving.predict("p1010")
        return {frame[-18:-2] for frame in serving.frames[before:] if frame[3:4] == b"\1"}

    with Serving(tmp_path / "one", given) as serving:
        first = asked(serving)
        serving.stop_party("bank")
        serving.start_party("bank")
        serving.until_ready()
        assert asked(serving) == first
        assert len(first) == 1
    with Serving(tmp_path / "two", given) as serving:  # another federation, another secret
        assert asked(serving) != first


def test_what_cannot_be_served_is_said(given, tmp_path):
    noisy = tables.config(given.paths, privacy={"clip": 1.0, "noise": 1.0})
    with pytest.raises(ConfigError, match=r"serving: with privacy\.noise"):
        check_serves(noisy)
    with pytest.raises(ConfigError, match=r"there is no section party\.shpo; did you mean 'shop'"):
        PartyStock(given.config, "shpo", given.run, MEMORY, 600.0)
    frames = tables.frames()
    plain = {
        "bank": frames["bank"].drop_columns("person"),
        "shop": frames["shop"].take(list(range(tables.ROWS))[::-1]).drop_columns("person"),
    }
    config = tables.config(tables.write(plain, tmp_path), data={"alignment": "aligned", "test_share": 0.2})
    run = train(config, out=tmp_path / "run", workers=1).path
    with pytest.raises(ConfigError, match=r"rows without ids cannot be asked for; serving needs data\.id"):
        PartyStock(config, "bank", run, MEMORY, 600.0)


def test_who_was_told_other_terms_disturbs_nobody(given, tmp_path):
    """A party that would train, or has other terms, is refused, and the server goes on."""
    role = server_role(given.config, None, tmp_path)
    other = server_role(tables.config(given.paths, seed=9), None, tmp_path / "other")
    assert role.terms != other.terms
    with Serving(tmp_path / "serving", given) as serving:
        hello = serving.desk.end.role.hello()
        assert serving.role.terms["serve"] is True
        serving.role.terms = {**serving.role.terms, "serve": None}
        with pytest.raises(RemoteProtocolError, match="serve differs") as raised:
            serving.role.join(hello, "bank")
        assert type(raised.value) is RemoteProtocolError  # a TermsError would end the server


def test_runs_that_are_no_names_are_not_read():
    from cvfl.errors import DecodeError  # noqa: PLC0415
    from cvfl.wire import decode  # noqa: PLC0415

    assert decode(encode(Runs(1, ("0f3a",)))) == Runs(1, ("0f3a",))
    with pytest.raises(DecodeError, match="the name of a run is malformed"):
        decode(encode(Runs(1, ("../..",))))
