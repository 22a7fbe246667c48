"""Alignment in one process: the same machines and frames as between organisations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cvfl.privacy import Aligned, AlignmentParty, AlignmentServer
from cvfl.runtime.meter import Meter
from cvfl.types import Direction
from cvfl.wire import Blinded, Setup, decode_setup, encode_setup

OnProgress = Callable[[int, int], None]


def align(
    server: AlignmentServer, parties: Sequence[AlignmentParty], meter: Meter, on_progress: OnProgress = lambda *_: None
) -> Aligned:
    """Run an alignment to its end; `on_progress` gets the parts blinded so far and in all."""
    by_role = {party.m: party for party in parties}
    done, total = 0, len(parties) * sum(party.parts for party in parties)

    def deliver(m: int, messages: Iterable[Setup]) -> None:
        """Carry a party's messages to the server and the answers on, until nothing is left to say."""
        nonlocal done
        for message in messages:
            up = encode_setup(message)
            meter.add(m, Direction.UP, up)
            replies = server.receive(decode_setup(up))
            if isinstance(message, Blinded):
                on_progress(done := done + 1, total)
            for receiver, reply in replies:
                down = encode_setup(reply)
                meter.add(receiver, Direction.DOWN, down)
                deliver(receiver, by_role[receiver].receive(decode_setup(down)))

    for party in parties:
        deliver(party.m, party.start())
    assert server.aligned is not None
    return server.aligned
