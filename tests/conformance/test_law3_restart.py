"""Law 3: kill any role at any moment and start it again; the run continues and ends in the same bits."""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.carriers import (
    SERVER,
    Loop,
    Processes,
    Proxy,
    Puppet,
    in_process,
    opened,
    same,
    settings,
    table_settings,
    threads,
    write_tables,
)
from cvfl.errors import CvflError, DataError
from cvfl.experiments import report
from cvfl.runtime.checkpoint import CheckpointError, Checkpoints
from cvfl.runtime.party_role import refusal
from cvfl.wire.control import End, decode_control

Fault = Callable[[Loop], None]
SHORT: dict[str, Any] = {"rounds": 3, "every": 1}


@pytest.fixture(autouse=True)
def _tidy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures are tested elsewhere; tables are closed."""
    monkeypatch.setattr(report, "write_report", lambda *_: None)
    yield
    while opened:
        opened.pop().close()


def everyone(loop: Loop) -> None:
    for name in loop.names:
        loop.kill(name)
    loop.kill(SERVER)


FAULTS: dict[str, Fault] = {
    "server": lambda loop: loop.kill(SERVER),
    "first party": lambda loop: loop.kill(loop.names[0]),
    "last party": lambda loop: loop.kill(loop.names[-1]),
    "everyone": everyone,
    "connection of the first": lambda loop: loop.cut(loop.names[0]),
    "connection of the last, nothing lost": lambda loop: loop.cut(loop.names[-1], lost=False),
}


@pytest.mark.parametrize("who", ["server", "last party", "everyone"])
def test_a_fault_at_every_frame(who: str, tmp_path: Path) -> None:
    """Frame by frame, from the first hello until after the last role has heard the end."""
    config = settings(**SHORT)
    expected, undisturbed = in_process(config), Loop(config, tmp_path / "undisturbed")
    same(undisturbed.run(), expected)
    assert undisturbed.server.role.sent_again == 0
    again = 0
    for n in range(undisturbed.delivered + 1):
        loop = Loop(config, tmp_path / str(n))
        same(loop.run({n: FAULTS[who]}), expected)
        again += loop.server.role.sent_again
    # A server that was killed cannot know what it sent since its last checkpoint.
    assert again > 0 or who in (SERVER, "everyone")


@pytest.mark.slow
@pytest.mark.parametrize("who", FAULTS)
@pytest.mark.parametrize("case", ["short", "tables", "aligned", "top-k", "nothing held out"])
def test_a_fault_at_every_frame_of_every_kind_of_run(who: str, case: str, tmp_path: Path) -> None:
    write_tables(tmp_path, aligned=case == "aligned")
    config = {
        "short": settings(**SHORT),
        "tables": table_settings(tmp_path, **SHORT),
        "aligned": table_settings(tmp_path, {"alignment": "aligned"}, **SHORT),
        "top-k": settings(compressor="topk:bits=4", server_compressor="topk:bits=16", rounds=5, every=2),
        "nothing held out": settings(data={"name": "wine", "parties": 3, "test_share": 0.0}, **SHORT),
    }[case]
    expected, undisturbed = in_process(config), Loop(config, tmp_path / "undisturbed")
    same(undisturbed.run(), expected)
    for n in range(undisturbed.delivered + 1):
        same(Loop(config, tmp_path / str(n)).run({n: FAULTS[who]}), expected)


def test_faults_while_rows_are_settled(tmp_path: Path) -> None:
    """Private alignment and labels: a fault at every frame before the first round, of all kinds in turn."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, **SHORT)
    expected = in_process(config)
    for n in range(26):
        fault = FAULTS[list(FAULTS)[n % len(FAULTS)]]
        same(Loop(config, tmp_path / str(n)).run({n: fault}), expected)


