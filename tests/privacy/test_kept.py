"""What roles keep of an alignment: going on with it finds what a new one would, and sends what changed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.federation.rows.keeping import PartyKeeper, ServerKeeper
from cvfl.privacy import AlignmentParty, AlignmentServer
from cvfl.privacy.blinding import short_size
from cvfl.privacy.kept import TAG, Count, KeptByParty, tags_of
from cvfl.privacy.keys import session_secrets
from cvfl.privacy.sealing import Sealing
from cvfl.runtime import Meter
from cvfl.runtime.align import align
from cvfl.wire import pack

NAMES = ("hospital", "bank", "insurer")


class Roles:
    """The keepers of a server and its parties, in memory."""

    def __init__(self, M: int) -> None:
        self.names = NAMES[:M]
        self.server = ServerKeeper(None, self.names)
        self.keepers = [PartyKeeper(None, self.names) for _ in self.names]
        self.runs = 0

    def align(self, tables: list[list[str]]) -> tuple[str, str, frozenset[str], Meter]:
        """How it went, with which earlier alignment, what is shared, and what was sent."""
        sizes, meter = [len(ids) for ids in tables], Meter()
        numbers, came = zip(*(k.has(ids) for k, ids in zip(self.keepers, tables, strict=True)), strict=True)
        how, number = self.server.agree(numbers, sizes, came)
        assert all(keeper.confirms(how, number) for keeper in self.keepers)
        if how == "kept":
            (common,) = {keeper.found(m).common for m, keeper in enumerate(self.keepers, start=1)}
            return how, number, common, meter
        secrets, matching = session_secrets(len(tables)), self.server.begin(sizes, number, came)
        parties = [
            keeper.begin(m, ids, sizes, Sealing(secrets[m], self.names, "rows"), number, came)
            for m, (keeper, ids) in enumerate(zip(self.keepers, tables, strict=True), start=1)
        ]
        align(matching, parties, meter)
        self.runs += 1
        self.server.keep(matching, f"{self.runs:02x}")
        for keeper, party in zip(self.keepers, parties, strict=True):
            keeper.keep(party, f"{self.runs:02x}")
        (common,) = {party.common for party in parties}
        assert common is not None
        return how, number, common, meter


IDS = st.sets(st.integers(0, 30).map(str), min_size=0, max_size=20)


@settings(deadline=None, max_examples=30)
@given(
    rounds=st.integers(1, 3).flatmap(lambda M: st.lists(st.lists(IDS, min_size=M, max_size=M), min_size=2, max_size=5))
)
def test_going_on_finds_what_a_new_alignment_would(rounds):
    roles = Roles(len(rounds[0]))
    before = None
    for round_ in rounds:
        tables = [sorted({"shared", *table}) for table in round_]
        how, _, common, _ = roles.align(tables)
        assert common == set.intersection(*map(set, tables))
        assert (how == "kept") == (tables == before)
        before = tables


def test_bytes_follow_what_changed():
    roles, tables = Roles(2), [[str(i) for i in range(2000)] for _ in range(2)]
    _, number, _, whole = roles.align(tables)
    assert number == ""
    assert roles.align(tables)[3].total().total == 0
    tables[0] = [*tables[0][5:], "a", "b"]
    how, number, common, meter = roles.align(tables)
    assert (how, number, len(common)) == ("align", "01", 1995)
    assert meter.total().total < 1200  # two ids, and a bit for each of 2,000 three times
    assert meter.total().total < whole.total().total / 200
    assert roles.align(tables)[:2] == ("kept", "02")


def test_a_longer_hash_begins_anew():
    """Hashes of before cannot be made longer."""
    roles, few = Roles(2), [[str(i) for i in range(10)] for _ in range(2)]
    roles.align(few)
    kept = roles.server._kept
    assert kept is not None
    assert short_size(20) == short_size(22) == kept.size < short_size(300)
    assert kept.serves(["01", "01"], [11, 11], [1, 1])
    assert not replace(kept, count=Count((150, 150), (10, 10))).serves(["01", "01"], [150, 150], [140, 140])


@pytest.mark.parametrize(
    ("numbers", "sizes", "came"),
    [
        (["01", ""], [10, 10], [0, 0]),
        (["", ""], [10, 10], [0, 0]),
        (["02", "02"], [10, 10], [0, 0]),
        (["01", "01"], [12, 10], [1, 0]),
        (["01", "01"], [10, 10], [11, 0]),
    ],
)
def test_what_does_not_fit_begins_anew(numbers, sizes, came):
    roles = Roles(2)
    roles.align([[str(i) for i in range(10)] for _ in range(2)])
    assert roles.server.agree(numbers, sizes, came) == ("align", "")


def test_a_party_forgets_before_it_blinds():
    roles = Roles(2)
    roles.align([["1", "2"], ["2", "3"]])
    keeper = roles.keepers[0]
    number, came = keeper.has(["1", "2", "4"])
    assert (number, came) == ("01", 1)
    keeper.begin(1, ["1", "2", "4"], [3, 2], Sealing(session_secrets(2)[1], NAMES[:2], "rows"), number, [1, 0])
    assert keeper.has(["1", "2"]) == ("", 0)
    assert not keeper.confirms("kept", "01")
    assert not keeper.confirms("align", "01")
    assert keeper.confirms("align", "")


def kept(ids: list[str], count: Count | None = None) -> KeptByParty:
    key = bytes(range(32))
    bits = pack([1] * len(ids), 1)
    return KeptByParty(
        "01", "2026-11-17", NAMES[:2], 6, count or Count((2, 2), (2, 2)), key, b"".join(tags_of(ids, key)), bits
    )


@pytest.mark.parametrize(
    ("sizes", "came", "said"),
    [
        ([3, 2], [2, 0], "hospital: has 3 ids, which is not what it was told"),
        ([4, 2], [1, 0], "hospital: has 3 ids, which is not what it was told"),
        ([3, 2], [1, 0, 0], "hospital: there are 2 parties"),
        ([3, 5], [1, 3], "hospital: more new ids than a key of an earlier alignment is good for"),
    ],
)
def test_a_party_holds_the_server_to_its_own_ids(sizes, came, said):
    sealing = Sealing(session_secrets(2)[1], NAMES[:2], "rows")
    ids = ["a", "b", "c"]
    with pytest.raises(RemoteProtocolError, match=said):
        AlignmentParty(1, ids, sizes, sealing, kept(["a", "b"]).against(ids), came)
    assert AlignmentParty(1, ids, [3, 2], sealing, kept(["a", "b"]).against(ids), [1, 2]).parts == 1


def test_a_tag_needs_the_key():
    one, two = tags_of(["a", "b"], bytes(32)), tags_of(["a", "b"], bytes([1]) + bytes(31))
    assert {len(tag) for tag in one} == {TAG}
    assert not set(one) & set(two)
    assert tags_of(["b"], bytes(32)) == one[1:]


def test_everybody_has_left():
    roles = Roles(2)
    roles.align([["1", "2"], ["2", "3"]])
    with pytest.raises(DataError, match="share no id"):
        roles.align([["1"], ["3"]])
    assert roles.align([["1"], ["1"]])[:2] == ("align", "")


def test_a_server_of_an_empty_table():
    with pytest.raises(DataError, match=r"share no id \(hospital 1, bank 0 ids\)"):
        AlignmentServer(NAMES[:2], [1, 0])
