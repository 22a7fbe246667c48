"""Networks for parties and server."""

from cvfl.models.image import CNN, MVCNN, ResNet
from cvfl.models.registry import party_model, register_party_model, register_server_model, server_model
from cvfl.models.sequence import GRU, LSTM
from cvfl.models.server import Attention, Concat, Sum
from cvfl.models.tabular import MLP, Tabular, TabularMLP

__all__ = [
    "CNN",
    "GRU",
    "LSTM",
    "MLP",
    "MVCNN",
    "Attention",
    "Concat",
    "ResNet",
    "Sum",
    "Tabular",
    "TabularMLP",
    "party_model",
    "register_party_model",
    "register_server_model",
    "server_model",
]
