"""Networks for parties and server."""

from cvfl.models.image import ResNet
from cvfl.models.registry import party_model, server_model
from cvfl.models.sequence import LSTM
from cvfl.models.server import Concat
from cvfl.models.tabular import MLP

__all__ = ["LSTM", "MLP", "Concat", "ResNet", "party_model", "server_model"]
