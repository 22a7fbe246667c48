"""Numbers that are too large to compute with: whoever sends them is named, not who stumbles over them.

Where nobody can know whose they are, because each is within its limits or all are masked, the line says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.cases import SECURE, SERVER, settings
from conformance.loop import Loop
from conformance.threads import threads
from cvfl.compress import Context, Identity, build
from cvfl.config.schema import RunConfig
from cvfl.errors import CompressError, CvflError, DataError, RemoteProtocolError
from cvfl.protocol.coding.codec import LIMIT, Codec
from cvfl.wire.packet import Packet

pytestmark = pytest.mark.usefixtures("tidy")
OPEN: dict[str, Any] = {"compressor": "identity", "server_compressor": "identity"}
DIABETES: dict[str, Any] = {"data": {"name": "diabetes", "parties": 3}, "batch_size": 100}
MODES: dict[str, dict[str, Any]] = {
    "relayed": OPEN,
    "folded": OPEN | {"folding": True},
    "quantized": {"compressor": "scalar:bits=8"},
    "differences": {"compressor": "feedback(scalar:bits=8)"},
    "squared loss": OPEN | DIABETES,
    "algorithm 2": OPEN | {"algorithm": 2, "local_iterations": 1},
    "private labels": OPEN | {"privacy": {"labels": "server"}},
    "labels at a party": OPEN | {"privacy": {"labels": "hospital"}, "local_iterations": 1},
}
BEYOND = r"beyond the ±1\.15e\+18 that can be computed with$"


def swollen(codec: Codec, size: float) -> None:
    """Send numbers of this size from now on, whatever the own end would say of them."""

    compress = codec.compressor.compress

    def swell(h: Tensor, context: Context) -> Packet:
        signs = 1 - 2 * (torch.arange(h.numel()) % 2).reshape(h.shape)
        return compress(size * signs.to(h), context)

    codec.compressor.compress = swell  # type: ignore[method-assign]


def run(config: RunConfig, folder: Path, lie: Callable[[Loop], None]) -> Loop:
    """Until the first round is over, then on with a lie until somebody notices."""
    loop = Loop(config, folder)
    bank = loop.parties["bank"].role
    while bank.party is None or bank.party.t0 == 0:
        loop.step()
    lie(loop)
    while not loop.over:
        loop.step()
    return loop


def party(loop: Loop, name: str) -> Any:
    """The party's machine, within what seals its messages if there is such a thing."""
    machine = loop.parties[name].role.party
    return getattr(machine, "party", machine)


@pytest.mark.parametrize("size", [3e37, 1e20])
@pytest.mark.parametrize("mode", MODES)
def test_an_embedding_beyond_the_limit_names_its_party(mode: str, size: float, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"^bank, round \d: the embedding reaches .*, {BEYOND}"):
        run(settings(**MODES[mode]), tmp_path, lambda loop: swollen(party(loop, "bank").codec, size))


@pytest.mark.parametrize("mode", ["relayed", "labels at a party"])
def test_so_does_one_of_held_out_rows(mode: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"^bank, round \d: the test embedding reaches 3e\+38, {BEYOND}"):
        run(settings(**MODES[mode]), tmp_path, lambda loop: swollen(party(loop, "bank").evaluation_codec, 3e38))


@pytest.mark.parametrize(("mode", "what"), [("algorithm 2", "gradient"), ("folded", "sum over the others")])
def test_what_the_server_sends_names_the_server(mode: str, what: str, tmp_path: Path) -> None:
    def lie(loop: Loop) -> None:
        swollen(loop.server.role.rounds.server.exchange.codecs.replies[2], 1e20)  # type: ignore[union-attr]

    said = rf"^bank: server, for bank, round \d: the {what} reaches 1e\+20, {BEYOND}"
    with pytest.raises(RemoteProtocolError, match=said):
        run(settings(**MODES[mode] | {"evaluate_every": 6}), tmp_path, lie)


def test_a_sender_is_the_first_to_say_so() -> None:
    codec = Codec(Identity(), 1, 2, "bank")
    assert codec.encode(torch.full((3, 2), 1e18), 4)
    said = rf"^bank, round 4: the embedding reaches 1e\+20, {BEYOND[:-1]}; if training diverged, lower step_size.eta$"
    with pytest.raises(CompressError, match=said):
        codec.encode(torch.full((3, 2), -1e20), 4)


@pytest.mark.parametrize(
    "spec", ["scalar:bits=1", "lattice:bits=1", "topk:bits=4", "feedback(scalar:bits=1)", "deadzone"]
)
@pytest.mark.parametrize("dtype", LIMIT)
def test_what_a_sender_may_send_receivers_take(spec: str, dtype: torch.dtype) -> None:
    """Also when it is the difference from the opposite."""
    sender, receiver = (Codec(build(spec), 1, 2, "bank") for _ in range(2))
    for t0 in range(3):
        h = torch.linspace(-1, 1, 12, dtype=dtype).reshape(6, 2) * LIMIT[dtype] * (-1) ** t0
        receiver.decode(sender.encode(h, t0), t0, (6, 2), dtype)


@pytest.mark.parametrize("mode", ["folded", "squared loss"])
def test_within_the_limit_the_server_says_how_far_each_reached(mode: str, tmp_path: Path) -> None:
    """It cannot know whether a step size or a party is the reason; whoever reads it can."""
    with pytest.raises(CvflError, match=r"^server.*\(embeddings reached 1e\+15 at bank, [\d.]+ at ") as caught:
        run(settings(**MODES[mode]), tmp_path, lambda loop: swollen(party(loop, "bank").codec, 1e15))
    assert isinstance(caught.value, CompressError | DataError)


def test_of_masked_embeddings_nobody_can_tell(tmp_path: Path) -> None:
    """They are on a grid, so that none is too large; when training diverges all the same, it is said of nobody."""

    def diverge(loop: Loop) -> None:
        with torch.no_grad():
            for weights in loop.server.role.rounds.server.models["server"].parameters():  # type: ignore[union-attr]
                weights.fill_(1e30)

    with pytest.raises(CompressError, match=r"^server.*\(embeddings are masked: whose are large cannot be told\)$"):
        run(settings(**SECURE | {"server_compressor": "identity"}), tmp_path, diverge)


@pytest.mark.parametrize("labels", ["shared", "hospital"])
def test_everyone_hears_who_it_was(labels: str, tmp_path: Path) -> None:
    """Over gRPC; where a party holds the labels it is the first to know, and tells the server."""
    config = settings(**MODES["relayed" if labels == "shared" else "labels at a party"])
    with threads(config, tmp_path) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        federation.start("bank", on_round=lambda: _lie(federation.parties["bank"].role))
        federation.join()
        said = "the embedding reaches 1e+20, beyond the ±1.15e+18 that can be computed with"
        first = SERVER if labels == "shared" else "hospital"
        assert f"bank, round 1: {said}" in str(federation.errors[first])
        for role in (SERVER, "hospital", "bank"):
            assert said in str(federation.errors[role])


def _lie(role: Any) -> None:
    machine = getattr(role.party, "party", role.party)
    if machine is not None and machine.t0 == 0:
        swollen(machine.codec, 1e20)


@pytest.mark.parametrize("dtype", LIMIT)
def test_within_the_limit_squares_are_numbers(dtype: torch.dtype) -> None:
    assert torch.tensor(8 * LIMIT[dtype], dtype=dtype).square().isfinite()