def test_a_connection_that_breaks_before_the_labels_arrive(tmp_path: Path) -> None:
    """The server has the labels of this alignment, the party not yet: its rows must not be taken as known."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, **SHORT)
    loop = Loop(config, tmp_path / "loop")
    while not (loop.server.desk.sizes() and loop.down["shop"]):
        loop.step()
    loop.cut("shop")
    same(loop.run(), in_process(config))


RESTLESS: dict[str, dict[str, Any]] = {
    "top-k": {"compressor": "topk:bits=4", "server_compressor": "topk:bits=16"},
    "batch norm, dropout, momentum": {
        "party_model": {"name": "conformance.carriers:restless", "width": 4},
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "evaluate_every": 1,
    },
    "algorithm 2, adam": {"algorithm": 2, "local_iterations": 1, "optimizer": {"name": "adam"}},
    "nothing held out": {"data": {"name": "wine", "parties": 2, "test_share": 0.0}},
    "schedule, a checkpoint a round": {"compressor": "schedule(lattice:bits=3)", "every": 1},
    "a checkpoint never": {"every": 100},
}


@pytest.mark.parametrize("case", RESTLESS)
def test_random_faults_and_orders(case: str, tmp_path: Path) -> None:
    """Frames of different parties overtake each other, and several faults strike, also one right after another."""
    config = settings(**RESTLESS[case])
    expected = in_process(config)
    for seed in range(4):
        draw = random.Random(seed)
        at = draw.randrange(60)
        places = [at, at + draw.randrange(1, 4), draw.randrange(60), draw.randrange(60)]
        faults = {n: FAULTS[draw.choice(list(FAULTS))] for n in places}
        same(Loop(config, tmp_path / str(seed), draw).run(faults), expected)


def test_a_frame_that_comes_twice_never_ends_in_other_bits(tmp_path: Path) -> None:
    config = settings(**SHORT)
    expected, count = in_process(config), Loop(config, tmp_path / "count")
    count.run()
    refused = 0
    for n in range(2, count.delivered):
        loop = Loop(config, tmp_path / str(n))

        def twice(loop: Loop) -> None:
            queues = next(q for q in (*loop.down.values(), *loop.up.values()) if q)
            queues.append(queues[-1])

        try:
            same(loop.run({n: twice}), expected)
        except CvflError:
            refused += 1
    assert refused > 0


def middle(config: Any, folder: Path, frames: int = 40) -> Loop:
    loop = Loop(config, folder)
    while loop.delivered < frames:
        loop.step()
    return loop


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("round-*.safetensors"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "one bit": flip,
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"\xff" * 5000),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("role", [SERVER, "bank"])
def test_a_damaged_checkpoint_costs_rounds_and_no_bit(role: str, damage: str, tmp_path: Path) -> None:
    config = settings(rounds=8)
    loop = middle(config, tmp_path, 44)
    whole = Checkpoints(tmp_path / role / "checkpoints").rounds()
    assert len(whole) > 1
    DAMAGE[damage](newest(tmp_path / role))
    (tmp_path / role / "checkpoints" / "round-00000099.partial").write_bytes(b"left over")
    assert Checkpoints(tmp_path / role / "checkpoints").rounds() == whole[:-1]
    everyone(loop)
    same(loop.run(), in_process(config))


@pytest.mark.parametrize("lost", ["setup", "checkpoints", "all"])
@pytest.mark.parametrize("role", [SERVER, "shop"])
def test_a_lost_state_starts_again(role: str, lost: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = table_settings(tmp_path, rounds=4)
    loop = middle(config, tmp_path / "loop", 40)
    shutil.rmtree(tmp_path / "loop" / role if lost == "all" else tmp_path / "loop" / role / lost)
    loop.kill(role)
    same(loop.run(), in_process(config))


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_lines_that_were_lost_are_written_again(keep: int, tmp_path: Path) -> None:
    """A power cut may lose lines of the journal that a checkpoint already counts on."""
    config = settings(rounds=8)
    loop = middle(config, tmp_path, 44)
    journal = tmp_path / SERVER / "metrics.jsonl"
    text = journal.read_text().splitlines(keepends=True)
    assert len(text) > 3
    journal.write_text("".join(text[:keep]) + text[keep][:20])
    everyone(loop)
    same(loop.run(), in_process(config))


def test_the_state_of_another_configuration_is_not_used(tmp_path: Path) -> None:
    middle(settings(), tmp_path)
    config = settings(seed=4, compressor="identity")
    same(Loop(config, tmp_path).run(), in_process(config))


@pytest.mark.parametrize(
    "own", [{"model": {"width": 3}}, {"model": {"name": "linear", "width": 4}}, {"compressor": "scalar:bits=2"}]
)
def test_a_party_that_changes_its_mind_starts_the_run_again(own: dict[str, Any], tmp_path: Path) -> None:
    loop = middle(settings(), tmp_path)
    loop.config = settings(party={"bank": own})
    everyone(loop)
    same(loop.run(), in_process(loop.config))


@contextmanager
def full_disk(room: int = 100) -> Iterator[None]:
    """No file can grow beyond `room` bytes: writing fails in the system itself, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    config = settings(every=1)
    loop = middle(config, tmp_path, 30)
    before = {name: Checkpoints(tmp_path / name / "checkpoints").rounds() for name in (SERVER, *loop.names)}
    assert all(before.values())
    with full_disk(), pytest.raises(CheckpointError) as caught:
        loop.run()
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    for name, rounds in before.items():
        assert set(rounds) <= set(Checkpoints(tmp_path / name / "checkpoints").rounds())
    assert not list(tmp_path.rglob("*.partial"))
    everyone(loop)
    same(loop.run(), in_process(config))


