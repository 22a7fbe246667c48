"""Outer alignment: the label holder hears who else has its ids, others which of theirs it has, and nobody more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.federation.rows.keeping import PartyKeeper, ServerKeeper
from cvfl.privacy import Aligned, AlignmentParty, AlignmentServer
from cvfl.privacy.keys import session_secrets
from cvfl.privacy.sealing import Sealing
from cvfl.privacy.wanted import Matches, Wanted
from cvfl.runtime import Meter
from cvfl.runtime.align import align
from cvfl.types import SERVER
from cvfl.wire import Matched, pack

NAMES = ("hospital", "bank", "insurer", "registry")
relaxed = settings(deadline=None, max_examples=25)  # a busy machine is no failure


def wanted(m: int, holder: int) -> Wanted:
    return Wanted.ALL if holder == SERVER else Wanted.EACH if m == holder else Wanted.LABELLED


class Roles:
    """The keepers of a server and its parties, in memory; `holder` may change from one alignment to the next."""

    def __init__(self, M: int) -> None:
        self.names = NAMES[:M]
        self.server = ServerKeeper(None, self.names)
        self.keepers: dict[int, PartyKeeper] = {}
        self.runs = 0

    def align(self, tables: list[list[str]], holder: int) -> tuple[str, list[Matches], Aligned]:
        """How it went, what each party heard, and what the server tells of it."""
        for m in range(1, len(tables) + 1):
            old = self.keepers.get(m)
            self.keepers[m] = PartyKeeper(None, self.names, wanted=wanted(m, holder))
            if old is not None and old._kept is not None and old._kept.wanted is wanted(m, holder):
                self.keepers[m]._kept = old._kept  # as a new process finds it
        sizes, everyone = [len(ids) for ids in tables], sorted(self.keepers.items())
        numbers, came = zip(*(k.has(ids) for (_, k), ids in zip(everyone, tables, strict=True)), strict=True)
        how, number = self.server.agree(numbers, sizes, came, holder)
        assert all(keeper.confirms(how, number) for _, keeper in everyone)
        if how == "kept":
            return how, [keeper.found(m) for m, keeper in everyone], self.server.aligned()
        secrets, matching = session_secrets(len(tables)), self.server.begin(sizes, number, came, holder)
        parties = [
            keeper.begin(m, ids, sizes, Sealing(secrets[m], self.names, "rows"), number, came)
            for (m, keeper), ids in zip(everyone, tables, strict=True)
        ]
        result = align(matching, parties, Meter())
        self.runs += 1
        self.server.keep(matching, f"{self.runs:02x}")
        for (_, keeper), party in zip(everyone, parties, strict=True):
            keeper.keep(party, f"{self.runs:02x}")
        return (f"{how} with {number}" if number else how), [party.found for party in parties if party.found], result


def check(tables: list[list[str]], holder: int, found: list[Matches], aligned: Aligned) -> None:
    """What everyone heard is what a look at all tables shows."""
    sets = [frozenset(ids) for ids in tables]
    rows = sets[holder - 1]
    for m, (own, told) in enumerate(zip(sets, found, strict=True), start=1):
        assert told.common == own & rows
        assert told.held == (tuple(rows & other for other in sets) if m == holder else ())
    assert aligned.held == tuple(len(rows & own) for own in sets)
    assert aligned.common == len(frozenset.intersection(*sets))
    assert (aligned.rows, aligned.holder, aligned.outer) == (len(rows), holder, True)


TABLES = st.lists(st.sets(st.integers(0, 20).map(str), max_size=12), min_size=1, max_size=4)


@relaxed
@given(tables=TABLES, at=st.integers(0, 3), shared=st.integers(0, 20).map(str))
def test_everyone_hears_what_is_his(tables: list[set[str]], at: int, shared: str) -> None:
    lists, holder = [sorted({shared, *ids}) for ids in tables], at % len(tables) + 1
    how, found, aligned = Roles(len(lists)).align(lists, holder)
    assert how == "align"
    check(lists, holder, found, aligned)


@relaxed
@given(before=TABLES, after=TABLES, at=st.integers(0, 3))
def test_going_on_finds_what_a_new_alignment_would(before: list[set[str]], after: list[set[str]], at: int) -> None:
    M = min(len(before), len(after))
    first, then = ([sorted({"x", "y", *ids}) for ids in tables[:M]] for tables in (before, after))
    roles, holder = Roles(M), at % M + 1
    roles.align(first, holder)
    check(then, holder, *roles.align(then, holder)[1:])
    how, found, aligned = roles.align(then, holder)
    assert how == "kept"
    check(then, holder, found, aligned)


def test_alignments_of_different_kinds_are_not_mixed() -> None:
    """What was kept tells other things: neither the other kind nor another label holder goes on with it."""
    tables, roles = [["1", "2", "3"], ["2", "3", "4"], ["3", "4", "5"]], Roles(3)
    for holder in (1, SERVER, 2, 3, 1):
        how, found, aligned = roles.align(tables, holder)
        assert how == "align"
        if holder:
            check(tables, holder, found, aligned)
        else:
            assert {told.common for told in found} == {frozenset("3")}
            assert not aligned.outer
        assert roles.align(tables, holder)[0] == "kept"


def test_a_party_that_holds_none_of_the_rows_is_named() -> None:
    tables = [["1", "2"], ["2", "3"], ["7"]]
    with pytest.raises(DataError, match=r"^insurer holds none of the rows of bank; check that the id columns mean"):
        Roles(3).align(tables, 2)


def test_rows_that_the_label_holder_alone_has_are_rows() -> None:
    _, found, aligned = Roles(3).align([["1", "2"], ["1", "9", "8", "7", "2"], ["2"]], 2)
    assert found[1].common == frozenset("12789")
    assert aligned.warning == "only 1 of 5 rows are held by all (20.0%)"
    assert Roles(2).align([["1", "2"], ["1", "2", "3"]], 2)[2].warning is None


@pytest.mark.parametrize(("kind", "bits"), [(Wanted.EACH, 3), (Wanted.EACH, 9), (Wanted.LABELLED, 6)])
def test_bits_of_another_number_are_refused(kind: Wanted, bits: int) -> None:
    """Such as those of another party, or of one more than there are."""
    sealing = Sealing(session_secrets(3)[1], NAMES[:3], "rows")
    party = AlignmentParty(1, ["a", "b", "c"], [3, 2, 2], sealing, wanted=kind)
    with pytest.raises(RemoteProtocolError, match="party 1: a Matched that the alignment does not expect"):
        party.receive(Matched(bits, pack([1] * bits, 1)))


def test_a_server_that_knows_no_holder_finds_the_people_whom_all_hold() -> None:
    """The same messages, and other bits in the last one."""
    sealing = {m: Sealing(own, NAMES[:2], "rows") for m, own in session_secrets(2).items()}
    parties = [AlignmentParty(m, ids, [2, 2], sealing[m]) for m, ids in ((1, ["a", "b"]), (2, ["b", "c"]))]
    aligned = align(AlignmentServer(NAMES[:2], [2, 2]), parties, Meter())
    assert (aligned.outer, aligned.rows, aligned.held) == (False, 1, ())
