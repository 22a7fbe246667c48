"""`cvfl server`: the server of a federation."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from cvfl.cli.align import alignment_line
from cvfl.cli.errors import extra, one_line
from cvfl.cli.live import BoardAt, BoardToken, Recorded, recorded, shown
from cvfl.cli.observers import Observer, observed
from cvfl.cli.role import (
    FROM,
    Again,
    Changes,
    Config,
    Insecure,
    LogJson,
    MLflow,
    Predict,
    Restart,
    Serve,
    State,
    TensorBoard,
    Without,
    check_kind,
    identity_of,
    monitored,
    state_of,
    tell_terms,
)
from cvfl.cli.tables import budget_lines, noise_lines, results_table, start_lines
from cvfl.cli.tracking import tracked
from cvfl.cli.train import free_path
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.descriptors import claim_descriptors
from cvfl.errors import check_writable
from cvfl.federation.roles import ServerRun
from cvfl.protocol import Loss
from cvfl.protocol.learning.metrics import evaluate
from cvfl.runs.directory import RunDirectory, is_being_written
from cvfl.runtime import one_thread_a_role
from cvfl.runtime.carrier import ServerEnd
from cvfl.serving.apart import ServerPrediction
from cvfl.serving.bundles import server_start
from cvfl.serving.online.roles import check_serves, serving_recorder
from cvfl.serving.online.stock import ServerStock


def server(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="Run directory to write; runs/NAME-SEED when not given.")] = None,
    state: State = None,
    restart: Restart = False,
    align_again: Again = False,
    change: Changes = None,
    insecure: Insecure = False,
    log_json: LogJson = False,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    board: BoardAt = None,
    board_token: BoardToken = None,
    predict: Predict = False,
    without: Without = None,
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
    Example: cvfl server federation.toml --board 127.0.0.1:8080
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
        check_kind(predict, serve, from_run, None, without)
        usual = Path("runs") / f"{config.stem}-{settings.seed}"
        if serve:
            _serve_server(settings, model or usual, state or state_of(config, "serve-server"), insecure, seen)
            return
        if predict:
            batches = lambda done, total: seen.step("predicting", done, total)  # noqa: E731
            place = state or state_of(config, "predict-server")
            prediction = ServerPrediction(settings, model or usual, place, stack, batches, without or ())
            _listen(prediction.end, settings, insecure, seen)
            if prediction.role.aligned:
                seen.event(alignment_line(prediction.role.aligned))
            seen.event("predicted", **prediction.counted)
            prediction.recorder.ended()
            return
        target, start = out or free_path(usual), server_start(from_run, settings) if from_run else None
        # Refuses it now rather than after the last round; a crash may have stopped this server while it wrote there.
        RunDirectory(target, is_being_written(target), start.told if start else None).check(settings)
        check_writable(target)
        run = ServerRun(settings, settings.compressor, state or state_of(config, "server"), seen.round, restart, start)
        stack.callback(run.close)
        if align_again:
            run.role.keeper.forget()
        with (
            tracked(mlflow, target.name, settings, seen) as tracking,
            shown(target, board, board_token, seen),
            recorded(seen, target, settings, run.lines) as told,
        ):
            run.on_round = told.round
            with monitored(run, told):
                _listen(run.end, settings, insecure, told)
            result = run.finish(target)
            if tracking:
                tracking.finish(target, result.summary)
        seen.event("finished", rounds=result.summary["rounds"], out=str(result.path))
    if not log_json:
        if run.role.aligned:
            console.print(alignment_line(run.role.aligned))
        summary = result.summary
        lines = (*start_lines(summary), *budget_lines(summary), *noise_lines(summary))
        console.print(results_table([summary]), *lines, sep="\n")


def _listen(role: ServerEnd, settings: RunConfig, insecure: bool, seen: Observer) -> None:
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
        on_turn=(lambda: seen.look(role)) if isinstance(seen, Recorded) else lambda: None,
    )
    host = network.address.rpartition(":")[0]
    seen.event("listening", address=f"{host}:{carrier.port}", parties=", ".join(role.names))
    carrier.run(lambda missing, seconds: seen.wait(", ".join(missing), seconds))


def _serve_server(settings: RunConfig, model: Path, state: Path, insecure: bool, seen: Observer) -> None:
    """Serve until the process is stopped; where a party alone scores, the server needs no model."""
    check_serves(settings)
    with extra("grpc"):
        from cvfl.serving.online.service import serve_server  # noqa: PLC0415  an extra

    stock = None if settings.privacy.scores_apart else ServerStock(settings, model)
    identity = identity_of(settings, "server", insecure)
    scoring, look = (stock.kept, stock.look) if stock else (None, None)
    run = scoring.newest.bundle.run if scoring else None
    with closing(serving_recorder(state, "server", settings, run)) as recorder:
        serve_server(settings, scoring, look, recorder, identity, seen.event)


def _load_ahead() -> None:
    """Load what PyTorch and scikit-learn load at their first use: while strangers connect, a file may not be opened."""
    weight = torch.zeros(1, requires_grad=True)
    torch.optim.Adam([weight]).step()
    evaluate(Loss.BINARY, torch.zeros(2), torch.tensor([0.0, 1.0]))
