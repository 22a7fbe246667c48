"""Models by name, as a configuration writes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from cvfl.errors import ConfigError, suggest
from cvfl.models.image import ResNet
from cvfl.models.sequence import LSTM
from cvfl.models.server import Concat
from cvfl.models.tabular import MLP

Make = Callable[[], nn.Module]


def party_model(name: str, shape: tuple[int, ...], width: int, hidden: tuple[int, ...], dtype: torch.dtype) -> Make:
    """A party's model for rows of this shape: `linear`, `mlp` (tanh at the end), `lstm` or `resnet`."""
    inputs = 1
    for size in shape:
        inputs *= size
    known: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: MLP(inputs, width),
        "mlp": lambda: MLP(inputs, width, hidden, bounded=True),
        "lstm": lambda: LSTM(shape[-1], width),
        "resnet": lambda: ResNet(shape[0], width, *hidden),
    }
    if name not in known:
        raise ConfigError(f"unknown party model {name!r}{suggest(name, known)}")
    if len(shape) != {"lstm": 2, "resnet": 3}.get(name, len(shape)):
        raise ConfigError(f"model {name!r} does not take rows of shape {shape}")
    return lambda: known[name]().to(dtype)


def server_model(name: str, widths: tuple[int, ...], outputs: int, hidden: tuple[int, ...], dtype: torch.dtype) -> Make:
    """The server's model: `linear` or `mlp` over the concatenated embeddings."""
    known: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: Concat(nn.Linear(sum(widths), outputs)),
        "mlp": lambda: Concat(MLP(sum(widths), outputs, hidden)),
    }
    if name not in known:
        raise ConfigError(f"unknown server model {name!r}{suggest(name, known)}")
    return lambda: known[name]().to(dtype)
