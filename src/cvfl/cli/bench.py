"""`cvfl bench`: how fast codecs and rounds are on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from cvfl.bench.bench import CODEC_SHAPES, CODECS, ROUND_SHAPES, bench_codec, bench_round
from cvfl.bench.bench_runtime import PAYLOADS, bench_grpc, bench_nvflare
from cvfl.bench.bench_secure import PARTIES, SECURE_SHAPES, bench_secure
from cvfl.cli.errors import one_line

bench = typer.Typer(help="Measure speed and memory on this machine; keep it quiet meanwhile.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")]


@bench.command()
def codec(as_json: AsJson = False) -> None:
    """Encode and decode on one core: GB/s of float32, and peak memory.

    Example: cvfl bench codec --json
    """
    with one_line():
        cases = [(spec, shape) for spec in CODECS for shape in CODEC_SHAPES]
        console = Console(stderr=True)
        results = [bench_codec(*case) for case in track(cases, "codecs", console=console, transient=True)]
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = _table("compressor", "shape", "encode GB/s", "decode GB/s", "peak memory / input")
    for result in results:
        peak = "-" if result.peak_ratio is None else f"{result.peak_ratio:.2f}"
        rows, columns = result.shape
        table.add_row(
            result.compressor, f"{rows} x {columns}", f"{result.encode_gbps:.2f}", f"{result.decode_gbps:.2f}", peak
        )
    Console().print(table)


@bench.command(name="round")
def round_(
    compressor: Annotated[str, typer.Option(help="Compressor of the parties.")] = "lattice:bits=2",
    as_json: AsJson = False,
) -> None:
    """A round in process beside a bare PyTorch loop that does the same arithmetic; Q = 10.

    Example: cvfl bench round --compressor scalar:bits=4 --json
    """
    with one_line():
        console = Console(stderr=True)
        shapes = track(ROUND_SHAPES, "rounds", console=console, transient=True)
        results = [bench_round(shape, compressor) for shape in shapes]
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = _table("shape", "round ms", "bare ms", "ratio", "codec share")
    for result in results:
        table.add_row(
            result.shape,
            f"{result.round_ms:.1f}",
            f"{result.bare_ms:.1f}",
            f"{result.ratio:.2f}",
            f"{result.codec_share:.1%}",
        )
    Console().print(table)


@bench.command()
def secure(as_json: AsJson = False) -> None:
    """A round with secure aggregation beside the same round with open embeddings, for 4, 16 and 32 parties.

    Example: cvfl bench secure --json
    """
    with one_line():
        cases = [(shape, M) for shape in SECURE_SHAPES for M in PARTIES]
        console = Console(stderr=True)
        results = [bench_secure(*case) for case in track(cases, "federations", console=console, transient=True)]
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = _table("shape", "parties", "open ms", "secure ms", "ratio", "bits", "open bits", "download a party")
    for result in results:
        times = (f"{value:.1f}" for value in (result.open_ms, result.secure_ms))
        bits = (f"{value:.2f}" for value in (result.ratio, result.bits, result.open_bits))
        table.add_row(result.shape, str(result.parties), *times, *bits, f"{result.download:,} B")
    Console().print(table)


def _table(first: str, *others: str) -> Table:
    table = Table()
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


@bench.command()
def runtime(
    as_json: AsJson = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds a payload.")] = 200,
) -> None:
    """Time a round of 4 parties over mutual TLS, beside an echo of the same bytes over bare gRPC streams.

    NVIDIA FLARE is measured when it is installed, in a federation provisioned for it on this machine.

    Example: cvfl bench runtime --json
    """
    with one_line():
        console = Console(stderr=True)
        steps = len(PAYLOADS) + (find_spec("nvflare") is not None)
        with Progress(console=console, transient=True) as bars:
            shown = bars.add_task("payloads", total=steps)
            results = []
            for payload in PAYLOADS:
                results.append(bench_grpc(payload, rounds))
                bars.advance(shown)
            if find_spec("nvflare") is None:
                console.print("nvflare is not installed and not measured", highlight=False)
            else:
                results += bench_nvflare(rounds)
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = _table("runtime", "payload each way", "median ms", "p95 ms", "bare ms", "ratio")
    for result in results:
        figures = (result.median_ms, result.p95_ms, result.bare_ms, result.ratio)
        table.add_row(result.runtime, f"{result.payload // 1000} KB", *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
