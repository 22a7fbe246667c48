"""Align once, train often: the next run of the same parties sends only ids that came, and says which have gone."""

from __future__ import annotations

import csv
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from conformance.cases import SERVER, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, rows_apart, same
from conformance.test_law3_restart import FAULTS, SHORT
from cvfl.config.schema import RunConfig
from cvfl.errors import RemoteProtocolError
from cvfl.federation.rows.keeping import PartyKeeper
from cvfl.federation.rows.load import load_data, open_tables, shared_rows
from cvfl.privacy.blinding import OPEN
from cvfl.wire import Blinded, Gone, Matched, encode_setup, pack
from cvfl.wire.control import Have, RowSecret, Settle, encode_control
from cvfl.wire.read import read_frame
from cvfl.wire.setup import POINT, SEAL

pytestmark = pytest.mark.usefixtures("tidy")


class Heard(Loop):
    """Notes what parties send before the rounds."""

    def __init__(self, *args: Any) -> None:
        self.heard: list[Any] = []
        super().__init__(*args)

    def _serve(self, name: str, kind: str, frame: bytes) -> None:
        if kind == "frame":
            self.heard.append(read_frame(frame))
        super()._serve(name, kind, frame)

    @property
    def counts(self) -> Counter[str]:
        return Counter(type(message).__name__ for message in self.heard)

    @property
    def points(self) -> int:
        """Ids on their way from party to party."""
        sealed = [message for message in self.heard if isinstance(message, Blinded) and message.hops == 1]
        return sum((len(message.elements) - SEAL) // POINT for message in sealed)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    write_tables(tmp_path)
    return table_settings(tmp_path, **SHORT)


def change(path: Path, gone: int = 0, new: int = 0) -> None:
    """The first rows go, and others come that both tables get."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    came = [[f"new-{i:04d}", *rows[i][1:]] for i in range(new)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows[gone:], *came])


def again(config: RunConfig, folder: Path, seed: int = 1) -> Heard:
    """The next run of the same roles: another seed, so other terms."""
    for written in ("run", "models"):
        shutil.rmtree(folder / written, ignore_errors=True)
    return Heard(config.model_copy(update={"seed": seed}), folder)


def test_no_id_travels_when_none_has_changed(config: RunConfig, tmp_path: Path) -> None:
    first = Heard(config, tmp_path / "loop")
    same(rows_apart(first.run()), rows_apart(in_process(config)))
    assert first.points == 150
    for seed in (1, 2):
        loop = again(config, tmp_path / "loop", seed)
        same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
        assert loop.counts["Blinded"] == loop.counts["Gone"] == 0
        aligned = loop.server.role.aligned
        assert aligned is not None
        assert (aligned.common, aligned.sizes, aligned.changed) == (60, (75, 75), False)
        assert aligned.earlier == loop.parties["bank"].role.keeper.reused != ""


@pytest.mark.parametrize(("gone", "new"), [((3, 0), (0, 0)), ((0, 0), (2, 2)), ((4, 5), (2, 6)), ((0, 0), (0, 1))])
def test_only_what_changed_travels(gone: Any, new: Any, config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    for round_ in range(3):
        for name, g, n in zip(("bank", "shop"), gone, new, strict=True):
            change(tmp_path / f"{name}.csv", 0 if round_ else g, 0 if round_ else n)
        loop = again(config, tmp_path / "loop", round_ + 1)
        same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
        assert loop.points == (0 if round_ else sum(new))
        assert loop.counts["Gone"] == (0 if round_ else sum(1 for g in gone if g))
        aligned = loop.server.role.aligned
        assert aligned is not None
        assert (aligned.came, aligned.gone) == ((0, 0) if round_ else (sum(new), sum(gone)))


def test_ids_that_go_and_come_back(config: RunConfig, tmp_path: Path) -> None:
    whole = (tmp_path / "shop.csv").read_text()
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "shop.csv", gone=10)
    again(config, tmp_path / "loop", 1).run()
    (tmp_path / "shop.csv").write_text(whole)
    loop = again(config, tmp_path / "loop", 2)
    same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
    assert loop.points == 10


@pytest.mark.parametrize("who", ["bank", pytest.param("shop", marks=pytest.mark.slow), SERVER])
def test_a_role_that_has_forgotten_makes_all_begin_anew(who: str, config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    loop = again(config, tmp_path / "loop")
    (loop.server if who == SERVER else loop.parties[who]).role.keeper.forget()
    same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
    assert loop.points == 150
    loop = again(config, tmp_path / "loop", 2)
    loop.run()
    assert loop.points == 0


def test_a_torn_file_counts_as_none(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    (path,) = (tmp_path / "loop" / "bank" / "alignment").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    loop = again(config, tmp_path / "loop")
    same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
    assert loop.points == 150


def test_other_parties_begin_anew(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    keeper = PartyKeeper(tmp_path / "loop" / "bank" / "alignment", ("bank", "shop", "insurer"))
    assert keeper.has(["person-0001"]) == ("", 0)


def test_what_is_kept_is_for_its_owner_alone(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    for role in ("bank", "shop", SERVER):
        folder = tmp_path / "loop" / role / "alignment"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert b"person-" not in path.read_bytes()


@pytest.mark.parametrize("changed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_faults_while_an_alignment_is_taken_up(changed: bool, config: RunConfig, tmp_path: Path) -> None:
    """Every kind of fault in turn, at every frame before the first round: the run ends in the same bits."""
    Heard(config, tmp_path / "first").run()
    if changed:
        change(tmp_path / "bank.csv", 2, 3)
        change(tmp_path / "shop.csv", 0, 3)
    expected = rows_apart(in_process(config.model_copy(update={"seed": 1})))
    for n in range(24):
        shutil.copytree(tmp_path / "first", tmp_path / str(n))
        loop = again(config, tmp_path / str(n))
        same(rows_apart(loop.run({n: FAULTS[list(FAULTS)[n % len(FAULTS)]]})), expected)


# Roles that lie


def until_down(loop: Loop, name: str, kind: type) -> Any:
    while not (loop.down[name] and isinstance(read_frame(loop.down[name][0]), kind)):
        loop.step()
    return read_frame(loop.down[name].popleft())


LIES: dict[str, dict[str, Any]] = {
    "a result that has changed": {"how": "kept", "kept": None},
    "another alignment": {"how": "align", "kept": "ab" * 8},
    "the result of another alignment": {"how": "kept", "kept": "ab" * 8},
    "the result of none": {"how": "kept", "kept": ""},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_party_takes_up_only_what_it_kept_itself(lie: str, config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "bank.csv", new=2)
    loop = again(config, tmp_path / "loop")
    settle = until_down(loop, "bank", Settle)
    assert (settle.how, settle.new) == ("align", [2, 0])
    lied = settle.model_copy(update={key: value for key, value in LIES[lie].items() if value is not None})
    with pytest.raises(RemoteProtocolError, match=r"^bank: from the server: an alignment is taken up"):
        list(loop.parties["bank"].role.receive(encode_control(lied, 0)))
    assert loop.parties["bank"].role.keeper.has(["x"])[0] == settle.kept  # and it is still kept


def guesses(loop: Loop, name: str = "shop") -> Iterator[Settle]:
    """Sessions that the server breaks off as soon as a party has blinded what it was asked to."""
    while True:
        settle = until_down(loop, name, Settle)
        yield settle
        loop.down[name].appendleft(encode_control(settle, 0))
        until_down(loop, name, Blinded)
        loop.cut(name)


def test_ids_are_not_blinded_again_and_again_under_one_key(config: RunConfig, tmp_path: Path) -> None:
    """A party and a server that work together break alignments off, each time with other guesses: the key is gone."""
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "bank.csv", new=2)
    loop = again(config, tmp_path / "loop")
    asked = guesses(loop)
    first = next(asked)
    assert (first.how, first.new, bool(first.kept)) == ("align", [2, 0], True)
    for _ in range(3):
        more = next(asked)
        assert (more.how, more.kept) == ("align", "")  # all ids, under new keys
    loop.kill("shop")
    assert until_down(loop, "shop", Settle).kept == ""


def test_a_key_is_good_for_as_many_new_ids_as_there_were_at_first(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "bank.csv", new=74)
    change(tmp_path / "bank.csv", gone=75)
    change(tmp_path / "shop.csv", new=74)
    loop = again(config, tmp_path / "loop", 1)
    loop.run()
    assert loop.points == 148
    write_tables(tmp_path)
    loop = again(config, tmp_path / "loop", 2)
    same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
    assert loop.points == 150  # the bank's 75 would be too many
    loop = again(config, tmp_path / "loop", 3)
    loop.run()
    assert loop.points == 0


def test_a_server_has_more_ids_put_under_a_key(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "bank.csv", new=2)
    loop = again(config, tmp_path / "loop")
    settle = until_down(loop, "shop", Settle)
    lied = settle.model_copy(update={"new": [76, 0], "ids": [151, 75]})
    list(loop.parties["shop"].role.receive(encode_control(lied, 0)))
    secret = until_down(loop, "shop", RowSecret)
    with pytest.raises(RemoteProtocolError, match=r"^shop: more new ids than a key of an earlier"):
        list(loop.parties["shop"].role.receive(encode_control(secret, 0)))


def first_up(loop: Loop) -> Any:
    return read_frame(loop.up["bank"][0][1])


def test_a_party_says_that_other_ids_have_gone(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "bank.csv", gone=2)
    loop = again(config, tmp_path / "loop")
    while not (loop.up["bank"] and loop.up["bank"][0][0] == "frame" and isinstance(first_up(loop), Gone)):
        loop.step()
    assert first_up(loop).count == 75
    for count, bits in ((75, [1] * 3 + [0] * 72), (74, [1] * 2 + [0] * 72)):
        lied = encode_setup(Gone(1, count, pack(bits, 1)))
        with pytest.raises(RemoteProtocolError, match=r"^bank: .*ids.* said before$"):
            loop.server.role.receive(1, lied)
    with pytest.raises(RemoteProtocolError, match=r"^shop: .*ids.* said before$"):
        loop.server.role.receive(2, encode_setup(Gone(2, 75, pack([0] * 75, 1))))


def test_have_tells_how_many_are_new_and_nothing_of_them(config: RunConfig, tmp_path: Path) -> None:
    Heard(config, tmp_path / "loop").run()
    change(tmp_path / "bank.csv", 1, 2)
    loop = again(config, tmp_path / "loop")
    loop.run()
    have = [message for message in loop.heard if isinstance(message, Have)]
    assert sorted((one.ids, one.new) for one in have) == [(75, 0), (76, 2)]
    assert not any(isinstance(message, Matched) for message in loop.heard)


# In one process


def test_in_one_process_too(config: RunConfig, tmp_path: Path) -> None:
    kept = tmp_path / "state"
    first = load_data(config, kept=kept)
    assert first.found.traffic.total().total > 0
    assert first.aligned is not None
    assert first.aligned.earlier == ""
    second = load_data(config, kept=kept)
    assert second.found.traffic.total().total == 0
    assert second.aligned is not None
    assert second.aligned.earlier
    assert second.data.train_labels.equal(first.data.train_labels)
    change(tmp_path / "shop.csv", 1, 1)
    third, anew = load_data(config, kept=kept), load_data(config)
    assert 0 < third.found.traffic.total().total < 500
    assert third.data.train_labels.equal(anew.data.train_labels)
    for one, other in zip(third.data.train, anew.data.train, strict=True):
        assert isinstance(one, Tensor)
        assert isinstance(other, Tensor)
        assert one.equal(other)


def test_ids_are_not_blinded_where_all_parties_are_and_the_bytes_are_the_same(
    config: RunConfig, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tables = open_tables(config, stack)
        plain, blinded = shared_rows(tables, config), shared_rows(tables, config, blinding=None)
    assert plain.aligned == blinded.aligned
    assert plain.found.traffic.parties == blinded.found.traffic.parties
    assert all(map(np.array_equal, plain.places, blinded.places))


def test_a_party_that_is_apart_does_not_go_on_with_ids_that_were_not_blinded(config: RunConfig, tmp_path: Path) -> None:
    kept = tmp_path / "state"
    ids = aligned_here(config, kept)
    here, apart = (PartyKeeper(kept / "bank", tuple(config.party), key) for key in (OPEN, None))
    assert here.has(ids)[0] != ""
    assert apart.has(ids) == ("", 0)


def aligned_here(config: RunConfig, kept: Path) -> list[str]:
    """The ids of the bank, after an alignment in this process."""
    with ExitStack() as stack:
        tables = open_tables(config, stack)
        shared_rows(tables, config, kept=kept)
        return list(tables[0].ids())


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load_data(config, kept=tmp_path / "file" / "below").aligned
