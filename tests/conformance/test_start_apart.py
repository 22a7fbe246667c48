"""Laws 2, 3 and 12 of runs that start from an earlier one where roles are apart, each with its own bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.cases import SERVER, settings, write_config
from conformance.loop import Loop
from conformance.outcome import Outcome, same
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, CvflError, DataError, RemoteProtocolError
from cvfl.federation.nvflare_simulator import train_nvflare
from cvfl.federation.processes import train_grpc
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.federation.start import Start
from cvfl.federation.train import train
from cvfl.rng import stream
from cvfl.runs.directory import PARAMETERS
from cvfl.serving.bundles import party_start, server_start, start_from
from serving import tables

pytestmark = pytest.mark.usefixtures("tidy")
NETWORK = {"network": {"checkpoint_every": 2}}
SHORT: dict[str, Any] = {"rounds": 3, "epochs": None, "network": {"checkpoint_every": 1}}
SECURE: dict[str, Any] = {
    "privacy": {"aggregation": "secure"},
    "server_model": {"name": "sum"},
    "compressor": "scalar:bits=8,low=-1,high=1",
}
MODES: dict[str, dict[str, Any]] = {
    "identity": {},
    "auto": {"compressor": "auto", "server_compressor": "auto", "first_layer": "parties"},
    "budget": {"compressor": "auto", "server_compressor": "auto", "first_layer": "server", "budget": "60 kB"},
    "folding": {"folding": True, "compressor": "lattice:bits=3", "server_compressor": "scalar:bits=8"},
    "attention": {"server_model": {"name": "attention", "hidden": [4]}, "compressor": "feedback(scalar:bits=4)"},
    "labels at a party": {"algorithm": 2, "privacy": {"labels": "bank"}},
    "secure": SECURE,
    "clip": {"privacy": {"clip": 0.5}},
}


def month(folder: Path, first: int, kind: str = "binary", clinic: bool = False, **changes: Any) -> RunConfig:
    """A month of rows, people first, first + 1, ..., perhaps with a third party; all roles know the order of rows."""
    frames = tables.frames(kind, first=first, rows=120)
    if clinic:
        ids = [f"p{first + n}" for n in range(120)]
        frames |= {"clinic": pa.table({"person": ids, "age": stream(first, "clinic").uniform(120) * 80})}
    paths = tables.write(frames, folder / f"{kind}-{first}")
    (folder / "row_secret").write_bytes(b"what the parties agreed on")
    party = dict(tables.config(paths).model_dump(mode="json", exclude_defaults=True)["party"])
    party |= {"clinic": {"table": str(paths["clinic"])}} if clinic else {}
    party["bank"] |= {"row_secret": str(folder / "row_secret")}
    return tables.config(paths, party=party, **{"rounds": 5, "epochs": None} | NETWORK | changes)


def earlier(config: RunConfig, run: Path, role: str) -> Start:
    """What a role starts from: its own bundle, or the number of the run if it was not there."""
    if role == SERVER:
        return server_start(run, config)
    if (run / PARAMETERS / f"{role}.model.json").exists():
        return party_start(run, role, config)
    return Start.joining(start_from(run).run)


def apart(config: RunConfig, folder: Path, run: Path) -> Loop:
    return Loop(config, folder, earlier=partial(earlier, config, run))


def here(config: RunConfig, run: Path) -> Outcome:
    return Outcome.of(train(config, start=start_from(run), workers=1))


@pytest.fixture(scope="module")
def april(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a month that was trained on in one process."""
    folder = tmp_path_factory.mktemp("april")
    train(month(folder, 0), out=folder / "april", workers=1)
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_ends_in_the_same_bits(tmp_path: Path, mode: str) -> None:
    """From a run in one process, and from what the roles left that were apart themselves."""
    first = month(tmp_path, 0, **MODES[mode])
    train(first, out=tmp_path / "april", workers=1)
    config = month(tmp_path, 1000, **MODES[mode])
    expected = here(config, tmp_path / "april")
    loop = apart(config, tmp_path / "warm", tmp_path / "april")
    same(loop.run(), expected, setup=True)
    assert expected.models != Outcome.of(train(config, workers=1)).models
    summary = json.loads((tmp_path / "warm" / "run" / "summary.json").read_text())
    assert summary["started_from"]["run"] == start_from(tmp_path / "april").run
    # Now each role with what it left, and nothing else.
    before = Loop(first, tmp_path / "cold")
    before.run()

    def own(role: str) -> Start:
        place = tmp_path / "cold" / ("run" if role == SERVER else "models")
        return server_start(place, config) if role == SERVER else party_start(place, role, config)

    again = Loop(config, tmp_path / "again", earlier=own).run()
    same(again, expected, setup=True)


