"""`cvfl serve`: the door of a federation, an HTTP API at the party that had the label."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cvfl.cli.consent import Approve, agree, checked
from cvfl.cli.errors import extra, one_line
from cvfl.cli.observers import observed
from cvfl.cli.role import (
    MEMORY_MB,
    REFRESH,
    Changes,
    Config,
    Insecure,
    LogJson,
    Memory,
    Refresh,
    identity_of,
    state_of,
    tell_terms,
)
from cvfl.config.files import load_config
from cvfl.descriptors import claim_descriptors
from cvfl.errors import ConfigError
from cvfl.runtime import one_thread_a_role
from cvfl.runtime.carrier import Turn
from cvfl.serving.consent import serving_consent
from cvfl.serving.online.batching import ROWS
from cvfl.serving.online.desk import Desk
from cvfl.serving.online.door import Keys, Limits, check_open
from cvfl.serving.online.roles import check_serves, serving_recorder, serving_terms
from cvfl.serving.online.stock import PartyStock

_PATIENCE = 5.0
"""Seconds in which the connection to the server ends."""


def serve(
    config: Config,
    name: Annotated[str, typer.Option(help="The party that had the label; its certificate has the same name.")],
    http: Annotated[str, typer.Option(help="Where to listen for requests: HOST:PORT.")] = "127.0.0.1:8080",
    model: Annotated[Path | None, typer.Option(help="Folder of the party's model; models/CONFIG by default.")] = None,
    keys: Annotated[Path | None, typer.Option(help="File of API keys, a line NAME KEY each.")] = None,
    max_ids: Annotated[int, typer.Option(help="Ids that a request may have.")] = 1000,
    rate: Annotated[float, typer.Option(help="Requests a second of one key; 0: as many as come.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds until a request without an answer is an error.")] = 5.0,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the door, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Whoever asks needs a certificate of this authority.")] = None,
    memory: Memory = MEMORY_MB,
    refresh: Refresh = REFRESH,
    state: Annotated[
        Path | None, typer.Option(help="Folder of what is kept; state/CONFIG/serve-NAME by default.")
    ] = None,
    change: Changes = None,
    insecure: Insecure = False,
    log_json: LogJson = False,
    approve: Approve = False,
) -> None:
    """Answer requests for scores over HTTP, at the party that had the label.

    The server runs `cvfl server CONFIG --serve`, every other party `cvfl party CONFIG --name NAME --serve`. A new
    bundle in a role's folder, or a changed table, is taken up without a pause. SIGTERM lets requests under way finish.

    Example: cvfl serve federation.toml --name bank --model models/bank --http 127.0.0.1:8080
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack, observed(console, name, log_json, None) as seen, one_thread_a_role():
        with extra("serve"):
            from cvfl.serving.online.app import Door, make_app  # noqa: PLC0415  an extra
            from cvfl.serving.online.listen import listen  # noqa: PLC0415
        with extra("grpc"):
            from cvfl.serving.online.service import serve_party  # noqa: PLC0415
        claim_descriptors()
        limits, known = Limits(max_ids, rate, timeout), Keys(keys)
        check_open(http, known)
        if (tls_cert is None) != (tls_key is None) or (tls_ca is not None and tls_cert is None):
            raise ConfigError("HTTPS needs both --tls-cert and --tls-key; --tls-ca asks for certificates besides")
        settings = load_config(config, change or [])
        check_serves(settings)
        tell_terms(settings, seen)
        identity = identity_of(settings, name, insecure)
        place, check = model or Path("models") / config.stem, checked(settings, name, config)
        stock = PartyStock(settings, name, place, memory << 20, refresh, seen.step, check)
        if not stock.label:
            raise ConfigError(
                f"{name} did not have the label, so it may not see scores; serve at the party that had it"
            )
        for note in stock.notes:
            seen.event(note)
        turn = Turn()
        desk = Desk(stock, turn, ROWS)
        stack.enter_context(desk.batching)
        door, over = Door(desk, config.stem, known, limits), threading.Event()
        folder = state or state_of(config, f"serve-{name}")
        recorder = stack.enter_context(closing(serving_recorder(folder, name, settings, stock.bundle.run)))
        consent = serving_consent(settings, stock.bundle, serving_terms(settings))
        agree(consent, recorder.log, name, config, settings.consent.required, approve, console, seen.pause)

        def party() -> None:
            try:
                serve_party(stock, folder, recorder, identity, seen.event, turn, desk, over)
            except BaseException as error:  # a door without its party answers nothing
                desk.fail(error)

        thread = threading.Thread(target=party, daemon=True, name="cvfl-party")
        thread.start()
        said = lambda: seen.event("answering", http=http, model=config.stem)  # noqa: E731
        try:
            listen(make_app(door), door, http, limits.timeout, (tls_cert, tls_key, tls_ca), said)
        finally:
            over.set()
            turn.hang_up()
            thread.join(_PATIENCE)
