"""Requests for people whom some parties do not know, with a model that was prepared for it."""

from __future__ import annotations

import json
import threading
import time

import pytest

from cvfl.errors import RemoteProtocolError
from cvfl.serving.online.roles import party_role
from cvfl.wire.control import Recall, Settle, encode_control
from serving.online.doors import Serving, scores, trained

pytestmark = pytest.mark.usefixtures("no_pages")
AUTO = {"compressor": "auto", "server_compressor": "auto", "evaluation_compressor": "identity"}
MODES = {
    "algorithm 1": AUTO,
    "labels at the bank": {"privacy": {"labels": "bank"}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A run of every mode."""
    return {
        mode: trained(tmp_path_factory.mktemp("run"), absence={"rate": 0.3}, **changes)
        for mode, changes in MODES.items()
    }


@pytest.mark.parametrize("mode", MODES)
def test_who_is_known_to_some_has_the_score_of_one_process_and_it_is_said_by_whom(mode, models, tmp_path):
    given = models[mode]
    some = [*list(given.expected)[:5], "p1000", "p1069", "nobody"]
    assert given.expected["p1000"]["parties"] == "shop"
    assert given.expected["p1069"]["parties"] == "bank"
    with Serving(tmp_path, given) as serving:
        *rows, nobody = serving.predict(*some).body["scores"]
        tensor = {"name": "ids", "datatype": "BYTES", "shape": [len(some)], "data": some}
        path = "/v2/models/credit"
        outputs = serving.call("POST", f"{path}/infer", json.dumps({"inputs": [tensor]}).encode()).body["outputs"]
        described = serving.get(path).body["outputs"]
    for row in rows:
        expected = given.expected[row["id"]]
        assert row == {
            "id": row["id"],
            "score": expected["score"],
            "class": expected["class"],
            "parties": expected["parties"].split(", "),
        }
    assert nobody == {"id": "nobody", "error": "unknown at bank and shop"}
    assert outputs[-1]["name"] == described[-1]["name"] == "parties"
    assert outputs[-1]["data"] == [given.expected[name]["parties"] for name in some[:-1]] + [""]
    assert outputs[0]["data"][:-1] == [given.expected[name]["score"] for name in some[:-1]]


def test_ids_that_are_all_known_to_one_party_alone_have_scores(models, tmp_path):
    given = models["algorithm 1"]
    with Serving(tmp_path, given) as serving:
        (row,) = serving.predict("p1000").body["scores"]
    assert (row["score"], row["parties"]) == (given.expected["p1000"]["score"], ["shop"])


@pytest.mark.parametrize("mode", MODES)
def test_while_a_party_is_away_scores_go_on_without_it_and_no_request_is_lost(mode, models, tmp_path):
    given = models[mode]
    without = scores(given.run, {"bank": given.paths["bank"]})
    name, answers, over = "p1010", [], threading.Event()

    def ask(serving: Serving) -> None:
        while not over.is_set():
            answers.append(serving.predict(name))

    def parties() -> list[str]:
        found = serving.predict(name)
        assert found.status == 200, (found, serving.events)
        return found.body["scores"][0]["parties"]

    with Serving(tmp_path, given) as serving:
        serving.until(lambda: parties() == ["bank", "shop"])
        asking = threading.Thread(target=ask, args=(serving,))
        asking.start()
        for _ in range(3):
            serving.stop_party("shop")
            serving.until(lambda: parties() == ["bank"])
            ready = serving.get("/v2/health/ready")
            assert (ready.status, ready.body["roles"]) == (200, {"server": True, "shop": False})
            unknown = serving.predict("p1000")  # at the shop alone
            assert (unknown.status, unknown.code) == (404, "unknown_ids")
            assert unknown.body["error"]["message"] == "no id has a score: unknown at bank, and shop is away"
            serving.start_party("shop")
            serving.until(lambda: parties() == ["bank", "shop"])
        over.set()
        asking.join()
    expected = {"bank, shop": given.expected[name], "bank": without[name]}
    seen = set()
    for answer in answers:
        assert answer.status == 200, answer
        (row,) = answer.body["scores"]
        seen.add(", ".join(row["parties"]))
        assert row["score"] == expected[", ".join(row["parties"])]["score"]
    assert seen == {"bank", "bank, shop"}


@pytest.mark.parametrize("mode", MODES)
def test_who_lacks_a_party_that_all_of_training_had_has_no_score(mode, tmp_path):
    """Of rows of the label holder: it had all, and the shop not; what stands for the bank was never learned."""
    data = {"id": "person", "test_share": 0.2, "alignment": "outer"}
    given = trained(tmp_path, lacks=100, **MODES[mode] | {"data": data})
    with Serving(tmp_path, given) as serving:
        alone = serving.predict("p1000")  # at the shop alone
        some = serving.predict("p1000", "p1069", "p1010").body["scores"]
    assert (alone.status, alone.code) == (404, "unknown_ids")
    assert alone.body["error"]["message"] == "no id has a score: unknown at bank"
    assert some[0] == {"id": "p1000", "error": "unknown at bank"}
    for row, parties in zip(some[1:], (["bank"], ["bank", "shop"]), strict=True):
        assert (row["score"], row["parties"]) == (given.expected[row["id"]]["score"], parties)


def test_a_party_that_all_of_training_had_is_needed_and_said_to_be_away(tmp_path):
    data = {"id": "person", "test_share": 0.2, "alignment": "outer"}
    given = trained(tmp_path, **AUTO | {"data": data})
    with Serving(tmp_path, given) as serving:
        assert serving.predict("p1069").code == "unknown_ids"  # not at the shop, which has all rows of training
        assert serving.predict("p1010").status == 200
        serving.stop_party("shop")
        found = serving.until(lambda: (one := serving.predict("p1010")).status != 200 and one)
        assert (found.status, found.code) == (503, "party_away")
        assert found.body["error"]["message"] == "shop is away"


def test_a_federation_that_starts_without_a_party_serves(models, tmp_path):
    given = models["algorithm 1"]
    without = scores(given.run, {"bank": given.paths["bank"]})
    serving = Serving(tmp_path, given)
    serving.absent = {"shop"}
    with serving:
        assert serving.predict("p1010").body["scores"][0]["score"] == without["p1010"]["score"]
        serving.absent = set()
        serving.start_party("shop")
        serving.until(lambda: serving.predict("p1010").body["scores"][0]["parties"] == ["bank", "shop"])
        assert serving.predict("p1010").body["scores"][0]["score"] == given.expected["p1010"]["score"]


def test_a_request_waits_while_roles_agree_on_a_session(models, tmp_path):
    given = models["algorithm 1"]
    with Serving(tmp_path, given) as serving:
        serving.desk.left(())
        assert serving.desk.trouble.code == "starting"
        found = []
        asking = threading.Thread(target=lambda: found.append(serving.predict("p1010")))
        asking.start()
        time.sleep(0.3)
        assert not found
        serving.turns["shop"].hang_up()  # it comes again, and a session begins
        asking.join(10)
        assert found[0].status == 200


@pytest.mark.parametrize(
    ("rate", "here", "said"),
    [
        (0.0, [1], "a session without some parties, which needs all"),
        (0.3, [2], "a session of parties that cannot be"),
        (0.3, [1, 1], "a session of parties that cannot be"),
        (0.3, [1, 3], "a session of parties that cannot be"),
    ],
)
def test_a_party_refuses_a_session_that_it_did_not_agree_to(rate, here, said, models, tmp_path):
    given = models["algorithm 1"] if rate else trained(tmp_path, **AUTO)
    serving = Serving(tmp_path, given)
    role = party_role(serving.stocks["bank"], tmp_path / "scratch", tmp_path / "state", None)
    list(role.receive(encode_control(Recall(session=1), 0)))
    settle = Settle(session=1, run="ab", m=1, how="as-is", here=here)
    with pytest.raises(RemoteProtocolError, match=said):
        list(role.receive(encode_control(settle, 0)))
    serving.bound.close()
    serving.stack.close()
