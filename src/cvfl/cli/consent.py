"""The question to the owner of a party: does it take part by these terms?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, plain
from cvfl.federation.consent import ABOUT, FILE, Approved, Consent, approvals, approve, check_consent
from cvfl.runs.actions import ActionLog
from cvfl.runs.bundle import PartyBundle
from cvfl.serving.consent import serving_consent
from cvfl.serving.online.roles import serving_terms
from cvfl.serving.online.stock import Check

Approve = Annotated[
    bool, typer.Option("--approve", help="Show the terms and ask; what was approved is kept in approved.toml.")
]


def agree(
    consent: Consent,
    log: ActionLog,
    name: str,
    config: Path,
    required: bool,
    ask: bool,
    console: Console,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Go on only by terms that the owner has approved, where that is asked for, was done before, or must be.

    Approvals are beside the configuration file. `pause` stops what else is shown, which would paint over the question.
    """
    file = config.absolute().parent / FILE
    if ask:
        approved = approvals(file, name, consent.use)
        if not approved.has(consent):
            pause()
            _ask(name, consent, approved.newest, console)
            approve(file, name, consent)
    if check_consent(file, name, consent, required):
        log.append("approved", consent=consent.sha256)


def checked(config: RunConfig, name: str, file: Path) -> Check:
    """What refuses a model that comes while rows are served, if it is not as the owner has approved."""

    def check(bundle: PartyBundle) -> None:
        consent = serving_consent(config, bundle, serving_terms(config))
        check_consent(file.absolute().parent / FILE, name, consent, config.consent.required)

    return check


def _ask(name: str, consent: Consent, approved: Approved | None, console: Console) -> None:
    """Show the terms, with a star at what is not as it was approved; anything but a yes ends it."""
    console.print(f"Terms of {ABOUT[consent.use]}, for the owner of {name}:\n", markup=False)
    for key, value in consent.shown.items():
        mark = "* " if approved and approved.shown.get(key) != value else "  "
        console.print(Text.assemble(mark, (key, "bold"), ": ", plain(value)))
    console.print(f"\nSHA-256 {consent.sha256}", markup=False)
    if approved:
        console.print(f"\nnot as approved on {approved.approved[:10]}: {consent.changed(approved)}", markup=False)
    if _answer(f"Does {name} take part by these terms? [y/N]: ").lower() not in ("y", "yes"):
        raise ConfigError(f"{name}: its owner has not approved the terms; nothing was sent")


def _answer(question: str) -> str:
    """What somebody types; nothing at the end of the input. `typer.confirm` would take Ctrl-C for a no."""
    typer.echo(question, nl=False)
    answer = ""
    try:
        answer = sys.stdin.readline() if sys.stdin else ""
    finally:
        if not answer.endswith("\n"):
            typer.echo()
    return answer.strip()
