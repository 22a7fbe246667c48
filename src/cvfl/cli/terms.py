"""`cvfl terms`: one signed file of what all roles have alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.errors import one_line
from cvfl.config.draft import terms_text
from cvfl.config.files import load_config, read_toml, write_terms
from cvfl.config.terms import check_signature, digest, signature_of
from cvfl.errors import ConfigError, suggest
from cvfl.privacy.identity import Identity


def terms(
    file: Annotated[Path, typer.Argument(help="The file of terms (TOML).")],
    party: Annotated[
        list[str] | None, typer.Option(help="Write new terms: name every party, in their order; repeat for each.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="PARTY", help="Of new terms: the party with the label.")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Of new terms: about how many people all parties share; the batch follows.")
    ] = 5000,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a term; repeat for more.")
    ] = None,
    sign_as: Annotated[
        str | None, typer.Option("--as", metavar="ROLE", help="Sign the terms as this role, a party or the server.")
    ] = None,
    certificates: Annotated[
        Path, typer.Option(help="Folder with ca.crt to check by, and the certificate and key to sign with.")
    ] = Path("certs"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write, change and sign the terms that all roles of a federation read; with the file alone, show and check them.

    Every role gets the same file, and its own names it: terms = "terms.toml". Nothing is copied by hand.

    Example: cvfl terms terms.toml --party hospital --party bank --label hospital --as hospital --certificates certs
    """
    console = Console(highlight=False)
    with one_line():
        if not party and label is not None:
            raise ConfigError("--label is of new terms; name their parties with --party")
        text = _new(file, party, label, rows, force) if party else _there(file)
        if party or change or sign_as:
            who = (sign_as, _identity(certificates, sign_as)) if sign_as else None
            write_terms(file, text, change or [], who)
        for line in _shown(file, certificates):
            console.print(line, soft_wrap=True)


def _new(file: Path, parties: Sequence[str], label: str | None, rows: int, force: bool) -> str:
    if file.exists() and not force:
        raise ConfigError(f"{file} exists already; choose another name or use --force")
    if len(parties) < 2 or len(set(parties)) < len(parties):
        raise ConfigError("--party: name two parties or more, each once")
    if label is None:
        raise ConfigError("--label is missing: the name of the party whose table has the label")
    if label not in parties:
        raise ConfigError(f"--label takes the name of a party, not {label!r}{suggest(label, parties)}")
    return terms_text(parties, label, rows)


def _there(file: Path) -> str:
    read_toml(file)  # refuses in one line what is none
    return file.read_text(encoding="utf-8")


def _identity(folder: Path, name: str) -> Identity:
    return Identity.read(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")


def _shown(file: Path, certificates: Path) -> list[str]:
    """What the terms say, and who signed them, if that can be told."""
    values = read_toml(file)
    signature, config = signature_of(file, values), load_config(file)
    checked = signature is not None and check_signature(file, values, config, certificates)
    doubt = "" if checked else f", which cannot be checked without {certificates / 'ca.crt'}"
    length = f"{config.epochs} epochs" if config.epochs else f"{config.rounds} rounds"
    batch = f"batches of {config.batch_size}, {config.local_iterations} local iterations"
    return [
        f"{file}: {', '.join(config.party)}; the label is at {config.data.label_holder or 'the party that names one'}",
        f"  {length}, {batch}, server model {config.server_model.name}, compressor {config.compressor}",
        f"  sha256 {digest(values)}",
        f"  signed by {signature.by}{doubt}"
        if signature
        else f"  not signed; sign it with: cvfl terms {file} --as ROLE",
        *(["next: send it to every role, whose own file says: terms = ...; cvfl init writes one"] if signature else []),
    ]
