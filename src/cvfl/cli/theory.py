"""`cvfl theory`: what the paper's formulas say about a federation, before anything runs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cvfl.cli.tables import number_table
from cvfl.theory.choice import rate_target
from cvfl.theory.overview import CompressorRow, RateRow, Setting, compressor_rows, rate_rows

DEFAULT_BITS = [2, 3, 4]
ERRORS_NOTE = "Bounds of the compressors as implemented. Table 1: the paper's bound for the same parameter."
BYTES_NOTE = (
    "Payload only: no headers, no top-k indices. Algorithm 2 takes one step a round, so its sum is over T "
    "rounds; its gradients are not compressed. Authors: the formula of their plot script."
)
RATES_NOTE = "Table 1: the argument of the paper's Omega() or O(), with 1 for the constant that it hides."


def theory(
    parties: Annotated[int, typer.Option(min=1, help="Parties M.")] = 4,
    batch: Annotated[int, typer.Option(min=1, help="Batch size B.")] = 1000,
    width: Annotated[int, typer.Option(min=1, help="Embedding size P of a party.")] = 16,
    low: Annotated[float, typer.Option(help="Smallest embedding component.")] = -1.0,
    high: Annotated[float, typer.Option(help="Largest embedding component.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Global rounds R.")] = 150,
    local: Annotated[int, typer.Option(min=1, help="Local iterations Q of a round.")] = 10,
    server_size: Annotated[int, typer.Option(min=0, help="Parameters of the server model, |theta_0|.")] = 65,
    bits: Annotated[
        list[int] | None,
        typer.Option(min=1, max=16, help="Bits a component; repeat for more.", show_default="2, 3, 4"),
    ] = None,
    constant: Annotated[float, typer.Option(help="c in the target c/sqrt(T) of a message's error.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show compression errors, bytes and parameter choices for your numbers.

    Example: cvfl theory --parties 4 --batch 1000 --width 16 --low -1 --high 1 --rounds 150 --local 10
    --server-size 65 --bits 2 --bits 4
    """
    setting = Setting(M=parties, B=batch, P=width, low=low, high=high, R=rounds, Q=local, theta_0=server_size)
    rows = compressor_rows(setting, bits or DEFAULT_BITS)
    rates = rate_rows(setting, constant)
    target = rate_target(setting.iterations, constant)
    if as_json:
        report = {
            "setting": asdict(setting) | {"T": setting.iterations},
            "compressors": [asdict(row) for row in rows],
            "rate": {"target": target, "choices": [asdict(row) for row in rates]},
        }
        typer.echo(json.dumps(report, indent=2))
        return
    console = Console(highlight=False, markup=False)
    console.print(
        f"{parties} parties, B = {batch}, P = {width} in [{low:g}, {high:g}], {rounds} rounds of Q = {local} "
        f"(T = {setting.iterations}), |theta_0| = {server_size}"
    )
    for table, title, note in (
        (_errors(rows), f"Squared error of one message ({setting.n:,} components)", ERRORS_NOTE),
        (_bytes(rows), "Bytes of all parties, both ways", BYTES_NOTE),
        (_rates(rates), f"To keep the rate 1/sqrt(T): expected error at most {_number(target)}", RATES_NOTE),
    ):
        console.print()
        console.print(title, style="bold")
        console.print(table)
        console.print(note, style="dim")


def _errors(rows: list[CompressorRow]) -> Table:
    table = number_table("compressor", "bits", "parameter", "expected", "worst", "Table 1")
    for row in rows:
        parameter = f"{row.symbol} = {_number(row.parameter)}"
        errors = map(_number, (row.error.expected, row.error.worst, row.table1_error))
        table.add_row(row.compressor, str(row.bits), parameter, *errors, end_section=_last_of_width(row))
    return table


def _bytes(rows: list[CompressorRow]) -> Table:
    heads = ("Alg. 1\na round", "Alg. 1\nin all", "Alg. 2\na round", "Alg. 2\nin all", "authors\nin all")
    table = number_table("compressor", "bits", *heads)
    for row in rows:
        totals = row.algorithm1_round, row.algorithm1_total, row.algorithm2_round, row.algorithm2_total
        sizes = map(_size, (*totals, row.authors_total))
        table.add_row(row.compressor, str(row.bits), *sizes, end_section=_last_of_width(row))
    return table


def _rates(rates: list[RateRow]) -> Table:
    table = number_table("compressor", "parameter", "bits", "expected", "Table 1")
    for row in rates:
        table.add_row(
            row.compressor,
            "more than 16 bits" if row.parameter is None else f"{row.symbol} = {_number(row.parameter)}",
            "-" if row.bits is None else _number(row.bits),
            "-" if row.error is None else _number(row.error.expected),
            f"{row.symbol} = {_number(row.table1_parameter)}",
        )
    return table


def _last_of_width(row: CompressorRow) -> bool:
    return row.compressor in {"none", "top-k"}


def _number(value: float) -> str:
    """Four significant digits, whole numbers in full, powers of ten only where digits would run long."""
    if value == 0 or (float(value).is_integer() and abs(value) < 1e7):
        return f"{value:,.0f}"
    if 1e-3 <= abs(value) < 1e7:
        return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
    return f"{value:.3g}"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:,.4g} TB"