@pytest.mark.parametrize("kind", ["several", "quantity"])
def test_labels_mean_what_they_did(tmp_path: Path, kind: str) -> None:
    """The party with the label has its classes, or its units, from its own bundle."""
    train(month(tmp_path, 0, kind), out=tmp_path / "april", workers=1)
    config = month(tmp_path, 1000, kind)
    loop = apart(config, tmp_path / "warm", tmp_path / "april")
    same(loop.run(), here(config, tmp_path / "april"), setup=True)
    was, now = start_from(tmp_path / "april"), party_start(tmp_path / "warm" / "models", "bank", config).parties["bank"]
    assert now.table is not None
    assert was.server is not None
    assert now.table == was.parties["bank"].table
    assert (now.table.units == was.server.units) == (kind == "quantity")


def test_a_data_set_by_name_goes_on(tmp_path: Path) -> None:
    config = settings()
    train(config, out=tmp_path / "first", workers=1)
    second = settings(seed=5)
    same(
        apart(second, tmp_path / "warm", tmp_path / "first").run(),
        here(second, tmp_path / "first"),
        setup=True,
    )


@pytest.mark.parametrize(
    "mode",
    [
        {"server_model": {"name": "mlp", "hidden": [6]}},
        {"first_layer": "parties"},
        {"algorithm": 2, "privacy": {"labels": "bank"}},
    ],
    ids=["mlp", "first layer", "labels at a party"],
)
def test_a_party_joins(tmp_path: Path, mode: dict[str, Any]) -> None:
    train(month(tmp_path, 0, **mode), out=tmp_path / "april", workers=1)
    config = month(tmp_path, 1000, clinic=True, **mode)
    loop = apart(config, tmp_path / "warm", tmp_path / "april")
    same(loop.run(), here(config, tmp_path / "april"), setup=True)
    assert loop.parties["clinic"].role.offer.new
    assert not loop.parties["shop"].role.offer.new


FAULTS: dict[str, Callable[[Loop], None]] = {
    "server": lambda loop: loop.kill(SERVER),
    "bank": lambda loop: loop.kill("bank"),
    "everyone": Loop.kill_all,
}


