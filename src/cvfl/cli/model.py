"""`cvfl model`: look at what a role needs to predict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cvfl.cli.errors import extra, one_line
from cvfl.data.tables.spellings import listed
from cvfl.protocol import Loss
from cvfl.runs.bundle import Bundle, PartyBundle, ServerBundle
from cvfl.serving.bundles import read_bundles
from cvfl.serving.export import chosen, export_onnx

model = typer.Typer(help="Look at trained models, or write them for other systems.", no_args_is_help=True)


@model.callback()
def commands() -> None:
    """Look at trained models, or write them for other systems."""


@model.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Run directory, or the folder of a role's model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, one a role, instead of tables.")] = False,
) -> None:
    """Show the bundles in a folder: of which run and role they are, what goes in, and what comes out.

    Example: cvfl model show models/federation
    """
    console = Console(highlight=False, markup=False)
    with one_line():
        found = read_bundles([folder], shown=True)
        bundles: list[Bundle] = [*found.parties.values(), *([found.server] if found.server else [])]
        for bundle in bundles:
            if as_json:
                typer.echo(bundle.model_dump_json())
                continue
            console.print(_table(bundle))
            if isinstance(bundle, PartyBundle) and bundle.columns:
                console.print(_columns(bundle))


@model.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Run directory, or the folder of a role's model.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    role: Annotated[str | None, typer.Option(help="Whose model: server, or a party; needed where several are.")] = None,
) -> None:
    """Write a role's model as ONNX, for other scoring systems.

    A party's takes its prepared rows and gives their embedding; that of the server takes an embedding of each party.

    Example: cvfl model export models/federation --role bank --out bank.onnx
    """
    with one_line():
        with extra("onnx"):
            import onnxscript  # noqa: F401, PLC0415  an extra

        found = read_bundles([folder], shown=True)
        bundle = chosen(found, role)
        export_onnx(bundle, found.folders[bundle.role], out)
        typer.echo(f"{out}: the model of {bundle.role}")


def _table(bundle: Bundle) -> Table:
    shown = Table(title=bundle.role, title_justify="left", show_header=False)
    lines = _party(bundle) if isinstance(bundle, PartyBundle) else _server(bundle)
    for key, value in (("run", bundle.run), ("terms", bundle.terms), ("parties", ", ".join(bundle.names)), *lines):
        shown.add_row(key, value)
    shown.add_row("precision", bundle.precision)
    shown.add_row("SHA-256", bundle.parameters)
    shown.add_row("written by", ", ".join(f"{name} {version}" for name, version in bundle.versions.items()))
    return shown


def _party(bundle: PartyBundle) -> Iterator[tuple[str, str]]:
    yield "model", bundle.model.name if bundle.model else "a module of the user's own"
    yield "takes", f"rows of shape {bundle.shape}"
    yield "embedding", f"{bundle.width} numbers{', the first layer included' if bundle.first_layer else ''}"
    yield "compressor", bundle.compressor
    if bundle.clip is not None:
        yield "clip", f"{bundle.clip:g}"
    if bundle.table:
        yield "id", ", ".join(bundle.table.id) or "rows as they are"


def _server(bundle: ServerBundle) -> Iterator[tuple[str, str]]:
    yield "model", bundle.model.name if bundle.model else "a module of the user's own"
    yield "takes", f"embeddings of {', '.join(map(str, bundle.widths))} numbers"
    if bundle.stand_ins and bundle.learned is not None:
        yield "does without", listed(bundle.learned) or "no party: every row of training had all"
    if bundle.private:
        yield "private", "fitted to true labels by the party that told others; it stays there"
    if bundle.loss is Loss.SQUARED:
        yield "value", f"{bundle.units.offset:g} + {bundle.units.scale:g} x output"
        return
    yield "classes", listed(bundle.classes) or f"{max(2, bundle.outputs)}, without names"
    yield "calibration", f"{bundle.decided.calibration}, temperature {bundle.decided.temperature:.4g}"
    if bundle.loss is Loss.BINARY:
        yield "threshold", f"{bundle.decided.threshold:.4g}"


def _columns(bundle: PartyBundle) -> Table:
    shown = Table("column", "type", "categories")
    for name, column in bundle.columns.items():
        shown.add_row(name, column.type, listed(column.categories or ()))
    return shown
