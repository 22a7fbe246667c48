"""Requests for people whom some parties do not know, with a model that was prepared for it."""

from __future__ import annotations

import json

import pytest

from serving.online.doors import Serving, trained

AUTO = {"compressor": "auto", "server_compressor": "auto", "evaluation_compressor": "identity"}
MODES = {
    "algorithm 1": AUTO,
    "labels at the bank": {"privacy": {"labels": "bank"}},
}


@pytest.mark.parametrize("mode", MODES)
def test_who_is_known_to_some_has_the_score_of_one_process_and_it_is_said_by_whom(mode, tmp_path):
    given = trained(tmp_path, absence={"rate": 0.3}, **MODES[mode])
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
