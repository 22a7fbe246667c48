"""Predictions of roles that are apart: scores as in one process, at the role that may see them, and nowhere else."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.errors import ConfigError, DataError, RemoteProtocolError
from cvfl.federation.agreement.handshake import Phase
from cvfl.federation.train import train
from cvfl.runs.actions import NAME, read_actions
from cvfl.runs.bundle import PRIVATE
from cvfl.runs.directory import PARAMETERS
from cvfl.scratch import Scratch
from cvfl.serving.apart import PartyPrediction, ServerPrediction
from cvfl.serving.bundles import read_bundles, start_from
from cvfl.serving.newrows import NewLabels
from cvfl.serving.predict import Predictor
from cvfl.serving.rows import PARTIES
from cvfl.wire import Embedding, Prediction, encode
from cvfl.wire.purpose import Purpose, purpose_of
from cvfl.wire.targets import Targets
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
SECURE = {"aggregation": "secure"}
OWN = {"labels": "bank", "label_epsilon": 3.0, "private_model": True}


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


class Roles:
    """All roles of a prediction in one thread, frames in the order in which they are sent."""

    def __init__(self, config, run, stack, without=()):
        self.state = state = stack.enter_context(Scratch()).path
        self.server = ServerPrediction(config, run, state / "server", stack, without=without)
        self.parties = {
            name: PartyPrediction(config, name, run / PARAMETERS, state / name, stack, without=without)
            for name in config.party
            if name not in without
        }
        self.frames: list[tuple[str, bytes]] = []
        self._up: deque[tuple[str, bytes]] = deque()
        self._m: dict[str, int] = {}

    def join(self, name: str) -> None:
        m, replies = self.server.end.join(self.parties[name].end.hello(), name)
        self._m[name] = m
        self.down(replies)

    def down(self, replies) -> None:
        names = list(self.parties)
        for m, frame in replies:
            self.frames.append((f"to {names[m - 1]}", frame))
            for answer in self.parties[names[m - 1]].end.receive(frame):
                self._up.append((names[m - 1], answer))

    def step(self) -> bool:
        """Carry one frame up; whether there was one."""
        if not self._up:
            self.down(self.server.end.work())
            return bool(self._up)
        name, frame = self._up.popleft()
        self.frames.append((f"from {name}", frame))
        self.down(self.server.end.receive(self._m[name], frame))
        return True

    def run(self) -> None:
        for name in self.parties:
            self.join(name)
        while self.step():
            pass
        assert self.server.role.done
        assert all(party.role.done for party in self.parties.values())

    def cut(self, name: str) -> None:
        """The connection of a party breaks, with what was on its way; it connects again."""
        self._up = deque(entry for entry in self._up if entry[0] != name)
        self.server.end.leave(self._m[name])
        self.join(name)

    def scores(self) -> pa.Table:
        return pa.Table.from_batches(self.parties["bank"].rows.batches())


def prepared(tmp_path, kind="binary", lacks=0, **changes):
    """A trained run, the configuration with tables of new rows, and the scores that one process computes of them.

    The shop lacks so many rows of training.
    """
    old = tables.frames(kind)
    paths = tables.write(old | {"shop": old["shop"].slice(lacks)}, tmp_path / "in")
    run = train(tables.config(paths, **changes), out=tmp_path / "run").path
    found = tables.frames(kind, first=1000, rows=70)
    new = {"bank": found["bank"].drop_columns("target").slice(4), "shop": found["shop"].slice(3)}
    paths = tables.write(new, tmp_path / "new")
    predictor = Predictor(read_bundles([run]))
    expected = pa.Table.from_batches(predictor.of_tables(paths))
    return run, tables.config(paths, **changes), expected, predictor


@pytest.mark.parametrize("kind", ["binary", "several", "quantity"])
def test_scores_are_those_of_one_process(kind, tmp_path, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, expected, _ = prepared(tmp_path, kind)
    roles = Roles(config, run, stack)
    roles.run()
    found = roles.scores()
    assert found.column_names == expected.column_names
    assert found.equals(expected.combine_chunks())  # the classes' names come with the party that had the label
    assert len(found) == 63


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"privacy": {"labels": "bank"}}, 0.0),
        ({"privacy": SECURE, "compressor": "auto", "server_model": {"name": "sum"}}, 1e-3),
        ({"privacy": SECURE | {"labels": "bank"}, "compressor": "auto", "server_model": {"name": "sum"}}, 1e-3),
        ({"privacy": OWN}, 0.0),
        ({"privacy": SECURE | OWN, "compressor": "auto", "server_model": {"name": "sum"}}, 1e-3),
        ({"compressor": "auto", "server_compressor": "auto"}, 0.02),
        ({"privacy": {"clip": 0.5}, "optimizer": {"name": "adam", "average": 0.9}}, 0.0),
    ],
    ids=["private labels", "secure", "both", "private model", "private model, secure", "auto", "clip"],
)
def test_every_mode_predicts(changes, tolerance, tmp_path, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, expected, _ = prepared(tmp_path, **changes)
    roles = Roles(config, run, stack)
    roles.run()
    found = roles.scores()
    assert found["person"].to_pylist() == expected["person"].to_pylist()
    assert roles.parties["shop"].rows.notes == ["left out, since not every party holds them: 4 of 67 at shop"]
    difference = torch.tensor(found["score"].to_pylist()) - torch.tensor(expected["score"].to_pylist())
    assert float(difference.abs().max()) <= tolerance


EXACT = {"compressor": "auto", "server_compressor": "auto", "evaluation_compressor": "identity"}
OUTER = {"id": "person", "test_share": 0.2, "alignment": "outer"}
PARTLY = {
    "absence": {"absence": {"rate": 0.3}} | EXACT,
    "absence, private labels": {"absence": {"rate": 0.3}, "privacy": {"labels": "bank"}},
    "outer": {"data": OUTER, "privacy": {"labels": "bank"}},
    "outer, shared labels": {"data": OUTER} | EXACT,
}


@pytest.mark.parametrize("mode", PARTLY)
def test_rows_of_the_label_holder_are_scored_with_whoever_holds_them(mode, tmp_path, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 2)  # the shop holds none of the last batch
    run, config, expected, _ = prepared(tmp_path, lacks=100, **PARTLY[mode])
    roles = Roles(config, run, stack)
    roles.run()
    assert ("shop" in expected[PARTIES].to_pylist()) == mode.startswith("absence")
    expected = expected.filter(pc.match_substring(expected[PARTIES], "bank"))
    assert set(expected[PARTIES].to_pylist()) == {"bank", "bank, shop"}
    found = roles.scores()
    assert found.column_names == expected.column_names
    assert found.equals(expected.combine_chunks())
    assert len(found) == 66
    note = "left out, since the party with the label does not hold them: 4 of 67 at shop"
    assert roles.parties["shop"].rows.notes == [note]
    sizes = {
        len(frame) for name, frame in roles.frames if name == "from shop" and purpose_of(frame) is Purpose.PREDICTION
    }
    assert len(sizes) > 1  # rows that it does not hold are not sent


@pytest.mark.parametrize("mode", ["outer", "outer, shared labels"])
def test_rows_without_a_party_that_all_of_training_had_have_no_score(mode, tmp_path, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, expected, _ = prepared(tmp_path, **PARTLY[mode])
    roles = Roles(config, run, stack)
    roles.run()
    found = roles.scores()
    assert set(found[PARTIES].to_pylist()) == {"bank, shop"}
    assert found.equals(expected.combine_chunks())
    who = "a party that does not hold them"
    note = f"left out, since this model needs {who}: 3 of 66 rows; train with absence.rate to do without"
    assert roles.parties["bank"].rows.notes == [note]


def test_a_party_that_all_of_training_had_is_not_left_out(tmp_path, stack):
    run, config, _, _ = prepared(tmp_path, **PARTLY["outer, shared labels"])
    with pytest.raises(ConfigError, match="--without: this model needs shop, whom every row of its training had"):
        ServerPrediction(config, run, tmp_path / "server", stack, without=["shop"])


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("absent"), **PARTLY["absence"])


def test_without_a_party_the_others_predict(absent, stack):
    run, config, _, predictor = absent
    roles = Roles(config, run, stack, without=("shop",))
    roles.run()
    expected = pa.Table.from_batches(predictor.of_tables({"bank": config.party["bank"].table}))
    assert set(expected[PARTIES].to_pylist()) == {"bank"}
    assert roles.scores().equals(expected.combine_chunks())


@pytest.mark.parametrize(
    ("changes", "name", "without", "line"),
    [
        ({}, "bank", ["shop"], "--without: this model needs every party: one that was trained with"),
        ({"absence": {"rate": 0.3}} | EXACT, "bank", ["shp"], "--without: there is no party 'shp'; did you mean"),
        ({"absence": {"rate": 0.3}} | EXACT, "bank", ["bank"], "--without: bank is left out, and would have nothing"),
        (PARTLY["absence, private labels"], "bank", ["shop"], "--without: bank alone has all that it needs: take"),
    ],
)
def test_parties_that_cannot_be_left_out(changes, name, without, line, tmp_path, stack):
    config = tables.config(tables.write(tables.frames(), tmp_path), **changes)
    with pytest.raises(ConfigError, match=line):
        PartyPrediction(config, name, tmp_path, tmp_path / "state", stack, without=without)


def test_roles_that_leave_out_others_do_not_begin(absent, tmp_path, stack):
    run, config, _, _ = absent
    server = ServerPrediction(config, run, tmp_path / "server", stack, without=["shop"])
    party = PartyPrediction(config, "bank", run / PARAMETERS, tmp_path / "bank", stack)
    with pytest.raises(RemoteProtocolError, match="without"):
        server.role.join(party.role.hello(), "bank")


@pytest.mark.parametrize(
    "changes", [{"parts": b"\1"}, {"labels": bytes(8)}, {"units": (0.0, 1.0)}, {"present": ()}, {"sealed": True}]
)
def test_nothing_is_told_of_new_rows_but_who_holds_them(changes, absent, tmp_path, stack):
    run, config, _, _ = absent
    rows = ServerPrediction(config, run, tmp_path / "server", stack).role.rows
    targets = Targets(1, 0, 1, b"\0", b"", (), (b"\1",))
    rows.accept(targets)
    with pytest.raises(RemoteProtocolError, match=r"^bank: (targets|which rows)"):
        rows.accept(replace(targets, **changes))


def test_the_private_model_scores_and_the_next_month_starts_from_the_public_one(tmp_path, stack):
    """The holder has both; scores are by the one that was fitted to the true labels, which no other role is given."""
    run, config, expected, predictor = prepared(tmp_path, privacy=OWN)
    assert predictor.server.private
    public = read_bundles([run], private=False).server
    assert public is not None
    assert not public.private
    by_public = Predictor(
        replace(read_bundles([run]), server=public, folders=read_bundles([run], private=False).folders)
    )
    paths = {name: section.table for name, section in config.party.items()}
    assert pa.Table.from_batches(by_public.of_tables(paths))["score"].to_pylist() != expected["score"].to_pylist()
    assert start_from(run).server == public
    roles = Roles(config, run, stack)
    roles.run()
    assert not roles.parties["shop"].rows.scores
    assert isinstance(roles.server.role.rows, NewLabels)
    assert roles.server.role.rows.bundle is None  # it passes on
    shown = CliRunner().invoke(app, ["model", "show", str(run)])
    assert "fitted to true labels" in shown.output
    private = run / PARAMETERS / PRIVATE / "server.safetensors"
    private.write_bytes((run / PARAMETERS / "server.safetensors").read_bytes())
    with pytest.raises(DataError, match=r"private.server.safetensors: "):
        Predictor(read_bundles([run]))


def test_rows_that_were_taken_as_they_are_stay_so(tmp_path, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    frames = tables.frames()
    ordered = {"bank": frames["bank"], "shop": frames["shop"].take(list(range(tables.ROWS))[::-1])}
    without = {name: table.drop_columns("person") for name, table in ordered.items()}
    config = tables.config(tables.write(without, tmp_path), data={"alignment": "aligned", "test_share": 0.2})
    run = train(config, out=tmp_path / "run").path
    roles = Roles(config, run, stack)
    roles.run()
    paths = {name: section.table for name, section in config.party.items()}
    assert roles.scores().equals(
        pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(paths)).combine_chunks()
    )


def test_who_sees_what(once, tmp_path, stack, monkeypatch):
    """Scores go down to the party that had the label alone; where labels stay with it, nobody else can read a batch."""
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, _ = once
    roles = Roles(config, run, stack)
    roles.run()
    down = {where for where, frame in roles.frames if where.startswith("to") and _is(frame, Purpose.PREDICTION)}
    assert down == {"to bank"}
    assert not roles.parties["shop"].rows.scores
    run, config, _, _ = prepared(tmp_path, privacy={"labels": "bank"})
    roles = Roles(config, run, stack)
    roles.run()
    held = [frame for where, frame in roles.frames if _is(frame, Purpose.PREDICTION)]
    assert held
    assert all(frame[0] % 16 == 10 for frame in held)  # passed on, sealed
    assert not any(b"p10" in frame for _, frame in roles.frames)  # nor does any id travel


def _is(frame: bytes, purpose: Purpose) -> bool:
    return purpose_of(frame) is purpose


def test_bytes_are_counted_as_prediction(once, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, _ = once
    roles = Roles(config, run, stack)
    roles.run()
    sent = roles.server.role.meter.total()
    by = {purpose: sum(len(frame) for _, frame in roles.frames if _is(frame, purpose)) for purpose in Purpose}
    assert sent.prediction == by[Purpose.PREDICTION] > 0
    assert sent.alignment == by[Purpose.ALIGNMENT] > 0
    assert (sent.training, sent.evaluation) == (0, 0)
    assert sent.total == sent.prediction + sent.alignment + sent.setup


def test_what_roles_log_of_a_prediction(tmp_path, stack, monkeypatch):
    """A line a session, with the rows and all frames; both ends say the same, and nobody's rows are in it."""
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, expected, _ = prepared(tmp_path)
    roles = Roles(config, run, stack)
    roles.run()
    number = roles.parties["bank"].rows.bundle.run
    for recorder in (roles.server.recorder, *(party.recorder for party in roles.parties.values())):
        recorder.ended()
    logs = {role: list(read_actions(roles.state / role / NAME)) for role in ("server", *config.party)}
    for role, lines in logs.items():
        joined = ["joined"] * (2 if role == "server" else 1)
        assert [line["event"] for line in lines] == ["started", *joined, "handshake", "predicted", "ended"]
        assert (lines[0]["role"], lines[0]["use"], lines[0]["run"]) == (role, "predict", number)
        assert lines[-2]["rows"] == {number: len(expected)}
        assert (lines[-1]["run"], lines[-1]["rows"]) == (number, len(expected))
    assert len({lines[0]["terms"] for lines in logs.values()}) == 1
    for at in (-3, -2):  # the handshake, and the prediction
        for name in config.party:
            theirs, own = logs["server"][at], logs[name][at]
            assert own["sent"].get("server") == theirs["received"].get(name)
            assert own["received"].get("server") == theirs["sent"].get(name)
    counts = [
        count
        for line in logs["server"][-3:-1]
        for way in ("sent", "received")
        for kinds in line[way].values()
        for count in kinds.values()
    ]
    hellos = [roles.parties[name].role.hello() for name in config.party]
    assert sum(frames for frames, _ in counts) == len(roles.frames) + len(hellos)
    sizes = sum(len(frame) for _, frame in roles.frames) + sum(map(len, hellos))
    assert abs(sum(size for _, size in counts) - sizes) < 100  # a hello says now which run is kept
    text = "".join((roles.state / role / NAME).read_text() for role in logs)
    assert not [one for one in ("p1010", "income", "spent", "target", "yes") if one in text]


