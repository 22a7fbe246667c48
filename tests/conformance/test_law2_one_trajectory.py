"""Law 2: the same configuration and seed end in the same bits and bytes, whatever carries the messages."""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import AUTO, NAMED, settings, table_settings, write_config, write_tables
from conformance.loop import Loop
from conformance.outcome import Outcome, in_process, of_parties, same, written
from conformance.threads import Threads, threads
from cvfl.federation.processes import train_grpc
from cvfl.wire import decode
from cvfl.wire.control import decode_control
from cvfl.wire.frame import kind_of
from cvfl.wire.targets import Targets

pytestmark = pytest.mark.usefixtures("tidy")
PRIVATE = [case for case in NAMED if case.startswith(("private", "secure", "labels", "told"))]
MIXED = {
    "algorithm 2, top-k, adam",
    "quiet messages, relayed",
    "residual network",
    "feedback, algorithm 2",
    "cached rows, auto",
    "auto, sum",
    "auto, attention",
    "auto, attention, budget",
    "auto, algorithm 2",
    "auto, one party",
    "private labels, squared loss",
    "private labels, mlp",
    "secure, private labels",
    "secure, reconstruction penalty",
    "secure, labels at a party",
    "labels at a party, auto",
    "labels at a party, reconstruction penalty",
    "told labels of two classes",
    "told labels, private model, secure",
    "told quantities, algorithm 2",
    "absence, quiet, first layer at the server",
    "absence, labels at a party",
    "outer, told labels",
    "outer, budget",
    "private, algorithm 2",
    "private, validation",
    "aligned, by groups",
}
"""What cases that are always tried have one by one; most of them have faults in law 3, too."""


