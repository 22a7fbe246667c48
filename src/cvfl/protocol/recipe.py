"""How to build each role: the plan, the model of every role, and the compressor of every sender."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from cvfl.compress import Compressor, Masked, Scalar, Wrapped
from cvfl.compress.masked import finest
from cvfl.errors import ConfigError
from cvfl.memory import Memory
from cvfl.protocol.absence import Presence
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.coding.codec import Codec, Samples
from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.coding.model_codec import ModelCodec
from cvfl.protocol.evaluation import Labels
from cvfl.protocol.fusion import Foldable
from cvfl.protocol.learning.guard import hide
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.limits import Limits, limit_of
from cvfl.protocol.party import Party
from cvfl.protocol.plan import Plan
from cvfl.protocol.release import MakeRelease, Secret
from cvfl.protocol.rows import Holding
from cvfl.protocol.server import Server
from cvfl.types import SERVER

MakeModel = Callable[[], nn.Module]
MakeCompressor = Callable[[], Compressor]
_HELD_OUT = "test embedding"
_LAST_PASS = "embedding of the last pass"
"""What it is called; dither and masks are those of held-out rows."""


@dataclass(frozen=True)
class Recipe:
    """Builds roles; the same recipe at every role gives one federation."""

    plan: Plan
    names: tuple[str, ...]
    models: tuple[MakeModel, ...]
    server_model: MakeModel
    compressors: tuple[MakeCompressor, ...]
    evaluation_compressors: tuple[MakeCompressor, ...]
    server_compressor: MakeCompressor
    gradient_compressor: MakeCompressor
    partial_compressor: MakeCompressor
    offered: tuple[int, ...] = ()
    """Widths of the parties' own embeddings: those of the plan, unless they hold a part of the first layer."""
    parted: bool = False
    """Whether parties hold their own parts of the server model's first layer."""
    holder: int = SERVER
    """The role that holds the labels, and with them the server model when it is a party."""
    release: MakeRelease | None = None
    """What an embedding passes through before it leaves a party."""
    wrapped: Wrapped | None = None
    """The grid of masked embeddings, of training and held-out rows, where parties share their noise."""
    last_pass: tuple[MakeCompressor, ...] = ()
    """Of all rows once more when the rounds are over, for the plan's private holder."""
    memory: float = math.inf
    """Bytes of memory that a role may take for what it knows of rows; a role's own affair, which no bit depends on."""

    started: frozenset[int] = frozenset()
    """The parties that begin with the weights of an earlier run."""
    limits: Limits = field(default_factory=Limits)
    """Norms beyond which this role takes nothing: its own affair, too."""
    guess: MakeModel | None = None
    """What parties take theta_0 for before they hear of it, where it starts from weights that the server alone has."""

    def codecs(self, folder: Path | None = None) -> Codecs:
        """New codecs for all senders; what they know of rows beyond the role's memory is kept in the folder."""
        plan, parties, memory = self.plan, list(enumerate(self.names, start=1)), Memory(self.memory, folder)
        samples, kept = Samples(plan.batch, plan.rows, memory), plan.cached
        make, part = (
            (self.partial_compressor, "sum over the others") if plan.folding else (self.gradient_compressor, "gradient")
        )
        rows = limit_of(self.limits, "embedding")
        reply = rows if plan.folding else limit_of(self.limits, "gradient")
        embedding = {
            m: Codec(self.compressors[m - 1](), plan.seed, m, name, "embedding", self._sent(m, memory), kept, rows)
            for m, name in parties
        }
        held_out = Samples(lambda t0: torch.arange(plan.held_out_rows), plan.held_out_rows, memory)
        evaluation = {
            m: Codec(self.evaluation_compressors[m - 1](), plan.seed, m, name, _HELD_OUT, held_out, limit=rows)
            for m, name in parties
        }
        replies = {
            m: Codec(make(), plan.seed, m, f"server, for {name}", part, samples, kept, reply) for m, name in parties
        }
        makers = zip(parties, self.last_pass, strict=False)  # there are none where there is no such pass
        last = {m: Codec(make(), plan.seed, m, name, _HELD_OUT, called=_LAST_PASS) for (m, name), make in makers}
        codecs = Codecs(embedding, evaluation, replies, self._model_codecs(), None, None, self.limits, memory, last)
        return self._masked(codecs) if plan.secure else codecs

    def _sent(self, m: int, memory: Memory) -> Samples:
        """What party m's messages are of: training rows, and rows of the root of its noise behind them."""
        plan = self.plan
        return Samples(partial(plan.sent_rows, m), plan.rows + plan.quiet * plan.widths[m - 1], memory)

    def _masked(self, codecs: Codecs) -> Codecs:
        """The same with embeddings that can only be read as a sum, those of held-out rows on the finest grid.

        With noise that parties share both are on its grid, which has no ends.
        """
        plan, parties, grid = self.plan, list(enumerate(self.names, start=1)), self.compressors[0]()
        if not isinstance(grid, Scalar) or grid.range.fixed is None:
            raise ConfigError("secure aggregation needs a grid that all parties have: scalar with low and high")
        rows = limit_of(self.limits, "embedding")
        coarse, fine = self.wrapped or grid, self.wrapped or Scalar(finest(plan.M), *grid.range.fixed)
        return replace(
            codecs,
            embeddings={m: Codec(Masked(coarse, plan.M), plan.seed, m, name) for m, name in parties},
            evaluations={m: Codec(Masked(fine, plan.M), plan.seed, m, name, _HELD_OUT) for m, name in parties},
            total=Aggregate(Masked(coarse, plan.M), plan.seed, self.names, limit=rows),
            held_out_total=Aggregate(Masked(fine, plan.M), plan.seed, self.names, _HELD_OUT, rows),
            last_pass={
                m: Codec(Masked(fine, plan.M), plan.seed, m, self.names[m - 1], _HELD_OUT, called=_LAST_PASS)
                for m in codecs.last_pass
            },
            last_pass_total=Aggregate(Masked(fine, plan.M), plan.seed, self.names, _HELD_OUT)
            if codecs.last_pass
            else None,
        )

    def _model_codecs(self) -> dict[int, ModelCodec]:
        model, plan, limit = self.initial_server_model(), self.plan, limit_of(self.limits, "model")
        if isinstance(model, Foldable) and plan.folding:
            pieces = {m: model.pieces(plan.columns(m)) for m in range(1, plan.M + 1)}
            return {m: ModelCodec(self.server_compressor, pieces[m], plan.seed, limit=limit) for m in pieces}
        whole = ModelCodec(self.server_compressor, dict(model.named_parameters()), plan.seed, limit=limit)
        return dict.fromkeys(range(1, plan.M + 1), whole)

    def initial_server_model(self) -> nn.Module:
        """theta_0 at the start."""
        return initialised(self.server_model, self.plan.seed, SERVER).to(self.plan.device)

    def party(self, m: int, holding: Holding, codecs: Codecs, secret: Secret | None = None) -> Party:
        """Party m with what it holds; its secret is for what it releases, and its own affair when not given."""
        model = initialised(self.models[m - 1], self.plan.seed, m).to(self.plan.device)
        if self.plan.reconstruction_penalty is not None and m not in self.started:
            sample = holding.batch(torch.arange(2) % self.plan.rows, self.plan.seed, 0).to(self.plan.device)
            hide(model, lambda step: self._first_rows(holding, step), sample, self.plan.seed, m)
        release = self.release(model, self.compressors[m - 1](), secret) if self.release else None
        theta_0 = initialised(self.guess or self.server_model, self.plan.seed, SERVER).to(self.plan.device)
        return Party(m, self.plan, holding, model, theta_0, codecs, release)

    def _first_rows(self, holding: Holding, step: int) -> torch.Tensor:
        """The training rows of a batch of the first epoch, again and again, that the party holds."""
        rows = self.plan.batch(step % self.plan.rounds_per_epoch)
        held = rows if holding.present is None else rows[holding.present[rows]]
        return holding.batch(held, self.plan.seed, 0).to(self.plan.device)

    def server(self, labels: Labels, codecs: Codecs, around: int = 0, present: Presence | None = None) -> Server:
        """The server with the labels, and who holds which rows if not everybody holds all of them.

        With a budget `around` is what is foreseen beside the rounds.
        """
        return Server(self.plan, labels, self.initial_server_model(), codecs, around, present)
