"""cvfl: server and parties are processes, over gRPC with mutual TLS."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inputs import SETTINGS, Inputs
from place import Roles
from proxy import Proxy, free_port

REQUIREMENTS = ()
"""It runs in the environment of this script."""
NONE = 'compressor = "identity"\nserver_compressor = "identity"\n'
VARIANTS: dict[str, dict[str, Any]] = {
    "none, Q = 1": {"Q": 1, "keys": NONE},
    "none, Q = 10": {"Q": 10, "keys": NONE},
    "none, Q = 1, labels stay": {"Q": 1, "keys": NONE, "privacy": "labels"},
    "auto, Q = 1": {"Q": 1},
    "auto, Q = 10": {"Q": 10},
    "auto, Q = 1, labels stay": {"Q": 1, "privacy": "labels"},
    "none, Q = 10, a tenth of the rounds": {"Q": 10, "keys": NONE, "tenth": True},
    "auto, Q = 10, a tenth of the rounds": {"Q": 10, "tenth": True},
    "auto, Q = 10, secure aggregation": {"Q": 10, "privacy": "secure", "model": "sum"},
}

INIT = "as `cvfl init` sets it up"
"""Another network, columns as they were published, ids that are matched privately, and stopping: the usual way."""
VARIANTS[INIT] = {}


def configuration(
    inputs: Inputs, Q: int, keys: str = "", privacy: str = "", model: str = "linear", tenth: bool = False
) -> str:
    """What a user writes: one file, here for all roles."""
    s, rows = SETTINGS, inputs.train_rows + inputs.test_rows
    parties = "".join(
        f'\n[party.{name}]\ntable = "{name}.parquet"\nfeatures = ["x*"]\n' + ("" if m else 'label = "y"\n')
        for m, name in enumerate(inputs.names)
    )
    told = {"labels": f'\n[privacy]\nlabels = "{inputs.names[0]}"\n', "secure": '\n[privacy]\naggregation = "secure"\n'}
    return f"""seed = {s["seed"]}
epochs = {s["epochs"] // 10 if tenth else s["epochs"]}
batch_size = {s["batch_size"]}
local_iterations = {Q}
evaluate_every = {inputs.rounds // 10 if tenth else inputs.rounds}
{keys}step_size = {{ eta = {s["step_size"]} }}
optimizer = {{ name = "{s["optimizer"]}" }}
party_model = {{ name = "mlp", width = {s["width"]}, hidden = [{s["hidden"]}] }}
server_model = {{ name = "{model}" }}

[data]
alignment = "aligned"
split_by = "place"
test_share = {inputs.test_rows / rows:.9f}
prepare = {{ scale = "none" }}
{parties}{told.get(privacy, "")}"""


def commands(names: Sequence[str]) -> list[str]:
    """What is typed, each on its machine."""
    certificates = "cvfl certs certs --server 127.0.0.1 " + " ".join(f"--party {name}" for name in names)
    return [certificates, "cvfl server run.toml", *(f"cvfl party run.toml --name {name}" for name in names)]


def lines(inputs: Inputs, variant: str) -> int:
    """Lines that a user writes."""
    text = configuration(inputs, **VARIANTS[variant])
    return sum(bool(line.strip()) for line in text.splitlines()) + len(commands(inputs.names))


def measure(inputs: Inputs, place: Path, variant: str, python: Path = Path(sys.executable)) -> dict[str, Any]:
    """Train once, with the proxy between the server and all parties."""
    port = free_port()
    if variant == INIT:
        file, written = _initialised(inputs)
    else:
        file, written = inputs.folder / "run.toml", lines(inputs, variant)
        file.write_text(configuration(inputs, **VARIANTS[variant]), encoding="utf-8")
    summary, seconds, proxy = federation(file, inputs.names, place, port, Proxy(port))
    return {
        "roc_auc": summary["metrics"]["test"]["roc_auc"],
        "rounds": summary["rounds"],
        **seconds,
        "bytes": proxy.total,
        "counted_by_cvfl": summary["bytes"]["total"],
        "lines": written,
        "tls": "mutual TLS 1.3",
    }


def _initialised(inputs: Inputs) -> tuple[Path, int]:
    """What `cvfl init` writes, with the same rows for the test, and the lines of a user: commands and changed keys."""
    file, folder = inputs.folder / "raw" / "run.toml", inputs.folder / "raw"
    tables = [word for name in inputs.names for word in ("--party", f"{name}={folder / name}.parquet")]
    told = ["init", str(file), *tables, "--id", "id", "--label", f"{inputs.names[0]}.y", "--force"]
    subprocess.run([sys.executable, "-m", "cvfl.cli", *told], check=True, stdout=subprocess.DEVNULL)
    text, changed = file.read_text(encoding="utf-8"), 0
    for before, after in (
        (r"stratify = true.*", 'split_by = "place"'),
        (r"test_share = .*", f"test_share = {inputs.test_rows / (inputs.train_rows + inputs.test_rows):.9f}"),
        (r"columns = true.*", "columns = false"),
    ):
        text, count = re.subn(before, after, text)
        changed += count
    file.write_text(text, encoding="utf-8")
    return file, changed + 1 + len(commands(inputs.names))


def federation(
    file: Path, names: Sequence[str], place: Path, port: int, proxy: Proxy
) -> tuple[Mapping[str, Any], dict[str, float], Proxy]:
    """Run all roles to their end: the summary, seconds of training and with start and end, and what passed."""
    cvfl = ["-m", "cvfl.cli"]
    made = ["certs", str(place / "certs"), "--server", "127.0.0.1", *(w for n in names for w in ("--party", n))]
    subprocess.run([sys.executable, *cvfl, *made], check=True, stdout=subprocess.DEVNULL)

    def role(kind: str, name: str, at: int) -> list[str]:
        where = [f"network.address=127.0.0.1:{at}", f"network.certificates={place / 'certs'}"]
        sets = [word for change in where for word in ("--set", change)]
        return [*cvfl, kind, str(file), *sets, "--state", str(place / "state" / name), "--log-json"]

    began = time.time()
    with Roles(place) as roles, proxy:
        roles.start("server", [*role("server", "server", port), "--out", str(place / "run")])
        for name in names:
            more = ["--name", name, "--out", str(place / "models")]
            roles.start(name, [*role("party", name, proxy.port), *more])
        roles.wait(["server", *names], patience=3000)
        ended = time.time()
    events = [json.loads(line) for line in (place / "server.out").read_text("utf-8").splitlines() if line[:1] == "{"]
    first = next(event["time"] for event in events if event["event"] == "round")
    last = next(event["time"] for event in events if event["event"] == "finished")
    summary = json.loads((place / "run" / "summary.json").read_text("utf-8"))
    return summary, {"seconds": last - first, "seconds_in_all": ended - began}, proxy
