"""`cvfl server` and `cvfl party`: one role of a federation on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from cvfl.cli.align import alignment_line
from cvfl.cli.errors import extra, one_line
from cvfl.cli.observers import Observer, observed
from cvfl.cli.tables import budget_lines, noise_lines, results_table, start_lines
from cvfl.cli.train import free_path
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.descriptors import claim_descriptors
from cvfl.errors import ConfigError, check_writable
from cvfl.federation.party import PartyRole
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.federation.server import ServerRole
from cvfl.federation.start import Start
from cvfl.protocol import Loss
from cvfl.protocol.learning.metrics import evaluate
from cvfl.report.format import metric_label
from cvfl.runs.directory import RunDirectory, is_being_written
from cvfl.runtime import one_thread_a_role
from cvfl.serving.apart import PartyPrediction, ServerPrediction
from cvfl.serving.bundles import party_start, server_start
from cvfl.serving.online.roles import check_serves
from cvfl.serving.online.stock import PartyStock, ServerStock
from cvfl.serving.write import check_form, write_scores

MOST_COLUMNS = 5
"""Columns that are named at the end; the file has all."""
Config = Annotated[Path, typer.Argument(help="Configuration file (TOML).")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")]
State = Annotated[
    Path | None, typer.Option(help="Folder for checkpoints; state/CONFIG/ROLE beside the file when not given.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Begin anew; the state of the run so far is put aside.")]
Again = Annotated[bool, typer.Option("--align-again", help="Compare all ids, also when an earlier alignment is kept.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS; for this machine only.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Print JSON lines instead of a live display.")]
Predict = Annotated[bool, typer.Option("--predict", help="Score new rows with a trained model instead of training.")]
MEMORY_MB, REFRESH = 512, 600.0
Memory = Annotated[int, typer.Option(min=0, help="With --serve: MB for embeddings that are computed ahead.")]
Refresh = Annotated[float, typer.Option(min=1, help="With --serve: seconds after which a query is asked again.")]
Serve = Annotated[bool, typer.Option("--serve", help="Serve scores to the door of `cvfl serve` until it is stopped.")]
FROM = "Start from the models of an earlier run: new rows, the same columns. All roles name the same run."
Board = Annotated[Path | None, typer.Option("--tensorboard", help="Write scalars for TensorBoard to this folder.")]


def server(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="Run directory to write; runs/NAME-SEED when not given.")] = None,
    state: State = None,
    restart: Restart = False,
    align_again: Again = False,
    change: Changes = None,
    insecure: Insecure = False,
    log_json: LogJson = False,
    tensorboard: Board = None,
    predict: Predict = False,
    serve: Serve = False,
    model: Annotated[
        Path | None,
        typer.Option(help="With --predict or --serve: the run directory to use; runs/NAME-SEED when not given."),
    ] = None,
    from_run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help=f"{FROM} RUN is the server's run directory.")
    ] = None,
) -> None:
    """Run the server of a federation: wait for all parties, train, write the run directory.

    Started again after a crash it goes on from the newest round that all roles have. With --predict it scores new rows
    of the parties with the models of a run; the scores go to the party that had the label. With --serve it does so for
    every request at the door of `cvfl serve`.

    Example: cvfl server federation.toml --set network.address=0.0.0.0:8443 --set network.certificates=certs
    Example: cvfl server may.toml --from runs/april-0
    """
    console = Console(highlight=False)
    with (
        one_line(),
        ExitStack() as stack,
        observed(console, config.stem, log_json, tensorboard) as seen,
        one_thread_a_role(),
    ):
        claim_descriptors()
        settings = load_config(config, change or [])
        tell_terms(settings, seen)
        _load_ahead()
        _check_start(predict or serve, from_run)
        usual = Path("runs") / f"{config.stem}-{settings.seed}"
        _one_of(predict, serve)
        if serve:
            _serve_server(settings, model or usual, insecure, seen)
            return
        if predict:
            batches = lambda done, total: seen.step("predicting", done, total)  # noqa: E731
            prediction = ServerPrediction(settings, model or usual, stack, batches)
            _listen(prediction.role, settings, insecure, seen)
            if prediction.role.aligned:
                seen.event(alignment_line(prediction.role.aligned))
            seen.event("predicted", **prediction.counted)
            return
        target, start = out or free_path(usual), server_start(from_run, settings) if from_run else None
        # Refuses it now rather than after the last round; a crash may have stopped this server while it wrote there.
        RunDirectory(target, is_being_written(target), start.told if start else None).check(settings)
        check_writable(target)
        run = ServerRun(settings, settings.compressor, state or state_of(config, "server"), seen.round, restart, start)
        if align_again:
            run.role.keeper.forget()
        _listen(run.role, settings, insecure, seen)
        result = run.finish(target)
        seen.event("finished", rounds=result.summary["rounds"], out=str(result.path))
    if not log_json:
        if run.role.aligned:
            console.print(alignment_line(run.role.aligned))
        summary = result.summary
        lines = (*start_lines(summary), *budget_lines(summary), *noise_lines(summary))
        console.print(results_table([summary]), *lines, sep="\n")


def _listen(role: ServerRole, settings: RunConfig, insecure: bool, seen: Observer) -> None:
    """Serve the parties until the run, or the prediction, is over."""
    with extra("grpc"):
        from cvfl.runtime.grpc.server import FederationServer  # noqa: PLC0415  an extra

    network = settings.network
    carrier = FederationServer(
        role,
        network.address,
        identity_of(settings, "server", insecure),
        network.on_missing,
        network.wait_limit,
        network.max_frame_mb << 20,
        network.round_limit,
        seen.event,
    )
    host = network.address.rpartition(":")[0]
    seen.event("listening", address=f"{host}:{carrier.port}", parties=", ".join(role.names))
    carrier.run(lambda missing, seconds: seen.wait(", ".join(missing), seconds))


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

    Example: cvfl party federation.toml --name hospital --set network.address=cvfl.example.org:8443
    Example: cvfl party may.toml --name hospital --from models/april
    Example: cvfl party may.toml --name clinic --joins 1f0c9a52b7d3e846
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack, observed(console, name, log_json, None) as seen, one_thread_a_role():
        claim_descriptors()
        settings = load_config(config, change or [])
        tell_terms(settings, seen)
        usual = Path("models") / config.stem
        _check_start(predict or serve, from_model, joins)
        _one_of(predict, serve)
        if serve:
            place = state or state_of(config, f"serve-{name}")
            _serve_party(settings, name, model or usual, place, (memory << 20, refresh), insecure, seen)
            return
        if predict:
            target = out or Path("scores.csv")
            check_form(target)
            new = PartyPrediction(settings, name, model or usual, stack, seen.step)
            new.role.identity = identity = identity_of(settings, name, insecure)
            _attend(new.role, settings, identity, seen, lambda: new.rows.notes)
            if new.rows.label:
                rows = write_scores(new.rows.batches(), target)
                seen.event("finished", rows=rows, scores=str(target))
            return
        target, start = out or usual, _party_start(from_model, joins, name, settings)
        if from_model and from_model.resolve() == target.resolve():
            raise ConfigError(f"--from: the models of this run go to {target}, too; choose another folder with --out")
        run = PartyRun(settings, name, state or state_of(config, name), stack, seen.step, restart=restart, start=start)
        run.role.identity = identity = identity_of(settings, name, insecure)
        if align_again:
            run.role.keeper.forget()

        check_writable(target)
        _attend(run.role, settings, identity, seen, lambda: run.notes)
        run.finish(target)
        for line in _columns_line(run):
            seen.event(line)
        seen.event("finished", model=str(target / f"{name}.safetensors"))


def _check_start(predict: bool, from_model: Path | None, joins: str | None = None) -> None:
    if predict and (from_model or joins):
        raise ConfigError(
            "--predict trains nothing, nor does --serve: leave --from out, and name the models with --model"
        )
    if from_model and joins:
        raise ConfigError("--joins is for a party that was not in the earlier run; take it or --from, not both")


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


def _one_of(predict: bool, serve: bool) -> None:
    if predict and serve:
        raise ConfigError("--predict scores a table once, --serve whatever is asked for; give one of them")


def _serve_server(settings: RunConfig, model: Path, insecure: bool, seen: Observer) -> None:
    """Serve until the process is stopped; where labels stay with a party, the server needs no model."""
    check_serves(settings)
    with extra("grpc"):
        from cvfl.serving.online.service import serve_server  # noqa: PLC0415  an extra

    stock = None if settings.privacy.relayed else ServerStock(settings, model)
    identity = identity_of(settings, "server", insecure)
    serve_server(settings, stock.kept if stock else None, stock.look if stock else None, identity, seen.event)


def _serve_party(
    settings: RunConfig,
    name: str,
    model: Path,
    state: Path,
    kept: tuple[int, float],
    insecure: bool,
    seen: Observer,
) -> None:
    """The same of a party without the label."""
    check_serves(settings)
    with extra("grpc"):
        from cvfl.serving.online.service import serve_party  # noqa: PLC0415  an extra

    stock = PartyStock(settings, name, model, *kept, seen.step)
    if stock.label:
        raise ConfigError(f"{name} had the label, so it has the door: start it with cvfl serve")
    for note in stock.notes:
        seen.event(note)
    serve_party(stock, state, identity_of(settings, name, insecure), seen.event)


def _attend(
    role: PartyRole, settings: RunConfig, identity: Any, seen: Observer, notes: Callable[[], Iterable[str]]
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
    attend(
        role,
        network.address,
        identity,
        lambda why, seconds: seen.wait(f"the server at {network.address} ({why})", seconds),
        network.wait_limit,
        network.max_frame_mb << 20,
        on_frame,
    )


def state_of(config: Path, role: str) -> Path:
    """Where a role keeps its state: beside the configuration file, so that it is found again from any folder."""
    return config.absolute().parent / "state" / config.stem / role


def tell_terms(config: RunConfig, seen: Observer) -> None:
    """By which terms this role takes part, so that people can compare them."""
    if config.terms_sha256:
        seen.event("terms", sha256=config.terms_sha256)


def _load_ahead() -> None:
    """Load what PyTorch and scikit-learn load at their first use: while strangers connect, a file may not be opened."""
    weight = torch.zeros(1, requires_grad=True)
    torch.optim.Adam([weight]).step()
    evaluate(Loss.BINARY, torch.zeros(2), torch.tensor([0.0, 1.0]))


def identity_of(config: RunConfig, name: str, insecure: bool) -> Any:
    """A role's certificate and key; none without TLS, which is for this machine only."""
    with extra("grpc"):
        from cvfl.runtime.grpc.channel import Identity, check_insecure  # noqa: PLC0415  an extra

    if insecure:
        check_insecure(config.network.address)
        return None
    if config.network.certificates is None:
        raise ConfigError("network.certificates: say where the certificates are; `cvfl certs` makes them")
    return Identity.load(config.network.certificates, name)
