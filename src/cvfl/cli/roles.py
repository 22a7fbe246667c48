"""`cvfl server` and `cvfl party`: one role of a federation on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from cvfl.cli.align import alignment_line
from cvfl.cli.errors import extra, one_line
from cvfl.cli.observers import observed
from cvfl.cli.tables import budget_lines, noise_lines, results_table
from cvfl.cli.train import free_path
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.descriptors import claim_descriptors
from cvfl.errors import ConfigError, check_writable
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.protocol import Loss
from cvfl.protocol.learning.metrics import evaluate
from cvfl.runs.directory import RunDirectory, is_being_written
from cvfl.runtime import one_thread_a_role

Config = Annotated[Path, typer.Argument(help="Configuration file (TOML).")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; repeat for more.")]
State = Annotated[
    Path | None, typer.Option(help="Folder for checkpoints; state/CONFIG/ROLE beside the file when not given.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Begin anew; the state of the run so far is put aside.")]
Again = Annotated[bool, typer.Option("--align-again", help="Compare all ids, also when an earlier alignment is kept.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS; for this machine only.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Print JSON lines instead of a live display.")]
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
) -> None:
    """Run the server of a federation: wait for all parties, train, write the run directory.

    Started again after a crash it goes on from the newest round that all roles have.

    Example: cvfl server federation.toml --set network.address=0.0.0.0:8443 --set network.certificates=certs
    """
    console = Console(highlight=False)
    with one_line(), observed(console, config.stem, log_json, tensorboard) as seen, one_thread_a_role():
        claim_descriptors()
        with extra("grpc"):
            from cvfl.runtime.grpc.server import FederationServer  # noqa: PLC0415  an extra

        settings = load_config(config, change or [])
        _load_ahead()
        target = out or free_path(Path("runs") / f"{config.stem}-{settings.seed}")
        # Refuses it now rather than after the last round; a crash may have stopped this server while it wrote there.
        RunDirectory(target, resume=is_being_written(target)).check(settings)
        check_writable(target)
        folder, network = state or _state(config, "server"), settings.network
        run = ServerRun(settings, settings.compressor, folder, seen.round, restart)
        if align_again:
            run.role.keeper.forget()
        carrier = FederationServer(
            run.role,
            network.address,
            _identity(settings, "server", insecure),
            network.on_missing,
            network.wait_limit,
            network.max_frame_mb << 20,
            network.round_limit,
            seen.event,
        )
        host = network.address.rpartition(":")[0]
        seen.event("listening", address=f"{host}:{carrier.port}", parties=", ".join(run.role.names))
        carrier.run(lambda missing, seconds: seen.wait(", ".join(missing), seconds))
        result = run.finish(target)
        seen.event("finished", rounds=result.summary["rounds"], out=str(result.path))
    if not log_json:
        if run.role.aligned:
            console.print(alignment_line(run.role.aligned))
        summary = result.summary
        console.print(results_table([summary]), *budget_lines(summary), *noise_lines(summary), sep="\n")


def party(
    config: Config,
    name: Annotated[str, typer.Option(help="Which party this is; its certificate has the same name.")],
    out: Annotated[Path | None, typer.Option(help="Where the party's model goes; models/CONFIG by default.")] = None,
    state: State = None,
    restart: Restart = False,
    align_again: Again = False,
    change: Changes = None,
    insecure: Insecure = False,
    log_json: LogJson = False,
) -> None:
    """Run one party of a federation: it needs its own section, its own table, the server's address and a certificate.

    Example: cvfl party federation.toml --name hospital --set network.address=cvfl.example.org:8443
    """
    console = Console(highlight=False)
    with one_line(), ExitStack() as stack, observed(console, name, log_json, None) as seen, one_thread_a_role():
        claim_descriptors()
        with extra("grpc"):
            from cvfl.runtime.grpc.party import attend  # noqa: PLC0415  an extra

        settings = load_config(config, change or [])
        folder, network = state or _state(config, name), settings.network
        run = PartyRun(settings, name, folder, stack, seen.step, restart=restart)
        run.role.identity = identity = _identity(settings, name, insecure)
        if align_again:
            run.role.keeper.forget()

        target = out or Path("models") / config.stem
        check_writable(target)
        asked: dict[str, int] = {}
        said: set[str] = set()

        def say_once(line: str) -> None:
            if line not in said:
                said.add(line)
                seen.event(line)

        def on_frame() -> None:
            for note in run.notes:
                say_once(note)
            if run.role.keeper.reused:
                say_once(f"alignment of {run.role.keeper.reused} reused: ids have not changed")
            if run.role.blinded != asked:  # who had how many ids blinded here is worth a line
                asked.update(run.role.blinded)
                seen.event("blinded", **{name: f"{ids:,} ids" for name, ids in asked.items()})
            if run.role.party is not None:
                seen.step(f"{name}: rounds", run.role.party.t0, run.role.party.plan.rounds)

        attend(
            run.role,
            network.address,
            identity,
            lambda why, seconds: seen.wait(f"the server at {network.address} ({why})", seconds),
            network.wait_limit,
            network.max_frame_mb << 20,
            on_frame,
        )
        run.finish(target)
        seen.event("finished", model=str(target / f"{name}.safetensors"))


def _state(config: Path, role: str) -> Path:
    """Beside the configuration file, so that it is found again from any folder."""
    return config.absolute().parent / "state" / config.stem / role


def _load_ahead() -> None:
    """Load what PyTorch and scikit-learn load at their first use: while strangers connect, a file may not be opened."""
    weight = torch.zeros(1, requires_grad=True)
    torch.optim.Adam([weight]).step()
    evaluate(Loss.BINARY, torch.zeros(2), torch.tensor([0.0, 1.0]))


def _identity(config: RunConfig, name: str, insecure: bool):  # type: ignore[no-untyped-def]
    from cvfl.runtime.grpc.channel import Identity, check_insecure  # noqa: PLC0415  an extra

    if insecure:
        check_insecure(config.network.address)
        return None
    if config.network.certificates is None:
        raise ConfigError("network.certificates: say where the certificates are; `cvfl certs` makes them")
    return Identity.load(config.network.certificates, name)
