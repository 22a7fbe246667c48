"""cvfl on the shape of a published figure: 800,000 rows, two parties x 1,500 columns, 100 Mbit/s and 50 ms.

    measured   seconds and bytes a round of cvfl's processes, over gRPC with mutual TLS, on ROWS made rows of that width
               and behind the proxy, where each party has a link of 100 Mbit/s each way, and every byte takes 50 ms
               longer each way
    computed   an epoch: 800,000 rows / batch rounds of the median round

No row is sent twice in what is measured, so nothing is saved by having sent it before.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cvfl_peer
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from inputs import SETTINGS
from proxy import Proxy, free_port

ROWS, TEST_ROWS, COLUMNS, BATCH, FULL = 61_440, 1_024, 1_500, 1_024, 800_000
RATE, DELAY = 100e6 / 8, 0.05
NAMES = ("guest", "host")
VARIANTS: dict[str, dict[str, Any]] = {
    "none, Q = 1": {"Q": 1, "keys": cvfl_peer.NONE},
    "auto, Q = 1": {"Q": 1},
    "auto, Q = 10": {"Q": 10},
}


def measurements(data: Path, work: Path, seen: set[tuple[str, str, str, int]]) -> Iterator[dict[str, Any]]:
    """A line a variant that is not in `seen`."""
    for variant, told in VARIANTS.items():
        if ("shape", variant, "made", 0) not in seen:
            yield {"system": "shape", "variant": variant, "task": "made", "time": 0} | _measured(told, work / "shape")


def _measured(told: dict[str, Any], place: Path) -> dict[str, Any]:
    tables = place / "tables"
    if not (tables / "host.parquet").exists():
        _make(tables)
    rounds, port = ROWS // BATCH, free_port()
    file = tables / "run.toml"
    file.write_text(configuration(rounds, **told), encoding="utf-8")
    run = place / str(port)
    summary, _, proxy = cvfl_peer.federation(file, NAMES, run, port, Proxy(port, RATE, DELAY))
    events = [json.loads(line) for line in (run / "server.out").read_text("utf-8").splitlines() if line[:1] == "{"]
    each = [event["seconds"] for event in events if event["event"] == "round"][
        3:-1
    ]  # not the first ones, no evaluation
    training = sum(one["up"] + one["down"] for one in summary["bytes"]["by_party"].values())
    seconds, a_round = statistics.median(each), training / rounds
    in_epoch = -(-FULL // BATCH)
    return {
        "rows": ROWS,
        "roc_auc": summary["metrics"]["test"]["roc_auc"],
        "batch_size": BATCH,
        "rounds_measured": len(each),
        "seconds_a_round": seconds,
        "quartiles": [round(one, 4) for one in statistics.quantiles(each, n=4)],
        "bytes_a_round": a_round,
        "bytes_by_proxy": proxy.total,
        "bytes_counted": summary["bytes"]["total"],
        "rounds_in_epoch": in_epoch,
        "epoch_seconds": seconds * in_epoch,
        "epoch_bytes": a_round * in_epoch,
        "computed": "epoch_seconds and epoch_bytes",
    }


def configuration(rounds: int, Q: int, keys: str = "") -> str:
    """The same networks and optimiser as everywhere, one pass over the rows, evaluated once."""
    s = SETTINGS
    return f"""seed = {s["seed"]}
rounds = {rounds}
batch_size = {BATCH}
local_iterations = {Q}
evaluate_every = {rounds}
{keys}step_size = {{ eta = {s["step_size"]} }}
optimizer = {{ name = "{s["optimizer"]}" }}
party_model = {{ name = "mlp", width = {s["width"]}, hidden = [{s["hidden"]}] }}
data = {{ alignment = "aligned", split_by = "place", test_share = {TEST_ROWS / (ROWS + TEST_ROWS):.9f} }}
party.guest = {{ table = "guest.parquet", features = ["x*"], label = "y" }}
party.host = {{ table = "host.parquet", features = ["x*"] }}
"""


def _make(tables: Path) -> None:
    """Gaussian columns, and a label that some of both parties' columns tell about."""
    tables.mkdir(parents=True, exist_ok=True)
    random, rows = np.random.default_rng(SETTINGS["seed"]), ROWS + TEST_ROWS
    score = random.normal(size=rows)
    for name in reversed(NAMES):
        x = random.normal(size=(COLUMNS, rows)).astype(np.float32)
        score += x[:20].sum(axis=0) / 5
        columns: dict[str, Any] = {f"x{i}": x[i] for i in range(COLUMNS)}
        if name == NAMES[0]:
            columns |= {"y": (score > 0).astype(np.int64), "place": np.arange(rows, dtype=np.float64)}
        pq.write_table(pa.table(columns), tables / f"{name}.parquet", compression="none")