def test_a_party_killed_when_it_should_hear_the_end(tmp_path: Path) -> None:
    """By gRPC: the connection breaks without a word after the last round; the server stays until the party is back."""
    config = settings()
    with threads(config, tmp_path) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        with federation.stack:
            from cvfl.experiments.serve import PartyRun  # noqa: PLC0415

            bank = PartyRun(config, "bank", tmp_path / "state" / "bank", federation.stack)
            puppet = Puppet(federation.address, federation.identity("bank"))
            puppet.say(bank.role.hello())
            while True:
                frame = puppet.hear()
                assert frame is not None
                if frame[5] == 7 and isinstance(decode_control(frame)[1], End):
                    break
                for reply in bank.role.receive(frame):
                    puppet.say(reply)
            puppet.vanish()
            time.sleep(0.7)
            assert federation._threads[SERVER].is_alive()
            federation.start("bank")
            same(federation.outcome(), in_process(config))


def test_a_server_that_is_restarted_after_the_end_needs_no_party(tmp_path: Path) -> None:
    config = settings(**SHORT)
    loop = Loop(config, tmp_path)
    while not loop.over:
        loop.step()
    for party in loop.parties.values():
        party.finish(tmp_path / "models")
        assert not party.state.exists()
    before = len(loop.up["hospital"]) + len(loop.up["bank"])
    loop.start(SERVER)
    assert loop.server.role.done
    assert before == 0
    result = loop.server.finish(tmp_path / "run")
    assert result.summary["parameters"]["server"] == in_process(config).parameters["server"]


