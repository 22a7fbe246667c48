"""Private alignment: who learns what, any number of parties, and every way in which ids go wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.privacy import AlignmentParty, AlignmentServer
from cvfl.privacy import alignment as module
from cvfl.privacy.blinding import Blinder
from cvfl.privacy.keys import session_secrets
from cvfl.privacy.sealing import Sealing
from cvfl.runtime import Meter
from cvfl.runtime.align import align
from cvfl.types import Direction
from cvfl.wire import Blinded, Matched, Spelling, decode_setup
from cvfl.wire.setup import ELEMENT, SEAL, separate

NAMES = ("hospital", "bank", "insurer", "registry")


class Tapped(Meter):
    """A meter that keeps what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, Direction, bytes]] = []

    def add(self, m, direction, frame) -> None:
        super().add(m, direction, frame)
        self.frames.append((m, direction, bytes(frame)))


def party(m, ids, sizes, secrets=None) -> AlignmentParty:
    secrets = secrets or session_secrets(len(sizes))
    return AlignmentParty(m, ids, sizes, Sealing(secrets[m], NAMES[: len(sizes)], "rows"))


def aligned(*tables: list[str], meter: Meter | None = None, on_progress=lambda *_: None):
    names, sizes = NAMES[: len(tables)], [len(ids) for ids in tables]
    server, secrets = AlignmentServer(names, sizes), session_secrets(len(tables))
    parties = [party(m, ids, sizes, secrets) for m, ids in enumerate(tables, start=1)]
    result = align(server, parties, meter or Meter(), on_progress)
    return result, parties


@settings(deadline=None, max_examples=25)
@given(tables=st.lists(st.sets(st.text(max_size=3), max_size=8), min_size=1, max_size=4), shared=st.text(max_size=3))
def test_it_finds_the_intersection(tables, shared):
    tables = [{shared, *table} for table in tables]
    expected = set.intersection(*tables)
    result, parties = aligned(*map(list, tables))
    assert result.common == len(expected)
    assert result.sizes == tuple(map(len, tables))
    assert all(party.common == expected for party in parties)


@pytest.mark.parametrize("M", [2, 3, 4])
def test_several_parts(monkeypatch, M):
    monkeypatch.setattr(module, "PART", 3)
    tables = [[str(i) for i in range(m, 20 + m)] for m in range(M)]
    steps = []
    result, parties = aligned(*tables, on_progress=lambda done, total: steps.append((done, total)))
    assert parties[0].common == {str(i) for i in range(M - 1, 20)}
    assert result.common == 21 - M
    total = M * M * 7
    assert steps == [(done, total) for done in range(1, total + 1)]


def test_no_id_and_no_key_leaves_a_party():
    meter = Tapped()
    ids = [f"person-{i:04d}" for i in range(50)]
    _, parties = aligned(ids, ids[10:], ids[:40], meter=meter)
    everything = b"".join(frame for _, _, frame in meter.frames)
    assert not any(text.encode() in everything for text in ids)
    keys = [party._blinder._key for party in parties]
    assert len(set(keys)) == 3
    assert not any(key in everything for key in keys)


def test_the_server_cannot_compare_before_all_keys_are_on():
    """A blinded id of one party equals none of another's before the last hop."""
    meter = Tapped()
    ids = [str(i) for i in range(20)]
    aligned(ids, ids, ids, meter=meter)
    seen: dict[tuple[int, int], set[bytes]] = {}
    for _, direction, frame in meter.frames:
        match decode_setup(frame):
            case Blinded(_, owner, hops, _, _, _, elements) if direction is Direction.UP:
                seen.setdefault((owner, hops), set()).update(separate(elements))
    assert seen.keys() == {(owner, hops) for owner in (1, 2, 3) for hops in (1, 2, 3)}
    groups = list(seen.items())
    for i, ((owner, hops), elements) in enumerate(groups):
        for (other, others), more in groups[i + 1 :]:
            assert bool(elements & more) == (hops == others == 3), (owner, hops, other, others)