def test_a_session_that_breaks_is_a_line_of_its_own(tmp_path, stack, monkeypatch):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, _, _ = prepared(tmp_path)
    roles = Roles(config, run, stack)
    for one in roles.parties:
        roles.join(one)
    while not roles.parties["bank"].rows.scores:
        assert roles.step()
    roles.cut("shop")
    while roles.step():
        pass
    lines = list(read_actions(roles.state / "server" / NAME))
    left = [line["event"] for line in lines].index("left")
    assert [line["event"] for line in lines[left - 2 :]] == ["handshake", "predicted", "left", "joined"]
    roles.server.recorder.ended()
    assert [line["event"] for line in read_actions(roles.state / "server" / NAME)].count("predicted") == 2


@pytest.mark.parametrize("after", range(1, 40, 6))
@pytest.mark.parametrize("name", ["bank", "shop"])
def test_a_connection_that_breaks_changes_nothing(name, after, tmp_path, stack, monkeypatch, once):
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    run, config, expected = once
    roles = Roles(config, run, stack)
    for one in roles.parties:
        roles.join(one)
    for _ in range(after):
        roles.step()
    if not roles.server.role.done:
        roles.cut(name)
    while roles.step():
        pass
    assert roles.server.role.done
    assert roles.scores().equals(expected)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    run, config, expected, _ = prepared(tmp_path_factory.mktemp("once"))
    return run, config, expected.combine_chunks()


