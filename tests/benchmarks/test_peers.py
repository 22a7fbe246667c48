"""Peers are measured alike: one proxy that counts right, one settings file for all, tables from lines alone."""

import ast
import importlib
import json
import re
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cvfl.config.files import load_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "peers"
MODULES = ("inputs", "place", "proxy", "table", "written", "run", "shape", "algorithms")
PEERS = ("joined", "cvfl", "flare", "xgboost", "fate", "fedtree", "flower")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the folder, forgotten again afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    names = (*MODULES, *(f"{name}_peer" for name in PEERS))
    before = {name: sys.modules.pop(name, None) for name in names}
    yield {name: importlib.import_module(name) for name in names}
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def inputs(peers: dict[str, ModuleType], tmp_path: Path) -> Any:
    return peers["inputs"].Inputs("credit", tmp_path, ("guest", "host"), 22_000, 8_000)


def echo(listener: socket.socket, answer: bytes) -> None:
    near, _ = listener.accept()
    with near:
        got = 0
        while got < 1000:
            got += len(near.recv(100))
        near.sendall(answer)


def exchanged(proxy: Any, answer: bytes) -> float:
    began, got = time.perf_counter(), b""
    with socket.create_connection(("127.0.0.1", proxy.port)) as near:
        near.sendall(bytes(1000))
        while len(got) < len(answer):
            got += near.recv(1 << 16)
    assert got == answer
    return time.perf_counter() - began


@pytest.mark.parametrize(("rate", "delay", "least"), [(float("inf"), 0.0, 0.0), (1e6, 0.05, 0.1 + 0.101)])
def test_the_proxy_counts_both_ways_and_is_as_slow_as_its_link(
    peers: dict[str, ModuleType], rate: float, delay: float, least: float
) -> None:
    answer = bytes(range(256)) * 400
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener, answer), daemon=True).start()
        with peers["proxy"].Proxy(listener.getsockname()[1], rate, delay) as proxy:
            seconds = exchanged(proxy, answer)
            assert (proxy.up, proxy.down, proxy.total) == (1000, len(answer), 1000 + len(answer))
            assert seconds >= least


def test_all_systems_read_one_settings_file(peers: dict[str, ModuleType], inputs: Any, tmp_path: Path) -> None:
    """What cvfl's file says and what the others are told are the same values, and no program has its own."""
    settings = tomllib.loads((FOLDER / "settings.toml").read_text(encoding="utf-8"))
    told = peers["flare_peer"].told(inputs, "Collab API, float32", tmp_path)
    shared = ("seed", "epochs", "batch_size", "optimizer", "step_size", "hidden", "width")
    assert {key: told[key] for key in shared} == {key: settings[key] for key in shared}
    cvfl = peers["cvfl_peer"]
    for variant, values in ((name, told) for name, told in cvfl.VARIANTS.items() if name != cvfl.INIT):
        text = cvfl.configuration(inputs, **values)
        file = tmp_path / "run.toml"
        file.write_text(text, encoding="utf-8")
        config = load_config(file)
        times = 10 if values.get("tenth") else 1  # of the rounds, when each has ten steps
        assert (config.seed, config.batch_size) == (settings["seed"], settings["batch_size"]), variant
        assert (config.epochs or 0) * times == settings["epochs"]
        assert (config.optimizer.name, config.step_size.eta) == (settings["optimizer"], settings["step_size"])
        assert (config.party_model.hidden, config.party_model.width) == ((settings["hidden"],), settings["width"])
        assert (config.evaluate_every or 0) * times == inputs.rounds == 860


@pytest.mark.parametrize("app", sorted(FOLDER.glob("*_app.py")), ids=lambda path: path.stem)
def test_programs_of_peers_have_no_settings_of_their_own(app: Path) -> None:
    text = app.read_text(encoding="utf-8")
    assert "told[" in text
    numbers = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert not numbers & {32, 16, 256, 10, 0.002}


