"""All roles in one thread, with faults at any frame."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from conformance.cases import SERVER
from conformance.outcome import Outcome, lines, of_parties, written
from cvfl.config.schema import RunConfig
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.federation.rows.load import federation_names
from cvfl.federation.start import Start

opened: list[ExitStack] = []
"""Tables of loops, for a test to close whatever happened."""


class Loop:
    """All roles in one thread. A fault may strike before any frame; links between roles are first in, first out.

    A party's events wait in `up` (to the server: hello, frame, left) and `down` (from it). `link` counts a party's
    connections; `present` is who the server believes to be here, by which connection.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        order: random.Random | None = None,
        earlier: Callable[[str], Start | None] = lambda role: None,
    ) -> None:
        self.config, self.folder, self.order = config, folder, order
        self.earlier = earlier
        """What a role starts from, whenever it is started."""
        self.restart = False
        self.names = federation_names(config)
        self.stack = ExitStack()
        opened.append(self.stack)
        self.up: dict[str, deque[tuple[str, bytes]]] = {name: deque() for name in self.names}
        self.down: dict[str, deque[bytes]] = {name: deque() for name in self.names}
        self.link = dict.fromkeys(self.names, 0)
        self.present: dict[str, tuple[int, int]] = {}
        self.parties: dict[str, PartyRun] = {}
        self.delivered = 0
        self.start(SERVER)
        for name in self.names:
            self.start(name)

    def start(self, role: str) -> None:
        """Start a role in a fresh memory, with what is in its folder."""
        if role == SERVER:
            if self.parties:
                self.server.close()
            self.server: ServerRun = ServerRun(
                self.config, "test", self.folder / SERVER, restart=self.restart, start=self.earlier(SERVER)
            )
            self.present.clear()
            for name in self.names:
                self.up[name].clear()
                if name in self.parties:
                    self._call(name)
            return
        if role in self.parties:
            self.parties[role].close()
        self.parties[role] = PartyRun(
            self.config, role, self.folder / role, self.stack, restart=self.restart, start=self.earlier(role)
        )
        self._call(role)

    def _call(self, name: str) -> None:
        self.down[name].clear()
        self.link[name] += 1
        if not self.parties[name].role.done:
            self.up[name].append(("hello", self.parties[name].role.hello()))

    def cut(self, name: str, lost: bool = True) -> None:
        """Break a party's connection: what was on its way is lost; it calls again."""
        if lost:
            while self.up[name] and self.up[name][-1][0] == "frame":
                self.up[name].pop()
        if self.up[name] and self.up[name][-1][0] == "hello":
            self.up[name].pop()
        else:
            self.up[name].append(("left", b""))
        self._call(name)

    def kill(self, role: str) -> None:
        """End a role as kill -9 does, and start it again."""
        if role == SERVER:
            self.start(SERVER)
        else:
            self.cut(role)
            if self.up[role] and self.up[role][-1][0] == "hello":
                self.up[role].pop()  # the call of the one that is no more
            self.start(role)

    def kill_all(self) -> None:
        """End all roles, and start them again."""
        for role in (*self.names, SERVER):
            self.kill(role)

    def restart_all(self) -> None:
        """End all roles, and start them with --restart."""
        self.restart = True
        self.kill_all()
        self.restart = False

    def state(self, role: str) -> Path:
        """Where a role has its state now."""
        return (self.server if role == SERVER else self.parties[role]).state.path

    def kept(self, role: str) -> list[int]:
        """The rounds that a role can go back to."""
        return (self.server if role == SERVER else self.parties[role]).role.rounds.kept()

    def close(self) -> None:
        """Let other roles have the state."""
        self.server.close()
        for run in self.parties.values():
            run.close()

    @property
    def over(self) -> bool:
        """Whether every role has ended."""
        return self.server.role.done and all(party.role.done for party in self.parties.values())

    def step(self) -> None:
        """Deliver one frame."""
        ready = [(self.down, name) for name in self.names if self.down[name]]
        ready += [(self.up, name) for name in self.names if self.up[name]]
        assert ready, f"nothing is under way after {self.delivered} frames, and the run is not over"
        queues, name = self.order.choice(ready) if self.order else ready[0]
        event = queues[name].popleft()
        self.delivered += 1
        if queues is self.down:
            for reply in self.parties[name].role.receive(event):
                self.up[name].append(("frame", reply))
        else:
            self._serve(name, *event)

    def _serve(self, name: str, kind: str, frame: bytes) -> None:
        role = self.server.role
        match kind:
            case "left":
                if name in self.present:
                    role.leave(self.present.pop(name)[0])
                return
            case "hello":
                m, replies = role.join(frame, name)
                self.present[name] = m, self.link[name]
            case _ if name in self.present:
                replies = role.receive(self.present[name][0], frame)
            case _:
                return
        for m, reply in [*replies, *role.work()]:
            receiver = self.names[m - 1]
            if self.present.get(receiver) == (m, self.link[receiver]):  # else it goes nowhere
                self.down[receiver].append(reply)

    def run(self, faults: Mapping[int, Callable[[Loop], None]] | None = None, at_most: int = 20_000) -> Outcome:
        """Run to the end; `faults` strike before the frames of these numbers."""
        todo = dict(faults or {})
        while not self.over or self.delivered in todo:
            if fault := todo.pop(self.delivered, None):
                fault(self)
                continue
            self.step()
            assert self.delivered < at_most, "the run does not end"
        return self.outcome()

    def outcome(self) -> Outcome:
        """End all roles as the commands do; the server hears first that all have heard of the end."""
        while any(self.up.values()):
            self.step()
        with self.stack:
            result = self.server.finish(self.folder / "run")
            assert written(self.folder / "run" / "metrics.jsonl") == lines(result.history)
            for party in self.parties.values():
                party.finish(self.folder / "models")
            return Outcome.of(result, **of_parties(self.folder / "models"))
