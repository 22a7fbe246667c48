"""How to build each role: the plan, the model of every role, and the compressor of every sender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from cvfl.compress import Compressor
from cvfl.protocol.codec import Codec, ModelCodec
from cvfl.protocol.layers import initialised
from cvfl.protocol.party import Party
from cvfl.protocol.plan import Plan
from cvfl.protocol.rows import Holding
from cvfl.protocol.server import Labels, Server
from cvfl.types import SERVER

MakeModel = Callable[[], nn.Module]
MakeCompressor = Callable[[], Compressor]


@dataclass(frozen=True)
class Codecs:
    """One codec a sender and kind of message. Roles of one process share them, roles of a machine each have theirs."""

    embeddings: Mapping[int, Codec]
    gradients: Mapping[int, Codec]
    model: ModelCodec


@dataclass(frozen=True)
class Recipe:
    """Builds roles; the same recipe at every role gives one federation."""

    plan: Plan
    names: tuple[str, ...]
    models: tuple[MakeModel, ...]
    server_model: MakeModel
    compressors: tuple[MakeCompressor, ...]
    server_compressor: MakeCompressor
    gradient_compressor: MakeCompressor

    def codecs(self) -> Codecs:
        """New codecs for all senders."""
        seed, parties = self.plan.seed, list(enumerate(self.names, start=1))
        return Codecs(
            {m: Codec(self.compressors[m - 1](), seed, m, name) for m, name in parties},
            {m: Codec(self.gradient_compressor(), seed, m, f"server, for {name}", "gradient") for m, name in parties},
            ModelCodec(self.server_compressor, self.initial_server_model(), seed),
        )

    def initial_server_model(self) -> nn.Module:
        """theta_0 at the start, the same at every role."""
        return initialised(self.server_model, self.plan.seed, SERVER).to(self.plan.device)

    def party(self, m: int, holding: Holding, codecs: Codecs) -> Party:
        """Party m with what it holds."""
        model = initialised(self.models[m - 1], self.plan.seed, m).to(self.plan.device)
        view = self.initial_server_model()
        return Party(m, self.plan, holding, model, codecs.embeddings, view, codecs.model, codecs.gradients[m])

    def server(self, labels: Labels, codecs: Codecs) -> Server:
        """The server with the labels."""
        model = self.initial_server_model()
        return Server(self.plan, labels, model, codecs.embeddings, codecs.model, codecs.gradients)
