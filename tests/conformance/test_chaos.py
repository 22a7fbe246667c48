"""A bad night: real processes of random modes, killed at random moments, half of the time with damaged files.

`make test-chaos` runs 50 nights of 20 kills each. CVFL_CHAOS=10-19 runs some of them. Each night adds a line to the
file CVFL_CHAOS_LOG: its number, which is its seed, and what happened. docs/reliability.md counts them.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import NAMED, SERVER, settings, table_settings, write_tables
from conformance.outcome import in_process, same
from conformance.processes import Processes
from cvfl.config.schema import RunConfig

KILLS, ROUNDS, APART = 20, 600, 25
MODES = ("open", "auto", "secure", "labels at the server", "labels at a party", "tables", "tables, labels at a party")
DAMAGES = ("truncated", "one bit", "empty", "gone", "garbage", "left over")
TABLES = (SERVER, "bank", "shop")


def nights() -> list[int]:
    first, _, last = os.environ.get("CVFL_CHAOS", "0-49").partition("-")
    return list(range(int(first), int(last or first) + 1))


def config_of(mode: str, every: int, folder: Path) -> RunConfig:
    length: dict[str, Any] = {"rounds": ROUNDS, "every": every, "evaluate_every": 60}
    if mode.startswith("tables"):
        write_tables(folder)
        privacy = {"privacy": {"labels": "bank"}} if "labels" in mode else {}
        return table_settings(folder, **length | privacy)
    named = {
        "open": NAMED["topk"],
        "auto": NAMED["auto"],
        "secure": NAMED["secure"],
        "labels at the server": NAMED["private labels"],
        "labels at a party": NAMED["labels at a party, auto"],
    }
    return settings(**named[mode] | length)


def damage(folder: Path, how: str) -> bool:
    """Damage the newest checkpoint in the state of a role that is dead; an older one is there to go back to."""
    kept = sorted(folder.glob("*/checkpoints/round-*.safetensors"))
    if how == "left over":
        for place in folder.glob("*/checkpoints"):
            (place / "round-00000001.partial").write_bytes(b"left over")
        return bool(kept)
    if len(kept) < 2:
        return False
    data = kept[-1].read_bytes()
    if not data:  # it was emptied before, and the role was killed again before it kept another
        return False
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    if how == "gone":
        kept[-1].unlink()
    else:
        changed = {"truncated": data[:-9], "one bit": bytes(flipped), "empty": b"", "garbage": b"\xff" * 999}
        kept[-1].write_bytes(changed[how])
    return True


def reached(roles: Processes) -> int:
    return max((event["round"] for event in roles.events(SERVER) if event["event"] == "round"), default=0)


def finished(roles: Processes, role: str) -> bool:
    """Whether it has left all it had to: its state is gone, and started again it would begin another run."""
    return any(event["event"] == "finished" for event in roles.events(role))


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("night", nights())
def test_a_bad_night_ends_in_the_same_bits(night: int, tmp_path: Path) -> None:
    draw, happened = random.Random(night), Counter[str]()
    mode, every = draw.choice(MODES), draw.choice([1, 3, 7, 20])
    config = config_of(mode, every, tmp_path)
    names = ("bank", "shop") if mode.startswith("tables") else None
    with Processes(config, tmp_path, names) as roles:
        roles.start_all()
        everyone, harmed = (SERVER, *roles.names), 0
        for kill in range(KILLS):
            until = time.monotonic() + 120
            while reached(roles) < APART * kill and time.monotonic() < until:
                time.sleep(0.02)
                assert all(child.poll() in (None, 0) for child in roles.children.values()), _said(roles)
            time.sleep(draw.random() * 2)
            alive = [role for role in everyone if roles.children[role].poll() is None and not finished(roles, role)]
            struck = draw.sample(alive, draw.randint(1, len(alive))) if alive else []
            roles.kill(*struck)
            happened["kills"] += 1
            happened["processes"] += len(struck)
            # One checkpoint of one role, and no other before all have kept new ones: what is lost beyond that is for
            # people to decide.
            whose, how = draw.choice(struck or [SERVER]), draw.choice(DAMAGES)
            if struck and draw.random() < 0.5 and reached(roles) >= harmed:
                happened["damaged"] += damage(tmp_path / "state" / whose, how)
                harmed = reached(roles) + 2 * every
            for role in struck:
                roles.start(role)
        same(roles.outcome(600), in_process(config))
    line = {"night": night, "mode": mode, "every": every} | dict(happened)
    with Path(os.environ.get("CVFL_CHAOS_LOG", os.devnull)).open("a", encoding="utf-8") as log:
        print(json.dumps(line), file=log)


def _said(roles: Processes) -> dict[str, str]:
    return {role: roles.errors(role)[-500:] for role in roles.children}
