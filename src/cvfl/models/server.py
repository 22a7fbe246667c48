"""Server models: they take the list of all parties' embeddings, and fuse it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Concat(nn.Module):
    """Any model of one tensor, applied to the embeddings side by side."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        """head([h_1, ..., h_M])."""
        output: Tensor = self.head(torch.cat(list(embeddings), dim=1))
        return output
