"""The door over HTTP: scores of law 11 in every mode, every error with its code, limits, keys, the page."""

from __future__ import annotations

import json
import threading
import time

import pytest

import cvfl
from cvfl.errors import ConfigError
from cvfl.serving.online.door import Keys, Limits, check_open
from cvfl.wire.frame import kind_of
from serving.online.doors import Serving, trained

pytestmark = pytest.mark.usefixtures("no_pages")
KEY = "a-key-of-enough-signs"
SECURE = {"aggregation": "secure"}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def serving(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    (folder / "keys").write_text(f"# who may ask\nshopkeeper {KEY}\nother another-key-of-enough-signs\n")
    with Serving(folder, given, Limits(ids=50, timeout=5.0)) as serving:
        yield serving


def test_scores_are_those_of_one_process_to_the_bit(serving, given):
    """Law 11 over HTTP: alone, with others, twice, in any order."""
    ids = list(given.expected)[:50]
    found = serving.predict(*reversed(ids))
    assert found.status == 200
    assert found.body["run"] == serving.stocks["bank"].bundle.run
    assert found.body["scores"] == [{"id": name} | given.expected[name] for name in reversed(ids)]
    for name in (*ids[:3], ids[0]):
        assert serving.predict(name).body["scores"] == [{"id": name} | given.expected[name]]
    twice = serving.predict(ids[0], ids[1], ids[0]).body["scores"]
    assert twice[0] == twice[2] == {"id": ids[0]} | given.expected[ids[0]]


@pytest.mark.parametrize("kind", ["several", "quantity"])
def test_other_labels(kind, tmp_path):
    given = trained(tmp_path, kind)
    with Serving(tmp_path, given) as serving:
        name, row = next(iter(given.expected.items()))
        (found,) = serving.predict(name).body["scores"]
        tensors = infer(serving, [name]).body["outputs"]
        described = serving.get("/v2/models/credit").body["outputs"]
    assert [one["name"] for one in described] == [one["name"] for one in tensors]
    assert described[0]["shape"] == [-1, *tensors[0]["shape"][1:]]
    if kind == "quantity":
        assert found == {"id": name, "value": row["value"]}
        assert tensors[0] == {"name": "value", "datatype": "FP64", "shape": [1], "data": [row["value"]]}
    else:
        scores = {key.removeprefix("score_"): value for key, value in row.items() if key != "class"}
        assert found == {"id": name, "scores": scores, "class": row["class"]}
        assert tensors[0]["shape"] == [1, 3]
        assert tensors[0]["data"] == list(scores.values())


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"privacy": {"labels": "bank"}}, 0.0),
        ({"privacy": SECURE, "compressor": "auto", "server_model": {"name": "sum"}}, 1e-3),
        ({"privacy": SECURE | {"labels": "bank"}, "compressor": "auto", "server_model": {"name": "sum"}}, 1e-3),
        ({"privacy": {"labels": "bank", "label_epsilon": 3.0, "private_model": True}}, 0.0),
        ({"compressor": "auto", "server_compressor": "auto"}, 0.02),
    ],
    ids=["private labels", "secure", "both", "private model", "auto"],
)
def test_every_mode_serves(changes, tolerance, tmp_path):
    given = trained(tmp_path, **changes)
    ids, said = list(given.expected)[:20], {}
    with Serving(tmp_path, given) as serving:
        for some in (ids, ids[:1], [*ids[:2], "p1000", "p1069"]):
            found = serving.predict(*some).body["scores"]
            assert [row["id"] for row in found] == some
            for row in found:
                if row["id"] in given.expected:
                    assert abs(row["score"] - given.expected[row["id"]]["score"]) <= tolerance
                    if "secure" not in str(changes):  # a row that is asked for again has the same score
                        assert said.setdefault(row["id"], row["score"]) == row["score"]
        assert [row.get("error") for row in found] == [None, None, "unknown at bank", "unknown at shop"]
        open_kinds = {(kind_of(frame), frame[3] if kind_of(frame) == 15 else 0) for frame in serving.frames}
    names = [name.encode() for name in given.expected]
    assert not any(name in frame for name in names for frame in serving.frames)  # no id passes the server
    assert (10 in {kind for kind, _ in open_kinds}) == ("labels" in changes.get("privacy", {}))