def test_a_bundle_of_another_run_is_refused(once, tmp_path, stack):
    run, config, _ = once
    other = train(tables.config(tables.write(tables.frames("binary"), tmp_path / "in"), seed=4), out=tmp_path / "run")
    said = "was trained with other terms than this configuration has: seed = 3 here, 4 in training; take that of"
    for place in (other.path, other.path / PARAMETERS):
        with pytest.raises(DataError, match=said):
            PartyPrediction(config, "bank", place, tmp_path / "other", stack)
    changed = config.model_copy(update={"local_iterations": 9, "batch_size": 7, "seed": 5, "precision": "float64"})
    with pytest.raises(DataError, match=r"has: (\w+ = \S+ here, \S+ in training, ){3}and 1 more; take"):
        PartyPrediction(changed, "bank", run, tmp_path / "other", stack)
    (other.path / "config.json").unlink()
    with pytest.raises(DataError, match="than this configuration has; take that of the training"):
        PartyPrediction(config, "bank", other.path, tmp_path / "other", stack)
    mixed = train(
        tables.config(tables.write(tables.frames(first=7), tmp_path / "in")), out=tmp_path / "second"
    )  # the same terms, on other people
    server = ServerPrediction(config, run, tmp_path / "server", stack)
    party = PartyPrediction(config, "bank", mixed.path, tmp_path / "bank", stack)
    with pytest.raises(
        RemoteProtocolError, match=r"predict differs: bank has '[0-9a-f]{16}', the server '[0-9a-f]{16}'"
    ):
        server.role.join(party.role.hello(), "bank")


