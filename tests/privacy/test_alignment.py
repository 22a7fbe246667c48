"""Private alignment: who learns what, any number of parties, and every way in which ids go wrong."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.errors import DataError, RemoteProtocolError
from cvfl.privacy import AlignmentParty, AlignmentServer
from cvfl.privacy import alignment as module
from cvfl.privacy.blinding import FALSE_MATCH_BITS, Blinder, short_size, shortened
from cvfl.privacy.keys import session_secrets
from cvfl.privacy.sealing import Sealing
from cvfl.runtime import Meter
from cvfl.runtime.align import align
from cvfl.types import Direction
from cvfl.wire import Blinded, Gone, Matched, Spelling, decode_setup
from cvfl.wire.setup import POINT, SEAL, separate

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
    keys = [party._blinder.key for party in parties]
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
            case Blinded(_, owner, hops, _, _, _, size, elements) if direction is Direction.UP:
                seen.setdefault((owner, hops), set()).update(separate(elements, size))
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
    first, second = (separate(decode_setup(run[0]).elements, POINT) for run in runs)
    assert not set(first) & set(second)
    assert party(1, ids, [40])._ids != party(1, ids, [40])._ids


def test_bytes_are_counted_at_every_hop():
    meter, M, n = Tapped(), 3, 10
    ids = [str(i) for i in range(n)]
    aligned(ids, ids, ids, meter=meter)
    frame, under_way, last = 2 + 2, n * POINT + SEAL, n * short_size(M * n)
    head = frame + 14
    for m in (1, 2, 3):
        traffic = meter.parties[m]
        up, down = (M - 1) * (head + under_way) + head + last, (M - 1) * (head + under_way) + frame + 4 + 2
        assert traffic.alignment == up + down
    assert meter.total().total == sum(len(frame) for _, _, frame in meter.frames)


@pytest.mark.parametrize(("M", "most"), [(2, 77), (4, 206)])
def test_bytes_an_id_and_party(M, most):
    """Everything counted, up and down: docs/alignment.md quotes these."""
    meter, n = Meter(), 5000
    aligned(*([str(i) for i in range(n)] for _ in range(M)), meter=meter)
    assert meter.total().total / (M * n) < most


@settings(deadline=None, max_examples=30)
@given(ids=st.lists(st.text(), unique=True, max_size=6), M=st.integers(1, 4))
def test_the_order_of_keys_does_not_matter(ids, M):
    """On the curve and on its twist: every second hash is on either."""
    keys, found = [Blinder() for _ in range(M)], set()
    for first, *others in itertools.permutations(keys):
        elements = first.blind(ids)
        for key in others:
            elements = key.blind_again(elements, "somebody")
        found.add((elements, shortened(elements, 10)))
    assert len(found) == 1
    assert len(set(separate(found.pop()[1], 10))) == len(ids)


def test_other_keys_give_other_points():
    assert Blinder().blind(["7"]) != Blinder().blind(["7"])


def is_on_curve(point: bytes) -> bool:
    """By Euler's criterion: u^3 + 486662 u^2 + u is a square for a point of the curve, not for one of its twist."""
    p = 2**255 - 19
    u = int.from_bytes(point, "little") % 2**255
    return pow(u**3 + 486662 * u**2 + u, (p - 1) // 2, p) == 1


def test_a_blinded_id_tells_one_bit_of_its_hash():
    """The one thing that docs/alignment.md says it tells: whether the hash is on the curve or on its twist."""
    ids, one, two = [str(i) for i in range(200)], Blinder(), Blinder()
    once = separate(one.blind(ids), POINT)
    again = separate(two.blind_again(two.blind(ids), "two"), POINT)
    assert [is_on_curve(point) for point in once] == [is_on_curve(point) for point in again]
    assert 60 < sum(map(is_on_curve, once)) < 140


@given(ids=st.integers(1, 1 << 40))
def test_a_short_hash_is_as_long_as_it_must_be(ids):
    size = short_size(ids)
    assert ids * ids * 2.0 ** (-8 * size) <= 2.0**-FALSE_MATCH_BITS < ids * ids * 2.0 ** (-8 * (size - 1))


@pytest.mark.parametrize(("ids", "size"), [(1, 5), (2, 6), (20_000, 9), (200_000, 10), (2_000_000, 11)])
def test_sizes_of_short_hashes(ids, size):
    assert short_size(ids) == size


def test_no_false_match_among_many():
    """Different ids that went through the keys of two parties; only what both have matches."""
    one, two = [f"a{i}" for i in range(3000)], [f"b{i}" for i in range(3000)]
    result, _ = aligned([*one, "x"], [*two, "x"])
    assert result.common == 1
    assert math.comb(6002, 2) * 2.0 ** (-8 * short_size(6002)) < 2.0**-FALSE_MATCH_BITS


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
    return Blinded(**{**values, "size": POINT, "elements": bytes(module.PART * POINT + SEAL), **changes})


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


SHORT = short_size(sum(SIZES))


@pytest.mark.parametrize(
    "change",
    [
        {"parts": 3},
        {"spelling": Spelling.INTEGER},
        {"elements": bytes(SHORT)},
        {"elements": bytes(SHORT * module.PART - 1)},
        {"size": POINT, "elements": bytes(POINT * module.PART)},
        {"size": SHORT - 1, "elements": bytes((SHORT - 1) * module.PART)},
    ],
)
def test_what_comes_back_changed_is_refused(change):
    server = AlignmentServer(("hospital", "bank"), SIZES)
    sent = good()
    ((receiver, passed),) = server.receive(sent)
    assert (receiver, passed.m) == (2, 0)
    answer = {"m": 2, "hops": 2, "size": SHORT, "elements": bytes(SHORT * module.PART), **change}
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
        Gone(1, 2, b"\0"),
        Blinded(0, 1, 1, 0, 1, Spelling.TEXT, POINT, b""),
        Blinded(2, 2, 1, 0, 1, Spelling.TEXT, POINT, b""),
        Blinded(0, 2, 2, 0, 1, Spelling.TEXT, POINT, b""),
        Blinded(0, 2, 1, 0, 2, Spelling.TEXT, POINT, b""),
        Blinded(0, 3, 1, 0, 1, Spelling.TEXT, POINT, b""),
    ],
)
def test_a_party_refuses_what_it_does_not_expect(message):
    with pytest.raises(RemoteProtocolError, match="party 1"):
        party(1, ["a", "b"], [2, 4]).receive(message)