def cases(names: Iterable[str]) -> list[Any]:
    """Mixed ones among the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in MIXED else name for name in names]


TABLES: dict[str, dict[str, Any]] = {
    "private": {},
    "private, validation": {"data": {"validation_share": 0.2}, "compressor": "topk:bits=8"},
    "private, stratified": {"data": {"stratify": True, "validation_share": 0.2, "test_share": 0.2}},
    "private, by time": {"data": {"split_by": "age", "validation_share": 0.2}, "compressor": "identity"},
    "private, by groups": {"data": {"split_groups": "age", "validation_share": 0.2}, "compressor": "identity"},
    "private, algorithm 2": {"algorithm": 2, "local_iterations": 1},
    "private, auto": AUTO | {"data": {"validation_share": 0.2}, "batch_size": 16},
    "private, budget": AUTO | {"rounds": 12, "batch_size": 16, "budget": 23_300},
    "outer": {"data": {"alignment": "outer", "stratify": True, "validation_share": 0.2}, "folding": True},
    "outer, labels at a party": {
        "data": {"alignment": "outer", "prepare": {"categories": "embedding", "rare": 0.0}},
        "privacy": {"labels": "bank"},
    },
    "told labels": AUTO
    | {
        "data": {"validation_share": 0.2, "stratify": True},
        "batch_size": 16,
        "privacy": {"labels": "bank", "label_epsilon": 2.0},
    },
    "told labels, private model": AUTO
    | {
        "data": {"validation_share": 0.2, "stratify": True},
        "batch_size": 16,
        "rounds": 20,
        "stopping": {"patience": 2},
        "privacy": {"labels": "bank", "label_epsilon": 2.0, "private_model": True},
    },
    "outer, told labels": {
        "data": {"alignment": "outer", "validation_share": 0.2},
        "folding": True,
        "privacy": {"labels": "bank", "label_epsilon": 2.0},
    },
    "outer, budget": AUTO | {"data": {"alignment": "outer"}, "rounds": 12, "batch_size": 16, "budget": 25_000},
    "embedded categories": {"data": {"prepare": {"categories": "embedding", "rare": 0.0}}},
    "aligned": {"data": {"alignment": "aligned", "validation_share": 0.2}},
    "aligned, by groups": {"data": {"alignment": "aligned", "split_groups": "age"}},
    "aligned, stratified": {"data": {"alignment": "aligned", "stratify": True}},
}


@pytest.mark.parametrize("case", cases(NAMED))
def test_named_data(case: str, tmp_path: Path) -> None:
    config = settings(**NAMED[case])
    expected = in_process(config)
    assert len(expected.history) == config.rounds
    same(Loop(config, tmp_path / "loop").run(), expected, setup=True)
    # In another order, messages of one round meet the server before those of another party's round before.
    same(Loop(config, tmp_path / "other order", random.Random(1)).run(), expected, setup=True)


@pytest.mark.parametrize(
    "case",
    [
        "lattice",
        "topk",
        "algorithm 2, top-k, adam",
        "batch norm and dropout",
        "feedback",
        "auto",
        "auto, budget",
        "cached rows, auto",
        "absence",
        "reconstruction penalty",
        *cases(PRIVATE),
    ],
)
def test_named_data_by_grpc(case: str, tmp_path: Path) -> None:
    config = settings(**NAMED[case])
    with threads(config, tmp_path) as federation:
        federation.start_all()
        found, expected = federation.outcome(), in_process(config)
        same(found, expected, setup=not config.privacy.keyed)
        if config.privacy.keyed:
            only_certificates_more(federation, found, expected)


@pytest.mark.parametrize(
    ("case", "roles"),
    [
        ("auto", {"server", "hospital", "bank", "insurer"}),
        ("auto, attention", {"hospital", "bank"}),  # nothing is folded: the server relays what it gets
        ("auto, algorithm 2", set()),  # parties do not know the loss
        ("feedback", set()),
    ],
)
def test_evaluated_rounds_have_the_certificates_of_those_who_follow_the_loss(case: str, roles: set[str]) -> None:
    """That the other runtimes have them, too, follows from the tests above: they compare every line."""
    for line in in_process(settings(**NAMED[case])).history:
        assert set(line.get("certificate", {})) == (roles if "train" in line else set())
        for one in line.get("certificate", {}).values():
            assert -1 <= one["cosine"] <= 1
            assert one["ratio"] >= 0
            assert 0 < one["ease"] <= 1


def only_certificates_more(federation: Threads, found: Outcome, expected: Outcome) -> None:
    """With TLS keys are certified: each party sends its certificate and a signature, and gets those of all."""
    certified = {name: len(json.dumps(federation.identity(name).certificate.decode())) - 2 for name in federation.names}
    for name, sent in found.setup.items():
        more = sent - expected.setup[name] - certified[name] - sum(certified.values())
        signatures = 1 + len(certified)
        more -= 2 * 2  # two frames have become long, with a checksum of four bytes
        assert 2 * 68 * signatures - 4 <= more <= 2 * 72 * signatures  # ECDSA's are of 68 to 72 bytes, nearly always


def own_tables(folder: Path, case: str):  # type: ignore[no-untyped-def]
    write_tables(folder, unlabelled=(3, 40, 41), aligned=case.startswith("aligned"))
    return table_settings(folder, **TABLES[case])


@pytest.mark.parametrize("case", cases(TABLES))
def test_own_tables(case: str, tmp_path: Path) -> None:
    config = own_tables(tmp_path, case)
    expected = in_process(config)
    same(Loop(config, tmp_path / "loop").run(), expected, setup=True)
    same(Loop(config, tmp_path / "other order", random.Random(2)).run(), expected, setup=True)


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("float64", 8)])
def test_a_quantity_travels_as_the_run_computes_with_it(precision: str, size: int, tmp_path: Path) -> None:
    """The bits of training are those of one process, which never sends a label; so are the bytes that it counts."""
    write_tables(tmp_path, aligned=True)
    party = table_settings(tmp_path).model_dump(exclude_none=True, exclude_defaults=True)["party"]
    party["bank"]["label"] = "income"
    config = table_settings(tmp_path, {"alignment": "aligned"}, party=party, precision=precision)
    loop, up = Loop(config, tmp_path / "loop"), list[bytes]()
    receive = loop.server.role.receive

    def spy(m: int, frame: bytes) -> Any:
        up.append(frame)
        return receive(m, frame)

    loop.server.role.receive = spy  # type: ignore[method-assign]
    same(loop.run(), in_process(config), setup=True)
    (targets,) = [frame for frame in up if kind_of(frame) == 8]
    assert 90 * size < len(targets) < 90 * size + 40


@pytest.mark.parametrize("case", ["private, stratified", "private, budget", "aligned"])
def test_own_tables_by_grpc(case: str, tmp_path: Path) -> None:
    config = own_tables(tmp_path, case)
    with threads(config, tmp_path) as federation:
        federation.start_all()
        found, expected = federation.outcome(), in_process(config)
        same(found, expected)
        only_certificates_more(federation, found, expected)


def test_the_command_that_starts_all_roles(tmp_path: Path) -> None:
    """Real processes: each opens the table of its own section only; a long way costs time and changes no bit."""
    config = own_tables(tmp_path, "private, auto")
    summary = train_grpc(write_config(tmp_path / "fed.toml", config), [], tmp_path / "run", round_trip_ms=50)
    expected = in_process(config)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert statistics.median(json.loads(line)["seconds"] for line in lines) >= 0.05
    models = of_parties(tmp_path / "run" / "parameters")
    same(Outcome.recorded(models, summary, written(tmp_path / "run" / "metrics.jsonl")), expected)


def test_a_different_seed_is_a_different_run() -> None:
    """What the other tests compare can differ."""
    one, other = in_process(settings()), in_process(settings(seed=4))
    assert one.models["server"] != other.models["server"]
    with pytest.raises(AssertionError):
        same(one, other)


@pytest.mark.parametrize("part", [field.name for field in dataclasses.fields(Outcome) if field.name != "parameters"])
def test_the_comparison_sees_every_part(part: str) -> None:
    data = {"name": "wine", "parties": 2, "split_seed": 4}
    one, other = in_process(settings()), in_process(settings(seed=4, compressor="identity", data=data))
    with pytest.raises(AssertionError):
        same(dataclasses.replace(one, **{part: getattr(other, part)}), one, setup=True)


def test_parties_hear_no_labels_in_algorithm_2(tmp_path: Path) -> None:
    """And in no case the labels of held-out rows."""
    for algorithm, expected in ((1, True), (2, False)):
        folder = tmp_path / str(algorithm)
        folder.mkdir()
        write_tables(folder)
        loop = Loop(table_settings(folder, algorithm=algorithm, local_iterations=1), folder / "loop")
        heard: list[bytes] = []
        receive = loop.parties["shop"].role.receive

        def spy(frame: bytes, heard: list[bytes] = heard, receive: Any = receive) -> Any:
            heard.append(frame)
            return receive(frame)

        loop.parties["shop"].role.receive = spy  # type: ignore[method-assign]
        loop.run()
        (targets,) = [frame for frame in heard if kind_of(frame) == 8]
        rows, (_, told) = loop.server.role.facts["rows"], decode_control(targets)
        assert isinstance(told, Targets)
        assert (len(told.parts), len(told.labels)) == (sum(rows), 8 * rows[0] if expected else 0)
        assert all(decode(frame) for frame in heard if kind_of(frame) < 5)