def test_training_and_predicting_do_not_mix(once, stack, tmp_path):
    from cvfl.federation.roles import ServerRun  # noqa: PLC0415

    run, config, _ = once
    party = PartyPrediction(config, "bank", run, tmp_path / "bank", stack)
    server = ServerRun(config, "test", tmp_path / "state")
    with pytest.raises(RemoteProtocolError, match=r"predict differs: bank has .*, the server None"):
        server.role.join(party.role.hello(), "bank")
    server.close()


@pytest.mark.parametrize(
    "lie",
    [
        lambda: Prediction(0, 2, b""),
        lambda: Prediction(10**6, 2, b""),
        lambda: Embedding(0, 2, b""),
        lambda: Prediction(0, 1, b""),
        lambda: Prediction(0, 0, b""),
    ],
    ids=["empty", "far", "of training", "another's", "the server's"],
)
def test_a_lie_is_refused_with_the_name_of_who_told_it(once, stack, lie):
    """In the phase of batches: bytes that are none, batches that are none, messages of training, another's name."""
    roles = in_the_phase_of_batches(once, stack)
    frames = [(1, frame) for name, frame in roles._up if name == "bank"]
    with pytest.raises(RemoteProtocolError, match=r"^shop"):
        carry(roles, [(2, encode(lie())), *frames])


