"""A party's gRPC carrier: one stream to the server, made again when it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable

from cvfl.errors import CvflError, ExhaustedError, RemoteProtocolError, plain
from cvfl.runtime.bytequeue import ByteQueue
from cvfl.runtime.carrier import PartyEnd, Turn, refusal
from cvfl.runtime.grpc.channel import MAX_FRAME, METHOD, SERVICE, Identity, check_insecure, grpc, options

OnWait = Callable[[str, float], None]
"""(why there is no connection, for how many seconds)"""
_FINAL = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_UP = "up"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SHORTEST_CONNECT, _LONGEST_CONNECT = 1.0, 60.0
"""Seconds until an attempt to connect, with its handshake, counts as failed: beside a flood of connections a party has
to wait for its turn, and who gives up goes back to the end of the queue."""


def attend(
    role: PartyEnd,
    address: str,
    identity: Identity | None,
    on_wait: OnWait = lambda why, seconds: None,
    wait_limit: float = 3600.0,
    max_frame: int = MAX_FRAME,
    on_round: Callable[[], None] = lambda: None,
    turn: Turn | None = None,
) -> None:
    """Take part in a federation until it ends; a connection that breaks is made again until `wait_limit` is over.

    By `turn` other threads say something on the connection, too.
    """
    turn = turn or Turn()
    if identity is None:
        check_insecure(address)
    pause, lost = _FIRST_PAUSE, time.monotonic()

    def heard() -> None:
        nonlocal pause, lost
        pause, lost = _FIRST_PAUSE, time.monotonic()
        on_round()

    while not role.done:
        try:
            with _channel(address, identity, max_frame, wait_limit - (time.monotonic() - lost)) as channel:
                _session(role, channel, heard, turn)
            why = "the server ended the connection"
        except grpc.RpcError as error:
            if error.code() in _FINAL:
                raise RemoteProtocolError(f"{role.name}: refused by {address}: {plain(str(error.details()))}") from None
            why = plain(f"{error.code().name.lower().replace('_', ' ')}: {error.details()}".splitlines()[0])
        if role.refused is not None:
            raise RemoteProtocolError(f"{role.name}: the server stopped: {plain(role.refused)}")
        if role.done:
            return
        waited = time.monotonic() - lost
        if waited > wait_limit:
            raise RemoteProtocolError(f"{role.name}: no server at {address} for {waited:.0f} s ({why})")
        on_wait(why, waited)
        time.sleep(min(pause, wait_limit - waited))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _session(role: PartyEnd, channel: grpc.Channel, heard: Callable[[], None], turn: Turn) -> None:
    """One stream from its start to its end; `heard` is called whenever the server said something."""
    outbox: ByteQueue[bytes | None] = ByteQueue()
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
    call.add_callback(outbox.close)
    try:
        with turn.taken():
            outbox.put(_UP, role.hello())
            turn.connected(lambda frame: outbox.put(_UP, frame, len(frame) if frame is not None else None))
        for frame in call:
            with turn.taken():
                for reply in role.receive(frame):
                    outbox.put(_UP, reply, len(reply))
            heard()
            if role.done or role.refused is not None:
                break
    except ExhaustedError:
        raise  # it comes back and goes on: nothing that the others need to hear
    except CvflError as error:
        # What went wrong here is this party's own business: the others hear that, not what.
        outbox.put(_UP, refusal(error))
        raise
    finally:
        turn.connected(None)
        outbox.put(_UP, None)
        _drain(call)


def _drain(call: grpc.Call) -> None:
    """Let what is on its way arrive, for a moment, then let go."""
    deadline = time.monotonic() + 2.0
    while call.is_active() and time.monotonic() < deadline:
        time.sleep(0.01)
    call.cancel()


def _channel(address: str, identity: Identity | None, max_frame: int, seconds: float) -> grpc.Channel:
    """A channel that gives up to connect when `seconds` are over, so that patience counts also for a silent peer."""
    connect = min(max(seconds, _SHORTEST_CONNECT), _LONGEST_CONNECT)
    # By its name it is about pauses between attempts; gRPC takes it for the time that one attempt has, too.
    chosen = [*options(max_frame), ("grpc.min_reconnect_backoff_ms", int(1000 * connect))]
    if identity is None:
        return grpc.insecure_channel(address, chosen)
    return grpc.secure_channel(address, identity.for_party(), chosen)