def passed(ids: bytes, secrets, written=Spelling.TEXT, part=0) -> Blinded:
    """Blinded ids as the second of two parties would pass them on through the server."""
    sealed = Sealing(secrets[2], NAMES[:2], "rows").seal_bytes(1, ids, module._about(2, 1, part, 1, Spelling.TEXT))
    return Blinded(0, 2, 1, part, 1, written, POINT, sealed)


def test_ids_that_the_server_makes_up_are_not_blinded():
    """A server that could have any ids blinded would find out those of a party by guessing."""
    secrets, guesses = session_secrets(2), Blinder().blind([str(i) for i in range(5)])
    asked = party(1, ["1", "2"], [2, 5], secrets)
    forged = session_secrets(2)
    for message in (Blinded(0, 2, 1, 0, 1, Spelling.TEXT, POINT, guesses), passed(guesses, forged)):
        with pytest.raises(RemoteProtocolError, match="bank: part 0 of blinded ids does not open"):
            asked.receive(message)
    assert asked.receive(passed(guesses, secrets))


@pytest.mark.parametrize("ids", [0, 4, 6, 5000])
def test_no_more_ids_are_blinded_than_were_announced(ids):
    secrets = session_secrets(2)
    guesses = bytes(POINT * ids)
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
        message = Blinded(0, 2, 1, 0, 1, Spelling.TEXT, POINT, sealed)
        if fine:
            assert len(asked.receive(message)) == 1
        else:
            with pytest.raises(RemoteProtocolError, match="party 1: a Blinded that the alignment does not expect"):
                asked.receive(message)


def test_how_ids_are_written_is_sealed_with_them():
    secrets = session_secrets(2)
    with pytest.raises(RemoteProtocolError, match="does not open"):
        party(1, ["1"], [1, 1], secrets).receive(passed(Blinder().blind(["1"]), secrets, Spelling.INTEGER))


SMALL_ORDER = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2**255 - 20,
    2**255 - 19,
    2**255 - 18,
)


@pytest.mark.parametrize("u", SMALL_ORDER)
@pytest.mark.parametrize("top", [0, 1 << 255])
def test_a_point_of_small_order_is_blamed_on_who_sent_it(u, top):
    """Under any key it becomes zero: it would match whatever another sends of the kind."""
    secrets, bad = session_secrets(2), (u + top).to_bytes(POINT, "little")
    with pytest.raises(RemoteProtocolError, match=r"^bank: a blinded id is a point of small order$"):
        party(1, ["a"], [1, 2], secrets).receive(passed(Blinder().blind(["1"]) + bad, secrets))


def test_a_party_is_not_told_another_number_of_its_own_ids():
    with pytest.raises(RemoteProtocolError, match="hospital: has 1 ids"):
        party(1, ["a"], [2, 1])
