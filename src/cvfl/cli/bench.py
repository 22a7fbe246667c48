"""`cvfl bench`: how fast codecs, rounds and runtimes are on this machine; the scripts are benchmarks/ of a checkout."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from cvfl.cli.errors import one_line
from cvfl.errors import ConfigError

FOLDER = Path(__file__).parents[3] / "benchmarks"

bench = typer.Typer(help="Measure speed and memory on this machine; keep it quiet meanwhile.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON line a result, as it comes, instead of a table.")]
Repeats = Annotated[
    int | None, typer.Option(min=1, help="Rounds to measure; as many as ten seconds allow when not given.")
]


@bench.command()
def codec(
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each way of a case is repeated.")] = 0.2,
    as_json: AsJson = False,
) -> None:
    """Encode and decode on one core: GB/s of float32, and peak memory.

    Example: cvfl bench codec --json
    """
    _run("codec", as_json, f"--seconds={seconds}")


@bench.command(name="round")
def round_(
    compressor: Annotated[str, typer.Option(help="Compressor of the parties.")] = "lattice:bits=2",
    repeats: Repeats = None,
    as_json: AsJson = False,
) -> None:
    """A round in process beside a bare PyTorch loop that does the same arithmetic; Q = 10.

    Example: cvfl bench round --compressor scalar:bits=4 --json
    """
    _run("round", as_json, f"--compressor={compressor}", *_repeated(repeats))


@bench.command()
def secure(repeats: Repeats = None, as_json: AsJson = False) -> None:
    """A round with secure aggregation beside the same round with open embeddings, for 4, 16 and 32 parties.

    Example: cvfl bench secure --json
    """
    _run("secure", as_json, *_repeated(repeats))


@bench.command()
def runtime(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds a payload.")] = 200, as_json: AsJson = False
) -> None:
    """Time a round of 4 parties over mutual TLS, beside an echo of the same bytes over bare gRPC streams.

    NVIDIA FLARE is measured when it is installed, in a federation provisioned for it on this machine.

    Example: cvfl bench runtime --json
    """
    _run("runtime", as_json, f"--rounds={rounds}")


@bench.command()
def serve(
    requests: Annotated[int, typer.Option(min=1, help="Requests of one id.")] = 1000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long many requests at once are sent.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Time an answer of `cvfl serve`, 4 parties over mutual TLS, beside a bare gRPC fan-out of the same bytes.

    Example: cvfl bench serve --json
    """
    _run("serve", as_json, f"--requests={requests}", f"--seconds={seconds}")


def _repeated(repeats: int | None) -> list[str]:
    return [] if repeats is None else [f"--repeats={repeats}"]


def _run(name: str, as_json: bool, *options: str) -> None:
    """Run a script of the checkout in a process of its own, and end as it ends."""
    script = FOLDER / f"{name}.py"
    with one_line():
        if not script.exists():
            raise ConfigError("benchmarks come with a checkout of the repository, not with the installed package")
        child = subprocess.Popen([sys.executable, str(script), *options, *(["--json"] if as_json else [])])
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the script too, which then tidies up
        try:
            raise typer.Exit(child.wait())
        except KeyboardInterrupt:  # this process is to end
            child.send_signal(signal.SIGINT)
            raise typer.Exit(child.wait()) from None
        finally:
            signal.signal(signal.SIGINT, before)
