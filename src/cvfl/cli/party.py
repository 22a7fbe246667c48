"""`cvfl party`: one party of a federation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cvfl.cli.consent import Approve, agree, checked
from cvfl.cli.errors import extra, one_line
from cvfl.cli.observers import Observer, observed
from cvfl.cli.role import (
    FROM,
    MEMORY_MB,
    REFRESH,
    Again,
    Changes,
    Config,
    Insecure,
    LogJson,
    Memory,
    Predict,
    Refresh,
    Restart,
    Serve,
    State,
    Without,
    check_kind,
    identity_of,
    monitored,
    state_of,
    tell_terms,
)
from cvfl.cli.tables import label_account_lines
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.descriptors import claim_descriptors
from cvfl.errors import ConfigError, check_writable
from cvfl.federation.consent import Consent
from cvfl.federation.roles import PartyRun
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.start import Start
from cvfl.protocol.learning.metrics import headline
from cvfl.report.format import metric_label
from cvfl.runs.actions import ActionLog
from cvfl.runtime import one_thread_a_role
from cvfl.runtime.observed import ObservedParty
from cvfl.serving.apart import PartyPrediction
from cvfl.serving.bundles import party_start
from cvfl.serving.consent import serving_consent
from cvfl.serving.online.roles import check_serves, serving_recorder, serving_terms
from cvfl.serving.online.stock import PartyStock
from cvfl.serving.write import check_new, write_scores

Asked = Callable[[Consent, ActionLog], None]
"""Has the owner agree, where that is needed."""
MOST_COLUMNS = 5
"""Columns that are named at the end; the file has all."""


def party(
    config: Config,
    name: Annotated[str, typer.Option(help="Which party this is; its certificate has the same name.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where the party's model goes, models/CONFIG by default; with --predict the scores."),
    ] = None,
    state: State = None,
    restart: Restart = False,
    align_again: Again = False,
    change: Changes = None,
    insecure: Insecure = False,
    log_json: LogJson = False,
    predict: Predict = False,
    without: Without = None,
    force: Annotated[bool, typer.Option("--force", help="With --predict: replace scores that are there.")] = False,
    serve: Serve = False,
    model: Annotated[
        Path | None,
        typer.Option(help="With --predict or --serve: the folder of the party's model; models/CONFIG by default."),
    ] = None,
    memory: Memory = MEMORY_MB,
    refresh: Refresh = REFRESH,
    from_model: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help=f"{FROM} FOLDER has this party's model.")
    ] = None,
    approve: Approve = False,
    joins: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The others start from this run, by its number; this party was not in it."),
    ] = None,
) -> None:
    """Run one party of a federation: it needs its own section, its own table, the server's address and a certificate.

    With --predict its table has new rows. The party that had the label writes their scores, to scores.csv or --out.
    With --serve it answers what the door of `cvfl serve` asks, which is at the party that had the label.
    With --from it starts from its model of an earlier run; `cvfl model show` tells the number of that run, which a
    party that was not in it gives to --joins.
    With --approve it shows its owner who will see what and goes on when they say yes. From then on it trains by these
    terms alone, and does not ask again; with --predict or --serve it is asked about that; docs/consent.md.

    Example: cvfl party federation.toml --name hospital --set network.address=cvfl.example.org:8443
    Example: cvfl party may.toml --name hospital --from models/april
    Example: cvfl party may.toml --name clinic --joins 1f0c9a52b7d3e846
    Example: cvfl party may.toml --name hospital --predict --without clinic --out scores.csv
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack, observed(console, name, log_json, None) as seen, one_thread_a_role():
        claim_descriptors()
        settings = load_config(config, change or [])
        tell_terms(settings, seen)
        usual = Path("models") / config.stem
        check_kind(predict, serve, from_model, joins, without)
        required = settings.consent.required
        asked = partial(
            agree, name=name, config=config, required=required, ask=approve, console=console, pause=seen.pause
        )
        if serve:
            place = state or state_of(config, f"serve-{name}")
            stock = _stock(settings, name, model or usual, (memory << 20, refresh), seen, config)
            _serve_party(stock, place, asked, identity_of(settings, name, insecure), seen)
            return
        if predict:
            target, place = out or Path("scores.csv"), state or state_of(config, f"predict-{name}")
            check_new(target, force)
            new = PartyPrediction(settings, name, model or usual, place, stack, seen.step, without or ())
            new.role.identity = identity = identity_of(settings, name, insecure)
            asked(new.consent, new.recorder.log)
            _attend(new.role, settings, identity, seen, lambda: new.rows.notes, new.end)
            if new.rows.label:
                rows = write_scores(new.rows.batches(), target)
                seen.event("finished", rows=rows, scores=str(target))
            new.recorder.ended()
            return
        target, start = out or usual, _party_start(from_model, joins, name, settings)
        if from_model and from_model.resolve() == target.resolve():
            raise ConfigError(f"--from: the models of this run go to {target}, too; choose another folder with --out")
        check_writable(target)
        place = state or state_of(config, name)
        run = PartyRun(settings, name, place, stack, seen.step, restart=restart, start=start, agreed=asked)
        run.role.identity = identity = identity_of(settings, name, insecure)
        if align_again:
            run.role.keeper.forget()
        with monitored(run, seen):
            _attend(run.role, settings, identity, seen, lambda: run.notes, run.end)
        run.finish(target)
        account = run.label_account
        metric = headline(run.role.party.plan.loss) if run.role.party else ""
        for line in (*_columns_line(run), *(label_account_lines(account, metric) if account else ())):
            seen.event(line)
        seen.event("finished", model=str(target / f"{name}.safetensors"))


