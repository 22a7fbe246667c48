"""Who may take part: a hello is held against the server's own terms, and against what both have kept of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cvfl.errors import RemoteProtocolError
from cvfl.runtime.carrier import TermsError
from cvfl.wire.control import PROTOCOL, Hello

_ADVICE = "give back the --state that is missing, or begin anew with --restart at every role"
_LONGEST = 200


class Kept(NamedTuple):
    """The rounds of a run that a role can go back to."""

    run: str
    rounds: Sequence[int]

    @property
    def newest(self) -> int:
        """0 is the start, for which nothing needs to be kept."""
        return max(self.rounds, default=0)


def admitted(hello: Hello, name: str | None, names: Sequence[str], terms: Mapping[str, Any]) -> int:
    """Which party it is; refused if it is none, or was told other terms. `name` is whom the connection vouches for."""
    if hello.protocol != PROTOCOL:
        raise RemoteProtocolError(f"{hello.name} speaks version {hello.protocol}, the server version {PROTOCOL}")
    if name is not None and hello.name != name:
        raise RemoteProtocolError(f"the certificate is for {name!r}, but the party says that it is {hello.name!r}")
    if hello.name not in names:
        raise RemoteProtocolError(f"{hello.name!r} is no party of this federation ({', '.join(names)})")
    for key in sorted(terms.keys() | hello.terms.keys()):
        ours, theirs = terms.get(key), hello.terms.get(key)
        if ours != theirs:
            raise TermsError(f"{key} differs: {hello.name} has {_shortened(theirs)}, the server {_shortened(ours)}")
    return names.index(hello.name) + 1


def check_kept(name: str, theirs: Kept, ours: Kept, every: int) -> None:
    """A run that is under way goes on with what everyone has kept of it: nobody gives it up for another's sake.

    To lose no more than lies between two checkpoints is what any crash may cost.
    """
    shared = theirs.run == ours.run and set(theirs.rounds) & set(ours.rounds)
    if not shared and max(theirs.newest, ours.newest) > every:
        said = [f"round {one.newest}" if one.rounds else "nothing" for one in (theirs, ours)]
        raise RemoteProtocolError(f"{name} has kept {said[0]} and the server {said[1]}, and not of one run; {_ADVICE}")


def common_round(ours: Kept, theirs: Sequence[Kept], every: int) -> int:
    """The newest round that all have kept; none is given up because they have none in common."""
    of_run = [set(one.rounds) for one in theirs if one.run == ours.run]
    common = set(ours.rounds).intersection(*of_run) if len(of_run) == len(theirs) else set()
    if not common and ours.newest > every:
        raise RemoteProtocolError(f"the server has kept round {ours.newest}, and no round that all have; {_ADVICE}")
    return max(common, default=0)


def _shortened(value: Any) -> str:
    """What a role said, in a line."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
