"""What `cvfl server`, `cvfl party` and `cvfl serve` share: their options, and what each role does first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cvfl import __version__
from cvfl.cli.errors import extra
from cvfl.cli.observers import Observer
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.agreement.terms import digest_of
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.runs.progress import Progress

Config = Annotated[Path, typer.Argument(help="Configuration file (TOML).")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")]
State = Annotated[
    Path | None, typer.Option(help="Folder for checkpoints and the log of actions; by default below state/CONFIG.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Begin anew; the state of the run so far is put aside.")]
Again = Annotated[bool, typer.Option("--align-again", help="Compare all ids, also when an earlier alignment is kept.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS; for this machine only.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Print JSON lines instead of a live display.")]
Predict = Annotated[bool, typer.Option("--predict", help="Score new rows with a trained model instead of training.")]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="With --predict: go on without this party, which is away; repeat for more."),
]
MEMORY_MB, REFRESH = 512, 600.0
Memory = Annotated[int, typer.Option(min=0, help="With --serve: MB for embeddings that are computed ahead.")]
Refresh = Annotated[float, typer.Option(min=1, help="With --serve: seconds after which a query is asked again.")]
Serve = Annotated[bool, typer.Option("--serve", help="Serve scores to the door of `cvfl serve` until it is stopped.")]
FROM = "Start from the models of an earlier run: new rows, the same columns. All roles name the same run."
MLflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow", metavar="URI", help="Log the run to this tracking server or database, such as sqlite:///mlflow.db."
    ),
]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", help="Write scalars for TensorBoard to this folder.")
]


def check_kind(
    predict: bool,
    serve: bool,
    start: Path | None = None,
    joins: str | None = None,
    without: Sequence[str] | None = None,
) -> None:
    """Refuse options of which a role can do one: score a table, serve, or train from an earlier run or afresh."""
    if without and not predict:
        raise ConfigError("--without is for --predict; training needs every party, and --serve finds out who is away")
    if predict and serve:
        raise ConfigError("--predict scores a table once, --serve whatever is asked for; give one of them")
    if (predict or serve) and (start or joins):
        raise ConfigError(
            "--predict trains nothing, nor does --serve: leave --from out, and name the models with --model"
        )
    if start and joins:
        raise ConfigError("--joins is for a party that was not in the earlier run; take it or --from, not both")


def state_of(config: Path, role: str) -> Path:
    """Where a role keeps its state: beside the configuration file, so that it is found again from any folder."""
    return config.absolute().parent / "state" / config.stem / role


def tell_terms(config: RunConfig, seen: Observer) -> None:
    """By which terms this role takes part, so that people can compare them."""
    if config.terms_sha256:
        seen.event("terms", sha256=config.terms_sha256)


@contextmanager
def monitored(run: ServerRun | PartyRun, seen: Observer) -> Iterator[None]:
    """Figures of a role for Prometheus, where its file says so."""
    network = run.config.network
    if network.metrics is None:
        yield
        return
    with extra("serve", "network.metrics"):
        from cvfl.runtime.exporter import RoleMetrics, exported  # noqa: PLC0415  an extra

    def rounds() -> int | None:
        machine = run.role.rounds.server if isinstance(run, ServerRun) else run.role.party
        return machine.plan.rounds if machine else None

    own, names = (0, run.role.names) if isinstance(run, ServerRun) else (run.role.rows.m, run.role.rows.names)
    about = {"version": __version__, "terms": digest_of(run.role.terms)}
    metrics = RoleMetrics(own, names, run.end.times, run.state.path / "checkpoints", about, rounds)

    def told(progress: Progress) -> None:
        metrics.loss = progress.report.loss

    with exported(metrics, network.metrics, network.metrics_anywhere) as where:
        run.end.witnesses.append(metrics)
        seen.listeners += (told,)
        seen.event("metrics", address=f"http://{where}/metrics")
        yield


def identity_of(config: RunConfig, name: str, insecure: bool) -> Any:
    """A role's certificate and key; none without TLS, which is for this machine only."""
    with extra("grpc"):
        from cvfl.runtime.grpc.channel import Identity, check_insecure  # noqa: PLC0415  an extra

    if insecure:
        check_insecure(config.network.address)
        return None
    if config.network.certificates is None:
        raise ConfigError("network.certificates: say where the certificates are; `cvfl certs request` begins one")
    return Identity.load(config.network.certificates, name)