def _party_start(folder: Path | None, joins: str | None, name: str, settings: RunConfig) -> Start | None:
    """What this party starts from, if it does not start afresh."""
    if joins is not None and not re.fullmatch(r"[0-9a-f]{16,64}", joins):
        raise ConfigError(f"--joins: {joins!r} is no number of a run; the others find it with `cvfl model show`")
    if joins is not None:
        return Start.joining(joins)
    return party_start(folder, name, settings) if folder else None


def _columns_line(run: PartyRun) -> Iterator[str]:
    """Which columns of this party tell most, if that was asked for; nobody else hears of it."""
    if (found := run.columns) and found.each:
        told = [f"{one.column} {abs(found.together - one.without.value):.4f}" for one in found.each[:MOST_COLUMNS]]
        label = metric_label(found.metric)
        yield f"columns of {found.party} that tell most, by what {label} of training rows loses: {', '.join(told)}"


def _stock(
    settings: RunConfig, name: str, model: Path, kept: tuple[int, float], seen: Observer, file: Path
) -> PartyStock:
    """What a party without the label serves."""
    check_serves(settings)
    stock = PartyStock(settings, name, model, *kept, seen.step, checked(settings, name, file))
    if stock.label:
        raise ConfigError(f"{name} had the label, so it has the door: start it with cvfl serve")
    for note in stock.notes:
        seen.event(note)
    return stock


def _serve_party(stock: PartyStock, state: Path, asked: Asked, identity: Any, seen: Observer) -> None:
    """Serve until the process is stopped."""
    with extra("grpc"):
        from cvfl.serving.online.service import serve_party  # noqa: PLC0415  an extra

    with closing(serving_recorder(state, stock.name, stock.config, stock.bundle.run)) as recorder:
        asked(serving_consent(stock.config, stock.bundle, serving_terms(stock.config)), recorder.log)
        serve_party(stock, state, recorder, identity, seen.event)


def _attend(
    role: PartyRole,
    settings: RunConfig,
    identity: Any,
    seen: Observer,
    notes: Callable[[], Iterable[str]],
    end: ObservedParty,
) -> None:
    """Take part until the run, or the prediction, is over."""
    with extra("grpc"):
        from cvfl.runtime.grpc.party import attend  # noqa: PLC0415  an extra

    asked: dict[str, int] = {}
    said: set[str] = set()

    def say_once(line: str) -> None:
        if line not in said:
            said.add(line)
            seen.event(line)

    def on_frame() -> None:
        for note in notes():
            say_once(note)
        if role.keeper.reused:
            say_once(f"alignment of {role.keeper.reused} reused: ids have not changed")
        if role.blinded != asked:  # who had how many ids blinded here is worth a line
            asked.update(role.blinded)
            seen.event("blinded", **{name: f"{ids:,} ids" for name, ids in asked.items()})
        if role.party is not None:
            what = "batches" if role.rows.predicts else "rounds"
            seen.step(f"{role.name}: {what}", role.party.t0, role.party.plan.rounds)

    network = settings.network

    def waits(why: str, seconds: float) -> None:
        end.lost()
        seen.wait(f"the server at {network.address} ({why})", seconds)

    attend(
        end,
        network.address,
        identity,
        waits,
        network.wait_limit,
        network.max_frame_mb << 20,
        on_frame,
    )