def test_tasks_divide_all_columns(peers: dict[str, ModuleType]) -> None:
    settings = peers["inputs"].SETTINGS
    assert [len(columns) for columns in settings["credit"]["parties"].values()] == [13, 10]
    assert len(settings["adult"]["parties"]) == 4
    for task in peers["inputs"].TASKS:
        columns = [name for some in settings[task]["parties"].values() for name in some]
        assert len(columns) == len(set(columns))
        assert set(settings[task]["categories"]) <= set(columns)


def test_lines_are_those_with_code(peers: dict[str, ModuleType], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        '"""Words.\n\nMore."""\n\n# why\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Words."""\n    return x\n'
    )
    assert peers["written"].code_lines(file) == 5


def line(system: str, variant: str, task: str = "credit", **more: Any) -> dict[str, Any]:
    about = {"versions": {"cvfl": "1", system: "2"}, "python": "3.11", "machine": {}, "time": 0, "lines": 7}
    about["machine"] = {"cores": 2, "kind": "x86_64", "load_before": 1.5}
    return about | {"system": system, "variant": variant, "task": task} | more


def test_the_table_is_made_of_lines(peers: dict[str, ModuleType]) -> None:
    trained = {"roc_auc": 0.7812, "seconds": 10.0, "seconds_in_all": 20.0, "bytes": 57_968_438, "tls": "TLS"}
    computed = {"seconds": 7845.9, "bytes": 99e6, "computed": "both", "rounds": 860, "rounds_measured": 8}
    shape = {"rows": 9, "batch_size": 3, "rounds_measured": 2, "seconds_a_round": 0.25, "quartiles": [0.2, 0.25, 0.3]}
    shape |= {
        "bytes_a_round": 1500.0,
        "rounds_in_epoch": 782,
        "epoch_seconds": 195.5,
        "epoch_bytes": 1.2e6,
        "roc_auc": 0.9,
    }
    run = {"spec": "identity", "Q": 1, "target": 0.95, "final": 0.97, "bytes_to_target": 2_000_000}
    run |= {"training_to_target": 500_000}
    lines = [
        line("flare", "Collab API", **trained),
        line("cvfl", "none", **trained),
        line("cvfl", "none", **(trained | {"seconds": 12.0, "time": 1})),
        line("flower", "apps", **computed),
        line("fate", "HeteroNN", failed="not installed: no such version"),
        line("shape", "none, Q = 1", "made", **shape),
        *(line("algorithms", "none, Q = 1", task, **run) for task in ("digits", "cifar10")),
        line("algorithms", "none, Q = 1", "digits", **(run | {"time": 1, "bytes_to_target": None})),
    ]
    page = peers["table"].published(lines)
    rows = [row for row in page.splitlines() if row.startswith(("| cvfl", "| NVIDIA"))]
    assert rows[:2] == [
        "| cvfl: none | 0.7812 | 11.0 (20) | 57.97 | 7 | TLS | 1.5 |",
        "| NVIDIA FLARE: Collab API | 0.7812 | 10.0 (20) | 57.97 | 7 | TLS | 1.5 |",
    ]
    assert "| Flower: apps | not run to its end | 7,845.9* | 99.00* | 7 | – | 1.5 |" in page
    assert "| FATE HeteroNN: HeteroNN, credit | not installed: no such version |" in page
    assert "| none, Q = 1 | 2 | 0.900 | 0.250 (0.200 to 0.300) | 1.5 | 196 | 1.2 |" in page
    assert "| none | `identity` | 1 | 2.00, 0.50 (1 of 2) | 0.970 | 2.00, 0.50 | 0.970 |" in page


def test_the_page_is_that_of_the_recorded_lines(peers: dict[str, ModuleType]) -> None:
    folder = ROOT / "docs" / "results" / "peers"
    lines = [json.loads(text) for text in (folder / "peers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (folder / "README.md").read_text(encoding="utf-8") == peers["table"].published(lines)
    keys = [peers["run"].key(one) for one in lines]
    assert len(keys) == len(set(keys))


def test_versions_are_pinned(peers: dict[str, ModuleType]) -> None:
    for name in PEERS:
        for requirement in peers[f"{name}_peer"].REQUIREMENTS:
            assert re.fullmatch(r"[\w-]+==[\d.]+", requirement)
