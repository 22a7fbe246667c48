"""docs/adding-a-transport.md works as printed: its transport passes the conformance suite, cut connections included."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import NAMED, settings, table_settings, write_tables
from conformance.outcome import Outcome, in_process, of_parties, same
from conformance.peers import until
from cvfl.config.schema import RunConfig
from cvfl.errors import RemoteProtocolError
from cvfl.federation.rows.load import federation_names

pytestmark = pytest.mark.usefixtures("no_pages")
SLOW = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-transport.md").read_text(encoding="utf-8")
TRANSPORT, USE = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page's code leaves."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(TRANSPORT + USE, "docs/adding-a-transport.md", "exec"), names)
    return names


def trained(page: dict[str, Any], config: RunConfig, folder: Path) -> Outcome:
    result = page["train"](config, federation_names(config), folder)
    return Outcome.of(result, **of_parties(folder / "models"))


def test_it_is_about_sixty_lines() -> None:
    body = TRANSPORT.partition("class Line")[2]
    assert 45 <= sum(bool(line.strip()) for line in body.splitlines()) <= 70


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("lattice", marks=SLOW),
        "auto",
        pytest.param("algorithm 2", marks=SLOW),
        "secure",
        "labels at a party",
    ],
)
def test_the_same_bits_and_bytes(case: str, page: dict[str, Any], tmp_path: Path) -> None:
    config = settings(**NAMED[case])
    same(trained(page, config, tmp_path), in_process(config))


def test_own_tables(page: dict[str, Any], tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = table_settings(tmp_path)
    same(trained(page, config, tmp_path / "roles"), in_process(config))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in range(1, 4))])
def test_connections_that_break_at_any_frame(seed: int, page: dict[str, Any], tmp_path: Path) -> None:
    config = settings(**NAMED["auto"], every=1)
    draw, cuts, handle = random.Random(seed), [0], page["QueueServer"].handle

    def unreliable(server: Any, line: Any, frame: bytes | None) -> None:
        handle(server, line, frame)
        if server.lines and cuts[0] < 5 and draw.random() < 0.1 and not server.role.done:
            cuts[0] += 1
            server.cut(draw.choice(list(server.lines.values())))

    page["QueueServer"].handle = unreliable
    same(trained(page, config, tmp_path), in_process(config))
    assert cuts[0] > 0


def test_a_party_that_stops_ends_the_run_everywhere(page: dict[str, Any], tmp_path: Path) -> None:
    attend, said = page["attend"], dict[str, str]()

    def stops(role: Any, server: Any) -> None:
        receive = role.receive

        def spy(frame: bytes) -> Any:
            if role.name == "bank" and role.party is not None:
                raise RemoteProtocolError("bank: as arranged")
            return receive(frame)

        role.receive = spy
        try:
            attend(role, server)
        except RemoteProtocolError as error:
            said[role.name] = str(error)

    page["attend"] = stops
    with pytest.raises(RemoteProtocolError, match=r"^bank: as arranged$"):
        trained(page, settings(), tmp_path)
    until(lambda: len(said) == 2)
    assert said["bank"] == "bank: as arranged"
    assert said["hospital"] == "hospital: the server stopped: bank: as arranged"
