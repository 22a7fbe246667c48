"""docs/threat-model.md says what arrives at each role in every mode; captured frames say the same.

And with private labels nothing that a party hears depends on them but gradients.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases import SECURE, settings
from conformance.loop import Loop
from cvfl.privacy.seen import MODES as SEEN
from cvfl.protocol import Labels
from cvfl.wire import decode, encode
from cvfl.wire.control import CONTROL, Complete, decode_control
from cvfl.wire.frame import kind_of
from cvfl.wire.message import GRADIENT, KINDS, SLOPED
from cvfl.wire.read import read_frame

pytestmark = pytest.mark.usefixtures("tidy")
PAGE = Path(__file__).parents[2].joinpath("docs", "threat-model.md").read_text(encoding="utf-8")
HOLDER = "bank"
WINE: dict[str, Any] = {"data": {"name": "wine", "parties": 3}, "local_iterations": 2, "rounds": 3, "evaluate_every": 1}
MODES: dict[str, dict[str, Any]] = {
    "open": {},
    "folded": {"folding": True},
    "labels at the server": {"privacy": {"labels": "server"}},
    "labels at a party": {"privacy": {"labels": HOLDER}},
    "labels told": {"privacy": {"labels": HOLDER, "label_epsilon": 1.0}},
    "labels told, private model": {"privacy": {"labels": HOLDER, "label_epsilon": 1.0, "private_model": True}},
    "secure": SECURE,
    "secure, labels at the server": SECURE | {"privacy": {"aggregation": "secure", "labels": "server"}},
    "secure, labels at a party": SECURE | {"privacy": {"aggregation": "secure", "labels": HOLDER}},
}
Frames = dict[str, list[bytes]]


def captured(loop: Loop) -> Frames:
    """Every frame that reaches a role, from now on."""
    heard: Frames = defaultdict(list)

    def listen(name: str, role: Any) -> None:
        receive = role.receive

        def spy(*given: Any) -> Any:
            heard[name].append(bytes(given[-1]))
            return receive(*given)

        role.receive = spy

    listen("server", loop.server.role)
    for name, party in loop.parties.items():
        listen(name, party.role)
    return heard


def messages(frames: list[bytes]) -> set[str]:
    """The messages of rounds among these frames."""
    return {type(decode(frame)).__name__ for frame in frames if kind_of(frame) in KINDS}


def table() -> dict[str, list[set[str]]]:
    """What the page says: for every mode what the server, a party and the party with the labels get."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 6]
    return {row[0].strip(): [set(re.findall(r"`(\w+)`", cell)) for cell in row[2:]] for row in rows[1:]}


def test_the_page_has_every_mode() -> None:
    assert list(table()) == list(MODES)


def test_owners_are_shown_the_table_of_the_page() -> None:
    """What `cvfl party --approve` shows is made of the same table."""
    shown = {mode: [set(seen.server), set(seen.party), set(seen.holder)] for mode, seen in SEEN.items()}
    assert shown == table()


@pytest.mark.parametrize("mode", MODES)
def test_captured_frames_are_those_of_the_page(mode: str, tmp_path: Path) -> None:
    loop = Loop(settings(**WINE | MODES[mode]), tmp_path)
    heard = captured(loop)
    loop.run()
    server, party, holder = table()[mode]
    assert messages(heard["server"]) == server
    for name in loop.names:
        assert messages(heard[name]) == (holder or party if name == HOLDER else party)


@pytest.mark.parametrize("mode", ["open", "labels at a party", "secure"])
def test_what_parties_tell_the_server_at_the_end(mode: str, tmp_path: Path) -> None:
    """Hashes of their models and an error for each evaluated round; no other party hears either."""
    assert "every party sends `Complete`" in " ".join(PAGE.split())
    loop = Loop(settings(**WINE | MODES[mode]), tmp_path)
    heard = captured(loop)
    loop.run()
    control = [decode_control(frame)[1] for frame in heard["server"] if kind_of(frame) == CONTROL]
    told = [message for message in control if isinstance(message, Complete)]
    assert len(told) == len(loop.names)
    for one in told:
        assert Complete.model_fields.keys() == {"type", "session", "rounds", "parameters", "errors", "certificates"}
        assert all(re.fullmatch("[0-9a-f]{64}", value) for value in one.parameters.values())
        assert [t0 for t0, *_ in one.errors if t0 < one.rounds] == list(range(one.rounds))
    for name in loop.names:
        said = [decode_control(frame)[1] for frame in heard[name] if kind_of(frame) == CONTROL]
        assert not any(isinstance(message, Complete) for message in said)