def test_a_party_sees_neither_the_order_nor_a_key_of_another():
    """The same table twice: other keys, another order."""
    ids = [str(i) for i in range(40)]
    runs = []
    for _ in range(2):
        meter = Tapped()
        aligned(ids, ids, meter=meter)
        runs.append([frame for m, direction, frame in meter.frames if (m, direction) == (2, Direction.DOWN)])
    first, second = (separate(decode_setup(run[0]).elements) for run in runs)
    assert not set(first) & set(second)
    assert party(1, ids, [40])._ids != party(1, ids, [40])._ids


def test_bytes_are_counted_at_every_hop():
    meter, M, n = Tapped(), 3, 10
    ids = [str(i) for i in range(n)]
    aligned(ids, ids, ids, meter=meter)
    body, head = 13 + n * ELEMENT, 20
    matched = head + 4 + 2
    for m in (1, 2, 3):
        traffic = meter.parties[m]
        assert traffic.up == M * (head + body) + (M - 1) * SEAL  # the last hop is open
        assert traffic.down == (M - 1) * (head + body + SEAL) + matched
    assert meter.total().total == sum(len(frame) for _, _, frame in meter.frames)


def test_keys_commute():
    one, two = Blinder(), Blinder()
    assert one.blind_again(two.blind(["7", "x"]), "two") == two.blind_again(one.blind(["7", "x"]), "one")
    assert one.blind(["7"]) != two.blind(["7"])


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1", "20", "0"], Spelling.INTEGER),
        (["001", "020"], Spelling.PADDED),
        (["7", "07"], Spelling.PADDED),
        (["7", "A7"], Spelling.TEXT),
        (["-7"], Spelling.TEXT),
        ([""], Spelling.TEXT),
        ([], Spelling.INTEGER),
    ],
)
def test_spelling(ids, expected):
    assert module.spelling(ids) is expected


def test_padded_ids_against_plain_ones_are_named():
    with pytest.raises(DataError, match=r"ids of bank are padded with zeros.*hospital are plain.*id_type.*at bank"):
        aligned(["7", "8"], ["007", "008"])


def test_text_ids_may_meet_plain_ones():
    result, _ = aligned(["7", "8"], ["7", "A8"])
    assert result.common == 1


def test_nothing_in_common_is_named():
    with pytest.raises(DataError, match=r"share no id \(hospital 2, bank 1 ids\)"):
        aligned(["a", "b"], ["c"])


def test_an_empty_table():
    with pytest.raises(DataError, match="share no id"):
        aligned(["a"], [])


def test_duplicates_are_named():
    with pytest.raises(DataError, match="bank: 1 ids appear twice"):
        aligned(["a", "b"], ["a", "a"])


@pytest.mark.parametrize(("common", "warns"), [(5, False), (4, True)])
def test_a_small_intersection_is_a_warning(common, warns):
    one = [str(i) for i in range(10)]
    two = [str(i) for i in range(10 - common, 30)]
    result, _ = aligned(one, two)
    assert (result.warning is not None) == warns
    if warns:
        assert result.warning == "only 4 of the 10 ids of hospital, the smallest table, are shared (40.0%)"


SIZES = (module.PART + 1, 5)


def good(**changes) -> Blinded:
    values = {"m": 1, "owner": 1, "hops": 1, "part": 0, "parts": 2, "spelling": Spelling.TEXT}
    return Blinded(**{**values, "elements": bytes(module.PART * ELEMENT + SEAL), **changes})


@pytest.mark.parametrize(
    "message",
    [
        good(m=2),
        good(owner=3),
        good(hops=3),
        good(hops=0),
        good(m=2, hops=2),
        good(m=2, hops=2, parts=3),
        good(hops=2),
        Matched(0, b""),
    ],
)
def test_messages_out_of_turn_are_refused(message):
    with pytest.raises(RemoteProtocolError):
        AlignmentServer(("hospital", "bank"), SIZES).receive(message)


@pytest.mark.parametrize("change", [{"parts": 3}, {"spelling": Spelling.INTEGER}, {"elements": Blinder().blind(["a"])}])
def test_what_comes_back_changed_is_refused(change):
    server = AlignmentServer(("hospital", "bank"), SIZES)
    sent = good()
    ((receiver, passed),) = server.receive(sent)
    assert (receiver, passed.m) == (2, 0)
    answer = {"m": 2, "hops": 2, "elements": sent.elements[SEAL:], **change}
    with pytest.raises(RemoteProtocolError, match="bank: part 0"):
        server.receive(good(**answer))