def test_what_a_failing_party_tells_the_others_holds_nothing_of_its_table(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    error = CvflError("shop.csv: id person-0007 appears twice")
    frame = refusal(loop.parties["shop"].role, error)
    assert b"person" not in frame
    assert b"csv" not in frame
    assert b"shop stopped with a CvflError" in frame


@pytest.mark.parametrize("change", ["fewer rows", "another order"])
def test_a_table_that_is_another_one_after_a_restart(change: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = middle(table_settings(tmp_path), tmp_path / "loop")
    header, *rows = (tmp_path / "shop.csv").read_text().splitlines()
    rows = rows[:-10] if change == "fewer rows" else rows[::-1]
    (tmp_path / "shop.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(DataError, match=r"shop.csv: this is not the table that the run began with"):
        loop.kill("shop")


def test_a_cut_and_a_stall_of_the_network(tmp_path: Path) -> None:
    config = settings(rounds=30, evaluate_every=10, every=5)
    expected = in_process(config)
    with threads(config, tmp_path) as federation:
        proxy = Proxy(federation.address)
        federation.address = proxy.address
        federation.start(SERVER)
        for name in federation.names:
            federation.start(name, on_round=lambda: time.sleep(0.02))
        until_round(federation, 4)
        proxy.cut(0.5)
        until_round(federation, 10)
        proxy.stall(3.0)
        until_round(federation, 20)
        proxy.cut()
        outcome = federation.outcome()
        proxy.close()
    same(outcome, expected)
    assert federation.waits["bank"]


def until_round(federation: Any, t0: int, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while len(federation.server._journal.lines) < t0:
        assert time.monotonic() < until, (federation.errors, federation.waits)
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True])
def test_half_a_minute_without_network(drop: bool, tmp_path: Path) -> None:
    config = settings(rounds=60, evaluate_every=20)
    with threads(config, tmp_path) as federation:
        proxy = Proxy(federation.address)
        federation.address = proxy.address
        federation.start(SERVER)
        for name in federation.names:
            federation.start(name, on_round=lambda: time.sleep(0.05))
        until_round(federation, 10)
        proxy.cut(35.0) if drop else proxy.stall(35.0)
        federation.join(120)
        same(federation.outcome(), in_process(config))
        proxy.close()


def test_patience_is_counted_from_the_last_word_of_the_server(tmp_path: Path) -> None:
    """A cut after a long session is no reason to give up at once."""
    config = settings(rounds=24)
    with threads(config, tmp_path) as federation:
        proxy = Proxy(federation.address)
        federation.address = proxy.address
        federation.start(SERVER)
        for name in federation.names:
            federation.start(name, wait_limit=2.5, on_round=lambda: time.sleep(0.15))
        time.sleep(3.0)
        until_round(federation, 8)
        proxy.cut()
        same(federation.outcome(), in_process(config))
        proxy.close()


def test_processes_that_are_killed_and_interrupted(tmp_path: Path) -> None:
    """Real processes with certificates: kill -9 of a party, of the server, of all, and Ctrl-C; and what logs say."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, rounds=300, every=5, evaluate_every=40)
    with Processes(config, tmp_path, ("bank", "shop")) as roles:
        roles.environment = {"GRPC_VERBOSITY": "debug", "PYTHONPATH": str(debugging(tmp_path))}
        roles.start_all()
        at = roles.until_round(10)
        roles.kill("shop")
        roles.start("shop")
        at = roles.until_round(30, at)
        roles.kill(SERVER)
        roles.start(SERVER)
        at = roles.until_round(50, at)
        roles.kill(SERVER, "bank", "shop")
        roles.start_all()
        roles.until_round(70, at)
        assert roles.interrupt("bank") == 130
        assert roles.interrupt(SERVER) == 130
        for role in ("bank", SERVER):
            assert [line for line in roles.errors(role).splitlines() if line == "stopped"] == ["stopped"]
            assert (tmp_path / "state" / role / "checkpoints").exists()
            roles.start(role)
        same(roles.outcome(120), in_process(config))
    said = b"".join(path.read_bytes() for path in tmp_path.glob("*.out"))
    said += b"".join(path.read_bytes() for path in tmp_path.glob("*.err"))
    assert b"debugging is on" in said
    assert [value for value in secrets(tmp_path) if value in said] == []
    assert "Traceback" not in said.decode(errors="replace")


def debugging(folder: Path) -> Path:
    """A start-up file that makes every logger of a process speak."""
    place = folder / "startup"
    place.mkdir()
    text = "import logging\nlogging.basicConfig(level=logging.DEBUG)\nlogging.debug('debugging is on')\n"
    (place / "sitecustomize.py").write_text(text)
    return place


def secrets(folder: Path) -> list[bytes]:
    """Ids, labels and values of the tables that cannot occur by chance."""
    rows = [line.split(",") for name in ("bank", "shop") for line in (folder / f"{name}.csv").read_text().splitlines()]
    texts = {text for row in rows for text in row if len(text) > 7}
    assert len(texts) > 200
    return [b"person-", b"overdue", b"Trier", b"cvfl\x01", *(text.encode() for text in texts)]


@pytest.mark.slow
def test_ten_thousand_rounds_with_fifty_kills(tmp_path: Path) -> None:
    """And the memory of the server does not grow; each restart goes on from a checkpoint."""
    config = settings(rounds=10_000, every=20, evaluate_every=500)
    draw = random.Random(0)
    with Processes(config, tmp_path) as roles:
        roles.start_all()
        at = roles.until_round(20)
        for kill in range(50):
            at = roles.until_round(190 * kill + draw.randrange(150), at, 120)
            time.sleep(draw.random() / 5)
            roles_hit = draw.choice([[SERVER], ["bank"], ["hospital"], ["bank", "hospital"], [SERVER, *roles.names]])
            roles.kill(*roles_hit)
            for role in roles_hit:
                roles.start(role)
        same(roles.outcome(600), in_process(config))


@pytest.mark.slow
def test_the_memory_of_the_server_does_not_grow(tmp_path: Path) -> None:
    config = settings(rounds=10_000, every=100, evaluate_every=1000)
    with Processes(config, tmp_path) as roles:
        roles.start_all()
        used = []
        for t0 in (1000, 9900):
            roles.until_round(t0, seconds=600)
            status = Path(f"/proc/{roles.children[SERVER].pid}/status").read_text()
            used.append(int(status.split("VmRSS:")[1].split()[0]))
        roles.outcome(120)
    lines = [json.dumps(line) for line in roles.events(SERVER)]
    journal = 3 * sum(map(len, lines)) // 1024  # the lines of the run are kept for its report
    assert used[1] - used[0] < 10_000 + journal
