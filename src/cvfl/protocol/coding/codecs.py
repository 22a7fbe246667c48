"""All codecs of a federation, by sender and kind of message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cvfl.compress import Masked
from cvfl.compress.masked import Mask
from cvfl.memory import Memory
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.coding.codec import Codec
from cvfl.protocol.coding.model_codec import ModelCodec
from cvfl.protocol.limits import Limits


@dataclass(frozen=True)
class Codecs:
    """One codec a sender and kind of message. Roles of one process share them, roles of a machine each have theirs.

    `replies` are what the server computes for each party: sums over the others when they are folded, or gradients.
    When embeddings are masked, `total` and `held_out_total` read their sums.
    """

    embeddings: Mapping[int, Codec]
    evaluations: Mapping[int, Codec]
    replies: Mapping[int, Codec]
    models: Mapping[int, ModelCodec]
    total: Aggregate | None = None
    held_out_total: Aggregate | None = None
    limits: Limits = field(default_factory=Limits)
    """Norms beyond which the role takes nothing."""
    memory: Memory = field(default_factory=Memory)
    """Where it is kept what is known of rows."""
    last_pass: Mapping[int, Codec] = field(default_factory=dict)
    """Of all rows once more when the rounds are over, where that is done; masked ones are read by `last_pass_total`."""
    last_pass_total: Aggregate | None = None

    def mask(self, m: int, mask: Mask) -> None:
        """Give party m the masks of its session."""
        for codec in (self.embeddings[m], self.evaluations[m], *([self.last_pass[m]] if self.last_pass else [])):
            assert isinstance(codec.compressor, Masked)
            codec.compressor.mask = mask