def test_the_same_part_twice_is_refused():
    server = AlignmentServer(("hospital", "bank"), SIZES)
    server.receive(good())
    with pytest.raises(RemoteProtocolError):
        server.receive(good())


@pytest.mark.parametrize(
    "message",
    [
        Matched(3, b"\0"),
        Blinded(0, 1, 1, 0, 1, Spelling.TEXT, b""),
        Blinded(2, 2, 1, 0, 1, Spelling.TEXT, b""),
        Blinded(0, 2, 2, 0, 1, Spelling.TEXT, b""),
        Blinded(0, 2, 1, 0, 2, Spelling.TEXT, b""),
        Blinded(0, 3, 1, 0, 1, Spelling.TEXT, b""),
    ],
)
def test_a_party_refuses_what_it_does_not_expect(message):
    with pytest.raises(RemoteProtocolError, match="party 1"):
        party(1, ["a", "b"], [2, 4]).receive(message)


def passed(ids: bytes, secrets, written=Spelling.TEXT, part=0) -> Blinded:
    """Blinded ids as the second of two parties would pass them on through the server."""
    sealed = Sealing(secrets[2], NAMES[:2], "rows").seal_bytes(1, ids, module._about(2, 1, part, 1, Spelling.TEXT))
    return Blinded(0, 2, 1, part, 1, written, sealed)


def test_ids_that_the_server_makes_up_are_not_blinded():
    """A server that could have any ids blinded would find out those of a party by guessing."""
    secrets, guesses = session_secrets(2), Blinder().blind([str(i) for i in range(5)])
    asked = party(1, ["1", "2"], [2, 5], secrets)
    forged = session_secrets(2)
    for message in (Blinded(0, 2, 1, 0, 1, Spelling.TEXT, guesses), passed(guesses, forged)):
        with pytest.raises(RemoteProtocolError, match="bank: part 0 of blinded ids does not open"):
            asked.receive(message)
    assert asked.receive(passed(guesses, secrets))


@pytest.mark.parametrize("ids", [0, 4, 6, 5000])
def test_no_more_ids_are_blinded_than_were_announced(ids):
    secrets = session_secrets(2)
    guesses = bytes(ELEMENT * ids)
    with pytest.raises(RemoteProtocolError, match="bank: part 0 of the ids of role 2 has another size than was said"):
        party(1, ["1", "2"], [2, 5], secrets).receive(passed(guesses, secrets))


def test_a_party_knows_how_many_ids_it_has_blinded(monkeypatch):
    monkeypatch.setattr(module, "PART", 3)
    _, parties = aligned(["1", "2"], ["1", "2", "3", "4"], ["2"])
    assert [party.blinded for party in parties] == [
        {"bank": 4, "insurer": 1},
        {"hospital": 2, "insurer": 1},
        {"hospital": 2, "bank": 4},
    ]


def test_ids_are_blinded_once():
    secrets, ids = session_secrets(2), Blinder().blind(["1"])
    asked, sealing = party(1, ["1", "2"], [2, 1], secrets), Sealing(secrets[2], NAMES[:2], "rows")
    for fine in (True, False):
        sealed = sealing.seal_bytes(1, ids, module._about(2, 1, 0, 1, Spelling.TEXT))
        message = Blinded(0, 2, 1, 0, 1, Spelling.TEXT, sealed)
        if fine:
            assert len(asked.receive(message)) == 1
        else:
            with pytest.raises(RemoteProtocolError, match="party 1: a Blinded that the alignment does not expect"):
                asked.receive(message)


def test_how_ids_are_written_is_sealed_with_them():
    secrets = session_secrets(2)
    with pytest.raises(RemoteProtocolError, match="does not open"):
        party(1, ["1"], [1, 1], secrets).receive(passed(Blinder().blind(["1"]), secrets, Spelling.INTEGER))


def test_garbage_instead_of_a_point():
    secrets = session_secrets(2)
    with pytest.raises(RemoteProtocolError, match="bank: a blinded id is not a point"):
        party(1, ["a"], [1, 1], secrets).receive(passed(b"\x02" + b"\xff" * 32, secrets))


def test_a_party_is_not_told_another_number_of_its_own_ids():
    with pytest.raises(RemoteProtocolError, match="hospital: has 1 ids"):
        party(1, ["a"], [2, 1])