@pytest.mark.parametrize("who", ["server", "bank", pytest.param("everyone", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("mode", "every"),
    [
        ("auto", 7),
        pytest.param("auto", 1, marks=pytest.mark.slow),
        pytest.param("labels at a party", 1, marks=pytest.mark.slow),
    ],
)
def test_a_fault_at_many_frames(tmp_path: Path, who: str, mode: str, every: int) -> None:
    """Law 3: a role that comes back starts from the same bundle once more, or from a checkpoint; the bits are these."""
    train(month(tmp_path, 0, **MODES[mode] | SHORT), out=tmp_path / "april", workers=1)
    config = month(tmp_path, 1000, **MODES[mode] | SHORT)
    expected = here(config, tmp_path / "april")
    undisturbed = apart(config, tmp_path / "undisturbed", tmp_path / "april")
    same(undisturbed.run(), expected, setup=True)
    for n in range(list(FAULTS).index(who) if every > 1 else 0, undisturbed.delivered + 1, every):
        same(apart(config, tmp_path / str(n), tmp_path / "april").run({n: FAULTS[who]}), expected)


def test_another_run_or_none_is_refused_by_name(april: Path, tmp_path: Path) -> None:
    """Law 12: the run that all start from is a term."""
    config = month(april, 1000)
    train(month(tmp_path, 500), out=tmp_path / "march", workers=1)
    one, other = server_start(april / "april", config).run, start_from(tmp_path / "march").run
    with ExitStack() as stack:
        server = ServerRun(config, "test", tmp_path / "server", start=server_start(april / "april", config))
        cold = ServerRun(config, "test", tmp_path / "cold", start=None)

        def hello(name: str, start: Start | None) -> bytes:
            run = PartyRun(config, name, tmp_path / f"{name}-{start and start.run}", stack, start=start)
            run.close()
            return run.role.hello()

        cases = [
            (server, party_start(tmp_path / "march", "bank", config), f"from differs: bank has '{other}', .*'{one}'"),
            (server, None, f"from differs: bank has None, the server '{one}'"),
            (cold, party_start(april / "april", "bank", config), f"from differs: bank has '{one}', the server None"),
        ]
        for role, start, line in cases:
            with pytest.raises(RemoteProtocolError, match=line):
                role.role.join(hello("bank", start), "bank")
        with pytest.raises(
            RemoteProtocolError, match=f"shop is in run {one}, which all start from; start it with --fr"
        ):
            server.role.join(hello("shop", Start.joining(one)), "shop")
        server.close()
        cold.close()


def test_a_party_that_is_new_says_so(april: Path, tmp_path: Path) -> None:
    config = month(april, 1000, clinic=True)
    start = server_start(april / "april", config)
    with ExitStack() as stack:
        server = ServerRun(config, "test", tmp_path / "server", start=start)
        run = PartyRun(config, "clinic", tmp_path / "clinic", stack, start=Start.joining(start.run))
        run.role.offer = run.role.offer.model_copy(update={"new": False})
        with pytest.raises(RemoteProtocolError, match=r"clinic is not in run .* start it with --joins"):
            server.role.join(run.role.hello(), "clinic")
        run.close()
        server.close()


def test_each_role_refuses_what_it_can_see(april: Path, tmp_path: Path) -> None:
    """Before anything is sent: other models, other columns, a party that left, labels that moved."""
    run = april / "april"
    frames = tables.frames(first=1000, rows=120)
    more = frames["shop"].append_column("age", frames["shop"]["spent"])
    paths = tables.write(frames | {"shop": more}, tmp_path / "in")
    moved = {"bank": {"table": str(paths["bank"]), "exclude": ["target"]},
             "shop": {"table": str(paths["shop"]), "label": "age"}}  # fmt: skip
    alone = {"bank": {"table": str(paths["bank"]), "label": "target"}}
    cases: list[tuple[str, RunConfig, type[CvflError], str]] = [
        ("bank", month(april, 1000, party_model={"width": 5, "hidden": [8]}), ConfigError, "bank: width of its model"),
        ("server", month(april, 1000, server_model={"name": "mlp", "hidden": [3]}), ConfigError, "server: name of its"),
        ("server", month(april, 1000, precision="float64"), ConfigError, "precision: 'float64' here"),
        ("shop", tables.config(paths), DataError, "not in .*: age; add to exclude what is new"),
        ("shop", tables.config(paths, party=moved), DataError, "it was not with shop; leave it where it was"),
        ("bank", tables.config(paths, party=alone), ConfigError, "party shop of .* is missing"),
        ("server", tables.config(paths, party=alone), ConfigError, "party shop of .* is missing"),
        ("bank", month(april, 1000, "quantity"), DataError, "is a quantity, in .* it was classes"),
        ("bank", month(april, 1000, "several"), DataError, "has the classes high, low, middle, in .* no, yes"),
        ("bank", month(april, 1000, algorithm=2, privacy={"labels": "bank"}), DataError, "the server model is missing"),
    ]
    alone_at_bank = tmp_path / "bank's own"
    alone_at_bank.mkdir()
    for path in (run / PARAMETERS).glob("bank.*"):
        (alone_at_bank / path.name).write_bytes(path.read_bytes())
    with ExitStack() as stack:

        def begin(role: str, config: RunConfig, state: Path) -> None:
            if role == SERVER:
                ServerRun(config, "test", state, start=server_start(run, config))
            else:
                folder = alone_at_bank if role == "bank" else run
                PartyRun(config, role, state, stack, start=party_start(folder, role, config))

        for n, (role, config, error, line) in enumerate(cases):
            with pytest.raises(error, match=line):
                begin(role, config, tmp_path / str(n))


def test_the_server_refuses_embeddings_of_another_width(april: Path, tmp_path: Path) -> None:
    """A party may claim what it likes of its own bundle; the server model has columns for what was there."""
    config = month(april, 1000)
    loop = apart(config, tmp_path, april / "april")
    shop = loop.parties["shop"].role
    shop.offer = shop.offer.model_copy(update={"width": 5})
    loop.cut("shop")
    with pytest.raises(ConfigError, match=r"shop: width of its embedding: 5 here, 4 in .*april; set it back"):
        loop.run()


@pytest.mark.slow
@pytest.mark.parametrize("clinic", [False, True], ids=["same parties", "one joins"])
def test_processes_end_in_the_same_bits(april: Path, tmp_path: Path, clinic: bool) -> None:
    config, start = month(april, 1000, clinic=clinic), start_from(april / "april")
    expected = train(config, out=tmp_path / "here", start=start, workers=1).summary
    found = train_grpc(write_config(tmp_path / "may.toml", config), [], tmp_path / "apart", start_from=start)
    assert found["parameters"] == expected["parameters"]
    assert found["started_from"] == expected["started_from"]
    for part in ("up", "down", "evaluation", "alignment"):
        assert found["bytes"][part] == expected["bytes"][part]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nvflare") is None, reason="needs: pip install 'cvfl[nvflare]'")
@pytest.mark.parametrize("clinic", [False, True], ids=["same parties", "one joins"])
def test_the_simulator_ends_in_the_same_bits(april: Path, tmp_path: Path, clinic: bool) -> None:
    config, start = month(april, 1000, clinic=clinic), start_from(april / "april")
    expected = train(config, out=tmp_path / "here", start=start, workers=1).summary
    found = train_nvflare(config, tmp_path / "apart", "may", start=start).summary
    for key in ("parameters", "bytes", "metrics"):
        assert found[key] == expected[key]
    assert found["started_from"]["run"] == start.run
