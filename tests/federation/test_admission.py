"""What roles have kept of a run: where they meet, and what nobody gives up."""

from __future__ import annotations

import pytest

from cvfl.errors import RemoteProtocolError
from cvfl.federation.agreement.admission import Kept, check_kept, common_round

OURS = Kept("ab", [10, 20, 30])


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ([Kept("ab", [10, 20, 30]), Kept("ab", [20, 30, 40])], 30),
        ([Kept("ab", [10, 20, 30]), Kept("ab", [10])], 10),
    ],
)
def test_all_go_back_to_the_newest_round_that_all_have(theirs: list[Kept], expected: int) -> None:
    assert common_round(OURS, theirs, 10) == expected


@pytest.mark.parametrize(
    "theirs",
    [
        [Kept("ab", [10]), Kept("ab", [30])],
        [Kept("ab", [10, 20, 30]), Kept("cd", [10, 20, 30])],
        [Kept("ab", []), Kept("ab", [10, 20, 30])],
    ],
)
def test_rounds_are_not_given_up_because_there_is_none_in_common(theirs: list[Kept]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^the server has kept round 30, and no round that all have; give"):
        common_round(OURS, theirs, 10)


@pytest.mark.parametrize("theirs", [Kept("ab", []), Kept("cd", [10]), Kept("", [])])
def test_no_more_than_an_interval_is_lost(theirs: Kept) -> None:
    """A crash before the first checkpoint costs as much."""
    ours = Kept("ab", [10])
    check_kept("bank", theirs, ours, 10)
    assert common_round(ours, [theirs], 10) == 0


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        (Kept("", []), OURS, "bank has kept nothing and the server round 30"),
        (OURS, Kept("", []), "bank has kept round 30 and the server nothing"),
        (Kept("cd", [10, 20, 30]), OURS, "bank has kept round 30 and the server round 30"),
        (Kept("ab", [15]), OURS, "bank has kept round 15 and the server round 30"),
    ],
)
def test_nobody_takes_part_for_whose_sake_rounds_would_be_lost(theirs: Kept, ours: Kept, said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"^{said}, and not of one run; give back the --state .* --restart"):
        check_kept("bank", theirs, ours, 10)


def test_the_same_run_goes_on() -> None:
    check_kept("bank", Kept("ab", [20, 30, 40]), OURS, 10)
