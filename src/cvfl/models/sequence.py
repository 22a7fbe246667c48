"""Models for time series."""

from __future__ import annotations

from torch import Tensor, nn


class LSTM(nn.Module):
    """The last hidden state of an LSTM over B x time x channels; bounded by (-1, 1)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, outputs, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs."""
        _, (h, _) = self.lstm(x)
        last: Tensor = h[-1]
        return last


class GRU(nn.Module):
    """The last hidden state of a GRU over B x time x channels; a mean of tanh values, so bounded by (-1, 1)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, outputs, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """B x outputs."""
        _, h = self.gru(x)
        last: Tensor = h[-1]
        return last