def infer(serving, ids, **more):
    tensor = {"name": "ids", "datatype": "BYTES", "shape": [len(ids)], "data": ids}
    return serving.call("POST", "/v2/models/credit/infer", json.dumps({"inputs": [tensor]} | more).encode())


def test_the_open_inference_protocol(serving, given):
    run, (first, *_) = serving.stocks["bank"].bundle.run, list(given.expected)
    assert serving.get("/v2/health/live").body == {"live": True}
    ready = {"ready": True, "run": run, "roles": {"server": True, "shop": True}}
    assert serving.get("/v2/health/ready").body == serving.get("/v2/models/credit/ready").body == ready
    said = serving.get("/v2/models/credit").body
    assert (said["name"], said["versions"], said["inputs"][0]["name"]) == ("credit", [run], "ids")
    assert [(one["name"], one["shape"]) for one in said["outputs"]] == [
        ("score", [-1]),
        ("class", [-1]),
        ("error", [-1]),
    ]
    assert serving.get("/v2").body == {"name": "cvfl", "version": cvfl.__version__, "extensions": []}
    found = infer(serving, [first, "p1000"], id="seven").body
    assert {key: found[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "credit",
        "model_version": run,
        "id": "seven",
    }
    score, chosen, error = found["outputs"]
    assert (score["datatype"], score["shape"], score["data"][0]) == ("FP64", [2], given.expected[first]["score"])
    assert chosen["data"] == [given.expected[first]["class"], ""]
    assert error["data"] == ["", "unknown at bank"]
    assert serving.get("/v2/models/other").code == serving.get("/v2/models/other/ready").code == "unknown_model"
    for bad in ({}, {"inputs": []}, {"inputs": [{"name": "x"}]}, {"inputs": [{"name": "ids", "datatype": "BYTES"}]}, 7):
        assert serving.call("POST", "/v2/models/credit/infer", json.dumps(bad).encode()).code == "bad_request"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_json"),
        (b"", 400, "bad_json"),
        (b"[" * 40_000, 400, "bad_json"),
        (b"[]", 422, "bad_request"),
        (b'{"id": ["p1010"]}', 422, "bad_request"),
        (b'{"ids": "p1010"}', 422, "bad_ids"),
        (b'{"ids": []}', 422, "no_ids"),
        (b'{"ids": [1.5]}', 422, "bad_ids"),
        (b'{"ids": [true]}', 422, "bad_ids"),
        (b'{"ids": [null]}', 422, "bad_ids"),
        (b'{"ids": [["p1010"]]}', 422, "bad_ids"),
        (b'{"ids": [""]}', 422, "bad_ids"),
        (b'{"ids": [4711]}', 404, "unknown_ids"),
        (b'{"ids": ["nobody", "p1000"]}', 404, "unknown_ids"),
        (json.dumps({"ids": ["p"] * 51}).encode(), 413, "too_many_ids"),
        (json.dumps({"ids": [str(n) for n in range(10**6)]}).encode(), 413, "too_large"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_answered_has_a_code(serving, given, body, status, code):
    found = serving.call("POST", "/predict", body)
    assert (found.status, found.code) == (status, code)
    assert serving.predict(next(iter(given.expected))).status == 200  # and the next one is answered


def test_ids_are_read_as_tables_are(serving, given):
    name = next(iter(given.expected))
    assert serving.predict(f"  {name} ").body["scores"][0]["score"] == given.expected[name]["score"]
    assert serving.predict(name.upper()).code == "unknown_ids"


def test_other_pages(serving):
    assert serving.get("/nothing").code == "not_found"
    assert serving.get("/predict").code == "wrong_method"
    page = serving.get("/docs").body
    assert "/v2/models/{name}/infer" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "/predict" in serving.get("/openapi.json").body["paths"]


def test_metrics(serving, given):
    serving.predict(*list(given.expected)[:7])
    serving.predict("nobody")
    lines = dict(line.rsplit(" ", 1) for line in serving.get("/metrics").body.splitlines() if not line.startswith("#"))
    assert float(lines['cvfl_requests_total{code="ok",status="200"}']) >= 1
    assert float(lines['cvfl_requests_total{code="unknown_ids",status="404"}']) >= 1
    assert float(lines["cvfl_ids_total"]) >= 8
    assert lines['cvfl_up{role="shop"}'] == lines['cvfl_up{role="server"}'] == lines["cvfl_ready"] == "1.0"
    assert float(lines["cvfl_request_seconds_count"]) >= 2
    assert float(lines['cvfl_bytes_total{direction="up"}']) > 1000
    assert not any("p10" in line for line in lines)


def test_requests_that_wait_go_together(serving, given):
    """While messages are under way, what comes waits, and goes in one message."""
    names, before, answers = list(given.expected)[:24], serving.desk.batching.messages, {}
    with serving.turns["shop"].taken():  # the shop answers nothing meanwhile
        threads = [
            threading.Thread(target=lambda name=name: answers.update({name: serving.predict(name)})) for name in names
        ]
        for thread in threads:
            thread.start()
        batching = serving.desk.batching
        gone = lambda: [len(requests) for requests in batching._under_way.values()]  # noqa: E731
        serving.until(lambda: len(gone()) == 2 and sum(gone()) + len(batching._waiting) == len(names))
    for thread in threads:
        thread.join()
    assert serving.desk.batching.messages == before + 3
    assert {name: found.body["scores"][0] for name, found in answers.items()} == {
        name: {"id": name} | given.expected[name] for name in names
    }


def test_keys_and_rates(given, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"# who may ask\nshopkeeper {KEY}\nother another-key-of-enough-signs\n")
    name = next(iter(given.expected))
    with Serving(tmp_path, given, Limits(rate=2.0, timeout=0.5), keys) as serving:
        assert serving.predict(name).code == "no_key"
        assert serving.predict(name).headers["www-authenticate"] == "Bearer"
        assert serving.predict(name, Authorization="Bearer wrong").code == "wrong_key"
        assert serving.get("/metrics").code == serving.get("/v2/models/credit").code == "no_key"
        assert serving.get("/metrics", Authorization=f"Bearer {KEY}").status == 200
        assert serving.predict(name, Authorization=f"Bearer {KEY}").status == 200
        assert serving.predict(name, X_API_Key=KEY).status == 200
        limited = serving.predict(name, X_API_Key=KEY)
        assert (limited.status, limited.code, limited.headers["retry-after"]) == (429, "too_many_requests", "1")
        assert serving.predict(name, X_API_Key="another-key-of-enough-signs").status == 200  # its own rate
        time.sleep(0.6)
        with serving.turns["shop"].taken():  # a slow party
            slow = serving.predict(name, X_API_Key=KEY)
        assert (slow.status, slow.code) == (504, "timeout")
        time.sleep(0.6)
        assert serving.predict(name, X_API_Key=KEY).status == 200  # the late answer is nobody's


def test_a_door_that_others_can_reach_needs_keys(tmp_path):
    check_open("127.0.0.1:8080", Keys(None))
    check_open("[::1]:8080", Keys(None))
    with pytest.raises(ConfigError, match="needs keys; give --keys FILE"):
        check_open("0.0.0.0:8080", Keys(None))
    for text, said in (("", "there is no key"), ("a b c", "line 1 is not NAME KEY"), ("a short", "of 16 characters")):
        (tmp_path / "keys").write_text(text)
        with pytest.raises(ConfigError, match=said):
            Keys(tmp_path / "keys")
    with pytest.raises(ConfigError, match="the keys cannot be read"):
        Keys(tmp_path / "none")
    with pytest.raises(ConfigError, match="--max-ids is 1 to 4,096"):
        Limits(ids=5000)