def test_what_parties_tell_of_their_certificates(tmp_path: Path) -> None:
    """Three figures for each evaluated round, and the server alone hears them."""
    assert "its certificate: three numbers" in " ".join(PAGE.split())
    loop = Loop(settings(**WINE | {"compressor": "auto"}), tmp_path)
    heard = captured(loop)
    loop.run()
    told = [message for frame in heard["server"] if isinstance(message := read_frame(frame), Complete)]
    assert len(told) == len(loop.names)
    for one in told:
        assert [len(figures) for figures in one.certificates] == [4] * one.rounds
    for name in loop.names:
        assert not any(isinstance(read_frame(frame), Complete) for frame in heard[name])


@pytest.mark.parametrize("mode", ["open", "labels at the server", "secure", "secure, labels at the server"])
def test_only_private_labels_keep_labels_from_parties(mode: str, tmp_path: Path) -> None:
    loop = Loop(settings(**WINE | MODES[mode]), tmp_path)
    while any(party.role.party is None for party in loop.parties.values()):
        loop.step()
    private = "labels" in mode
    assert all((party.role.party.holding.labels is None) == private for party in loop.parties.values())  # type: ignore[union-attr]
    loop.run()


class Told:
    """A run whose gradients to parties can be taken from another run."""

    def __init__(self, config: Any, folder: Path, flipped: bool, gradients: Frames | None = None) -> None:
        self.loop = Loop(config, folder)
        if flipped:
            rows: Any = self.loop.server.role.rows
            known = rows._labels
            rows._labels = Labels(*(known_of.flip(0) for known_of in (known.train, known.test, known.validation)))
        self.gradients: Frames = defaultdict(list)
        for name, party in self.loop.parties.items():
            self._overhear(name, party.role, list(gradients[name]) if gradients else None)
        self.heard = captured(self.loop)
        self.loop.run()

    def _overhear(self, name: str, role: Any, instead: list[bytes] | None) -> None:
        receive = role.receive

        def spy(frame: bytes) -> Any:
            if kind_of(frame) in (GRADIENT, SLOPED):
                self.gradients[name].append(bytes(frame))
                frame = instead.pop(0) if instead is not None else frame
            return receive(frame)

        role.receive = spy

    def others(self, role: str) -> list[Any]:
        """What the role heard besides gradients; what names the run, and keys of the session, are left out."""
        return [
            _plain(frame) if kind_of(frame) == CONTROL else frame
            for frame in self.heard[role]
            if kind_of(frame) not in (GRADIENT, SLOPED)
        ]


def _plain(frame: bytes) -> Any:
    said = json.loads(decode_control(frame)[1].model_dump_json())  # type: ignore[union-attr]
    return {key: value for key, value in said.items() if key not in ("run", "key", "keys")}


@pytest.mark.parametrize("server_model", [{"name": "linear"}, {"name": "mlp", "hidden": [5]}])
def test_nothing_that_a_party_hears_depends_on_labels_but_gradients(
    server_model: dict[str, Any], tmp_path: Path
) -> None:
    """Two servers with other labels; the second run's parties are given the first one's gradients.

    Then all else that a party hears is the same byte for byte, and so is all that parties send: labels reach a party
    by the declared message alone.
    """
    config = settings(**WINE | {"server_model": server_model, "privacy": {"labels": "server"}})
    one = Told(config, tmp_path / "one", flipped=False)
    two = Told(config, tmp_path / "two", flipped=True, gradients=one.gradients)
    for name in one.loop.names:
        assert one.others(name) == two.others(name)
        assert one.gradients[name] != two.gradients[name]  # labels do matter, and the test would notice
    assert one.others("server") == two.others("server")


def test_the_first_masked_packets_say_nothing_of_the_columns(tmp_path: Path) -> None:
    """Everything that the server gets before it answers is uniform under secure aggregation: no byte repeats a run."""
    config = settings(**WINE | SECURE)
    runs = []
    for name in ("one", "two"):
        loop = Loop(config, tmp_path / name)
        heard = captured(loop)
        loop.run()
        runs.append([decode(frame) for frame in heard["server"] if kind_of(frame) in KINDS])
    for one, two in zip(*runs, strict=True):
        packets = [torch.frombuffer(bytearray(message.packet), dtype=torch.uint8) for message in (one, two)]  # type: ignore[union-attr]
        masked = [packet[4:] for packet in packets]  # behind its header
        assert len(masked[0]) == len(masked[1])
        assert float((masked[0] == masked[1]).float().mean()) < 0.2
    assert all(encode(one)[:7] == encode(two)[:7] for one, two in zip(*runs, strict=True))
