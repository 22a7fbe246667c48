"""Run directories as a board may meet them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cvfl.board.listen import beside

PARTIES = ("hospital", "bank")
CONFIG = {"seed": 1, "compressor": "lattice:bits=2", "rounds": 40, "step_size": {"eta": 0.1}}


def line(t0: int, parties: Sequence[str] = PARTIES, every: int = 5, scale: float = 1.0) -> dict[str, Any]:
    """The line of a round; every few rounds have an evaluation."""
    sent = {"up": int(scale * 100) * (t0 + 1), "down": int(scale * 400) * (t0 + 1), "evaluation": 50 * (t0 // every)}
    sent |= {"alignment": 30, "setup": 20}
    found = {
        "round": t0,
        "epoch": (t0 + 1) / 10,
        "loss": 1 / (t0 + 1),
        "step_size": 0.1,
        "seconds": 0.01,
        "bytes": {part: len(parties) * value for part, value in sent.items()},
        "by_party": dict.fromkeys(parties, sent),
    }
    if t0 % every == every - 1:
        score = {"accuracy": 1 - 0.5 / (t0 + 1), "loss": 1 / (t0 + 1)}
        error = {"measured": scale, "expected": 1.1 * scale, "bound": 3.0 * scale}
        found |= {"train": score, "test": score, "compression_error": dict.fromkeys(("server", *parties), error)}
    return found


def text(rounds: int, **how: Any) -> str:
    """The lines of a run."""
    return "".join(json.dumps(line(t0, **how)) + "\n" for t0 in range(rounds))


def watched(path: Path, every: int = 5, jump: int | None = None) -> Path:
    """Give the lines of a run times and figures of embeddings, those of the bank ten times as large from a round on."""
    lines = [json.loads(one) for one in (path / "metrics.jsonl").read_text().splitlines()]
    for one in lines:
        one["time"] = {
            "server": {"compute": 0.5, "codec": 0.25, "wait": {"bank": 3.0, "hospital": 1.0}},
            "bank": {"compute": 0.125, "codec": 0.0},
        }
        if one["round"] % every == every - 1:
            norms = {"hospital": 2.0, "bank": 20.0 if jump is not None and one["round"] >= jump else 2.0}
            one["embeddings"] = {m: {"norm": norm, "largest": 2 * norm, "spread": 0.5} for m, norm in norms.items()}
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def changed(path: Path, **values: Any) -> Path:
    """Change keys of a run's summary."""
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | values))
    return path


def under_way(path: Path, rounds: int = 10, config: dict[str, Any] = CONFIG, **how: Any) -> Path:
    """A run that has done some of its rounds, or was stopped then."""
    (path / "state").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text(text(rounds, **how))
    return path


def finished(path: Path, rounds: int = 40, config: dict[str, Any] = CONFIG, **how: Any) -> Path:
    """A run that is over."""
    path.mkdir(parents=True)
    last = line(rounds - 1, **how)
    score = line(4, **how)["test"] | {"accuracy": 1 - 0.5 / rounds}
    summary = {
        "name": str(config["compressor"]),
        "seed": config["seed"],
        "rounds": rounds,
        "completed": True,
        "metric": "accuracy",
        "metrics": {"train": score, "test": score},
        "bytes": last["bytes"] | {"total": sum(last["bytes"].values()), "by_party": last["by_party"]},
        "compression_error": {"measured": 1.0, "expected": 1.1, "bound": 3.0},
        "seconds": 0.01 * rounds,
        "config": config,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "metrics.jsonl").write_text(text(rounds, **how))
    return path


@contextmanager
def shown(root: Path, address: str = "127.0.0.1:0", token: str | None = None) -> Iterator[int]:
    """The board of a folder, answering; the number of its port."""
    with beside(root, address, token) as url:
        yield int(url.rstrip("/").rpartition(":")[2])