def in_the_phase_of_batches(once, stack) -> Roles:
    run, config, _ = once
    roles = Roles(config, run, stack)
    for name in roles.parties:
        roles.join(name)
    while roles.server.role._links.here[2].phase is not Phase.PREDICTING:
        assert roles.step()
    return roles


def carry(roles: Roles, frames) -> None:
    for m, frame in frames:
        roles.server.role.receive(m, frame)


def test_scores_that_were_not_asked_for_are_refused(once, stack):
    roles = in_the_phase_of_batches(once, stack)
    for name in ("shop", "bank"):  # the shop gets none at all, the bank none of a batch that is not next
        with pytest.raises(RemoteProtocolError, match=f"^{name}: from the server"):
            list(roles.parties[name].role.receive(encode(Prediction(3, 0, b"\0"))))


def test_what_cannot_be_predicted_apart_is_said(tmp_path, once, stack):
    run, config, _ = once
    with pytest.raises(ConfigError, match=r"there is no section party\.shpo; did you mean 'shop'"):
        PartyPrediction(config, "shpo", run, tmp_path / "shpo", stack)
    noisy = tables.config({"bank": tmp_path, "shop": tmp_path}, privacy={"clip": 1.0, "noise": 1.0})
    with pytest.raises(ConfigError, match=r"with privacy\.noise rows are not predicted apart yet"):
        ServerPrediction(noisy, run, tmp_path / "server", stack)
