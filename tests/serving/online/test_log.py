"""What roles log of answers online: how many rows were asked for, and what was sent, in a few lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cvfl.runs.actions import NAME, read_actions, verified
from serving.online.doors import Serving, trained


def counted(lines: list[dict[str, Any]], way: str, other: str) -> Counter[str]:
    """Frames and bytes by kind, over all lines."""
    found: Counter[str] = Counter()
    for line in lines:
        for kind, (frames, size) in line.get(way, {}).get(other, {}).items():
            found[kind] += frames
            found[f"{kind}, bytes"] += size
    return found


@pytest.mark.parametrize("labels", ["shared", "bank"])
def test_the_logs_of_all_roles_agree(labels: str, tmp_path: Path) -> None:
    given = trained(tmp_path / "given", privacy={"labels": labels})
    ids = [f"p{1000 + n}" for n in range(70)]
    with Serving(tmp_path, given) as serving:
        for number in range(40):
            serving.predict(*ids[number : number + 3])
        serving.stop_party("shop")
        serving.until(lambda: serving.get("/v2/health/ready").status == 503)
        serving.start_party("shop")
        serving.until_ready()
        serving.predict(*ids[:5])
        run, sizes = serving.desk.run, serving.desk.sizes
    logs = {role: list(read_actions(tmp_path / "state" / role / NAME)) for role in ("server", "bank", "shop")}
    for role, lines in logs.items():
        assert verified(tmp_path / "state" / role / NAME).lines == len(lines)
        served = [line for line in lines if line["event"] == "served"]
        assert sum(line["rows"].get(run, 0) for line in served) == 40 * 3 + 5
        assert {key for line in served for key in line["rows"]} == {run}
        assert len(lines) < 40  # not a line a request
        assert (lines[0]["event"], lines[0]["use"], lines[-1]["event"]) == ("started", "serve", "ended")
        assert lines[0].get("run") == (None if (role, labels) == ("server", "bank") else run)
    for name in ("bank", "shop"):
        assert counted(logs[name], "sent", "server") == counted(logs["server"], "received", name)
        assert counted(logs[name], "received", "server") == counted(logs["server"], "sent", name)
    for way, size in (("sent", sizes.up), ("received", sizes.down)):
        found = counted(logs["bank"], way, "server")
        assert sum(count for kind, count in found.items() if kind.endswith("bytes")) == size
    assert next(line["who"] for line in logs["server"] if line["event"] == "left") == "shop"
    text = "".join((tmp_path / "state" / role / NAME).read_text() for role in logs)
    assert not [one for one in ("p10", "income", "spent", "target") if one in text]
