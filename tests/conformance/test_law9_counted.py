"""Law 9: everything is counted. summary.json says what TCP carried, but for what HTTP/2 and TLS add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import AUTO, settings, table_settings, write_tables
from conformance.network import Proxy
from conformance.threads import Threads, threads
from cvfl.runtime.meter import Meter
from cvfl.types import Direction
from cvfl.wire import Bytes
from cvfl.wire.control import CONTROL, TARGETS
from cvfl.wire.message import KINDS, PASSED
from cvfl.wire.purpose import PURPOSES
from cvfl.wire.setup import BLINDED, MATCHED

pytestmark = pytest.mark.usefixtures("tidy")
A_MESSAGE = {True: 75, False: 45}
"""Most that a message is longer inside TCP, with TLS and without: a frame of HTTP/2 and gRPC's prefix (14), two window
updates (26), a record of TLS (22), and now and then a record more."""
A_CONNECTION = {True: 8_000, False: 1_500}
"""Most that a connection takes: the handshake of TLS with two certificates, settings, headers, pings."""


class Frames(Meter):
    """A meter that also knows how many frames it counted."""

    frames = 0

    def add(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count the frame, and that it is one."""
        self.frames += 1
        super().add(m, direction, frame)


def test_every_kind_of_frame_has_a_purpose() -> None:
    assert PURPOSES.keys() == {*KINDS, BLINDED, MATCHED, CONTROL, TARGETS} - {PASSED}


@pytest.mark.parametrize("secure", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["TLS", "plain"])
@pytest.mark.parametrize("case", ["auto", "none", "tables"])
def test_tcp_carries_what_is_counted(case: str, secure: bool, tmp_path: Path) -> None:
    if case == "tables":
        write_tables(tmp_path)
        config = table_settings(tmp_path, **AUTO | {"batch_size": 16, "rounds": 30})
    else:
        compressor = "identity" if case == "none" else "auto"
        more: dict[str, Any] = {"compressor": compressor, "server_compressor": compressor}
        config = settings(data={"name": "wine", "parties": 3}, rounds=60, **more)
    with threads(config, tmp_path, secure=secure) as federation:
        proxy = Proxy(federation.address)
        federation.address = proxy.address
        counted = federation.server.role.rounds.meter = Frames()
        federation.start_all()
        federation.outcome()
        compared(federation, proxy, counted)


def compared(federation: Threads, proxy: Proxy, counted: Frames) -> None:
    """The total of summary.json is at most what TCP carried, and nearly all of it."""
    summary = json.loads((federation.folder / "run" / "summary.json").read_text())
    assert summary["sent_again"] == 0
    total, carried = summary["bytes"]["total"], proxy.up.bytes + proxy.down.bytes
    more, secure = carried - total, federation.secure
    print(
        f"{'TLS' if secure else 'plain'}: {total:,} bytes in {counted.frames:,} frames; TCP carried {carried:,} on "
        f"{proxy.connections} connections, {more / counted.frames:.1f} more a frame"
    )
    least = 14 * counted.frames
    assert least < more < A_MESSAGE[secure] * counted.frames + A_CONNECTION[secure] * proxy.connections
