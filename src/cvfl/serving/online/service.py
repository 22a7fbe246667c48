"""Serving as processes do it: every role goes on until it is stopped, and begins anew when the others made it stop.

A role whose own files are wrong ends with a line when it starts. Once it serves, nothing that others do ends it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.errors import CvflError, ExhaustedError
from cvfl.runs.witness import ServingRecorder
from cvfl.runtime.carrier import Turn
from cvfl.runtime.grpc.channel import Identity
from cvfl.runtime.grpc.party import attend
from cvfl.runtime.grpc.server import FederationServer
from cvfl.runtime.observed import ObservedServer
from cvfl.scratch import Scratch
from cvfl.serving.online.desk import Desk
from cvfl.serving.online.kept import Kept
from cvfl.serving.online.roles import ServingEnd, ServingRows, party_role, server_role
from cvfl.serving.online.scoring import Scoring
from cvfl.serving.online.stock import PartyStock, Watch

OnEvent = Callable[..., None]
ROUND_LIMIT = 30.0
"""Seconds after which a party that owes an answer counts as gone."""
_PAUSE, _LONGEST = 1.0, 60.0
"""Seconds before a role begins anew: at first, and at most."""
_SWITCH = 0.0005
"""Seconds after which a thread that works lets one go on that has something to pass on; Python's own are 5 ms."""


def serve_party(
    stock: PartyStock,
    state: Path,
    recorder: ServingRecorder,
    identity: Identity | None,
    on_event: OnEvent,
    turn: Turn | None = None,
    desk: Desk | None = None,
    over: threading.Event | None = None,
    look_every: float = 1.0,
) -> None:
    """Serve a party's rows; with a desk it is the party of the door. It ends when `over` is set, or never."""
    turn, network, ends = turn or Turn(), stock.config.network, over or threading.Event()
    current: ServingEnd | None = None
    recorder.tell = lambda why: on_event("log", why=why)
    if desk is not None:
        desk.recorder = recorder

    def news(lines: list[str]) -> None:
        for line in lines:
            on_event(line)
        end = current  # another thread may set it to None
        if end is not None and isinstance(rows := end.role.rows, ServingRows):
            try:
                turn.say(lambda: end.tell(rows.news()))
            except CvflError as error:  # the connection has ended by it: what is new is said on the next one
                on_event("not said", why=str(error))

    def once() -> None:
        nonlocal current
        with Scratch() as folder:
            role = party_role(stock, folder.path, state, identity, desk)
            current = end = ServingEnd(role, [recorder] if desk is None else [recorder, desk.sizes])
            if desk is not None:
                desk.end = end
            said = {"here": False}

            def heard() -> None:
                if desk is not None:
                    desk.heard()
                if (role.party is not None) != said["here"]:
                    said["here"] = not said["here"]
                    on_event("serving" if said["here"] else "waiting for the others")

            def waits(why: str, seconds: float) -> None:
                end.lost()
                if desk is not None:
                    desk.gone()
                if seconds < 1 or said["here"]:
                    on_event("waiting", who=f"the server at {network.address}", why=why)
                said["here"] = False
                role.done = ends.is_set()

            try:
                attend(end, network.address, identity, waits, float("inf"), network.max_frame_mb << 20, heard, turn)
            finally:
                current = None
                if desk is not None:
                    desk.gone()
                end.lost()

    with Watch(stock.look, news, look_every, stock.over):
        _again_and_again(once, recorder, on_event, ends)


def serve_server(
    config: RunConfig,
    scoring: Kept[Scoring] | None,
    look: Callable[[], list[str]] | None,
    recorder: ServingRecorder,
    identity: Identity | None,
    on_event: OnEvent,
) -> None:
    """Serve as the server of a federation, until the process is stopped."""
    network = config.network
    recorder.tell = lambda why: on_event("log", why=why)

    def once() -> None:
        with Scratch() as folder:
            end = ObservedServer(server_role(config, scoring, folder.path), [recorder])
            limit = min(network.round_limit, ROUND_LIMIT)
            most = network.max_frame_mb << 20
            carrier = FederationServer(
                end, network.address, identity, "wait", float("inf"), most, limit, on_event, at_once=True
            )
            host = network.address.rpartition(":")[0]
            on_event("listening", address=f"{host}:{carrier.port}", parties=", ".join(end.names))
            said: list[list[str]] = []

            def waits(missing: list[str], seconds: float) -> None:
                if not said or said[-1] != missing:
                    said.append(missing)
                    on_event("waiting", who=", ".join(missing))

            try:
                carrier.run(waits)
            except CvflError:
                for m, name in enumerate(end.names, 1):
                    if name not in end.missing:
                        recorder.here(m, False)
                raise

    with _watched(look, on_event):
        _again_and_again(once, recorder, on_event, threading.Event())


@contextmanager
def _watched(look: Callable[[], list[str]] | None, on_event: OnEvent) -> Iterator[None]:
    if look is None:
        yield
        return

    def news(lines: list[str]) -> None:
        for line in lines:
            on_event(line)

    with Watch(look, news):
        yield


def _again_and_again(
    once: Callable[[], Any], recorder: ServingRecorder, on_event: OnEvent, over: threading.Event
) -> None:
    """Begin anew whenever it fails, later each time, until it has gone well for as long as the longest pause.

    The log has a line when the reason is another: neither a server nor a disk fills it by the same trouble.
    """
    sys.setswitchinterval(_SWITCH)
    why, pause = "", _PAUSE
    while not over.is_set():
        began = time.monotonic()
        try:
            once()
        except ExhaustedError:
            raise
        except CvflError as error:
            if over.is_set():
                return
            if time.monotonic() - began > _LONGEST:
                why, pause = "", _PAUSE
            new, why = str(error) != why, str(error)
            on_event("again", why=why)
            _write(recorder.again if new or recorder.failed else recorder.flush, over)
            over.wait(pause)
            pause = min(2 * pause, _LONGEST)


def _write(write: Callable[[], None], over: threading.Event) -> None:
    """Write to the log, and try again until it can be done."""
    while not over.is_set():
        try:
            write()
            return
        except CvflError:  # the log itself tells
            over.wait(_PAUSE)
