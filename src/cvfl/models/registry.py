"""Models by name, as a configuration writes them; `module:function` is a user's own."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cvfl.errors import ConfigError, suggest
from cvfl.models.image import CNN, MVCNN, ResNet
from cvfl.models.sequence import GRU, LSTM
from cvfl.models.server import Attention, Beside, Concat, Sum
from cvfl.models.tabular import MLP, Tabular, TabularMLP
from cvfl.registry import Registry

Make = Callable[[], nn.Module]

PARTY_MODELS = Registry[Callable[..., nn.Module]]("party model")
SERVER_MODELS = Registry[Callable[..., nn.Module]]("server model")
register_party_model, register_server_model = PARTY_MODELS.register, SERVER_MODELS.register

_DIMENSIONS = {"tabular": 1, "lstm": 2, "gru": 2, "cnn": 3, "resnet": 3, "mvcnn": 4}
_HIDDEN = {"cnn": ("width", "layers"), "resnet": ("width", "blocks", "stages"), "mvcnn": ("width", "step")}


def party_model(
    name: str,
    shape: tuple[int, ...],
    width: int,
    hidden: tuple[int, ...],
    dtype: torch.dtype,
    *,
    categories: tuple[int, ...] = (),
    dropout: float = 0.0,
    pieces: int = 8,
) -> Make:
    """A party's model for rows of this shape, giving `width` numbers a row.

    `linear` and `mlp` (tanh at the end) take any rows, `tabular` those of tables, `lstm` and `gru` time x channels,
    `cnn` and `resnet` images (C x H x W), `mvcnn` views of an object (V x C x H x W). `categories` says how many values
    each of the last columns takes; only `linear`, `mlp` and `tabular` know them. A registered model and
    `module:function` are called with those of shape, width, hidden, categories, dropout and pieces that they take.
    """
    given = {"shape": shape, "width": width, "hidden": hidden, "categories": categories}
    given |= {"dropout": dropout, "pieces": pieces}
    if ":" in name:
        return _bound(name, _found(name), given, dtype)
    make = PARTY_MODELS[name]
    _check_shape(name, shape, hidden)
    if categories and (len(shape) != 1 or shape[0] < len(categories)):
        raise ConfigError(
            f"model {name!r} does not take rows of shape {shape} of which the last {len(categories)} columns are "
            "categories; use 'linear' or 'mlp' on a table"
        )
    return _bound(name, make, given, dtype)


def _check_shape(name: str, shape: tuple[int, ...], hidden: tuple[int, ...]) -> None:
    if len(shape) != _DIMENSIONS.get(name, len(shape)):
        raise ConfigError(f"model {name!r} does not take rows of shape {shape}")
    _check_hidden(name, hidden)
    second = hidden[1:2]
    smallest = {"cnn": 1 << (*second, 3)[0], "mvcnn": MVCNN.smallest(*second)}.get(name, 1)
    if min(shape[-2:]) < smallest:
        raise ConfigError(f"model {name!r} takes images of {smallest} x {smallest} pixels or more, not {shape}")


def _check_hidden(name: str, hidden: tuple[int, ...]) -> None:
    meaning = _HIDDEN.get(name)
    if any(size < 1 for size in hidden) or (meaning and len(hidden) > len(meaning)):
        takes = f"[{', '.join(meaning)}]" if meaning else "the sizes of layers"
        raise ConfigError(f"hidden of model {name!r} is {takes}, each at least 1, not {list(hidden)}")


def server_model(name: str, widths: tuple[int, ...], outputs: int, hidden: tuple[int, ...], dtype: torch.dtype) -> Make:
    """The server's model.

    `linear` and `mlp` take the embeddings side by side, `wide_deep` both ways at once; `sum` adds them up and
    `attention` weighs them, and an MLP of the hidden layers follows. A registered model and `module:function` are
    called with those of widths, outputs and hidden that they take.
    """
    given = {"widths": widths, "outputs": outputs, "hidden": hidden}
    if ":" in name:
        return _bound(name, _found(name), given, dtype)
    make = SERVER_MODELS[name]
    if name == "sum" and len(set(widths)) > 1:
        raise ConfigError(f"server model 'sum' adds embeddings of one width, not of {', '.join(map(str, widths))}")
    _check_hidden(name, hidden)
    return _bound(name, make, given, dtype)


def takes(models: Registry[Callable[..., nn.Module]], name: str, key: str) -> bool:
    """Whether a model by name has this key; `hidden` only where it is the sizes of layers."""
    if ":" in name or (key == "hidden" and name in _HIDDEN):
        return False
    return key in inspect.signature(models[name]).parameters


def _bound(name: str, function: Callable[..., object], given: dict[str, Any], dtype: torch.dtype) -> Make:
    """A model with its arguments; the function is called when a role is built."""
    try:
        signature = inspect.signature(function)
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        arguments = {key: value for key, value in given.items() if takes_all or key in signature.parameters}
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model {name!r}: {error}; it is called with {', '.join(given)}") from None
    if given.get("categories") and "categories" not in arguments:
        raise ConfigError(f"model {name!r} takes no 'categories', but the last columns of the table are categories")

    def make() -> nn.Module:
        model = function(**arguments)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model {name!r} returned {type(model).__name__}, not a torch.nn.Module")
        return model.to(dtype)

    return make


def _found(text: str) -> Callable[..., object]:
    """What `module:function` names; modules in the current directory count, too."""
    name, _, attribute = text.partition(":")
    if not all(part.isidentifier() for part in (*name.split("."), attribute)):
        raise ConfigError(f"model {text!r}: write it as module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # the module's own code may fail in any way
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"model {text!r}: no module {error.name!r}, neither in {here} nor installed") from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"model {text!r}: importing {name} fails ({reason})") from error
    if not hasattr(module, attribute):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"model {text!r}: {name} has no {attribute!r}{suggest(attribute, names)}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ConfigError(f"model {text!r}: {attribute} is of type {type(function).__name__} and cannot be called")
    found: Callable[..., object] = function
    return found


def _tabular(
    shape: tuple[int, ...], width: int, layers: tuple[int, ...], categories: tuple[int, ...], bounded: bool
) -> nn.Module:
    if categories:
        return TabularMLP(math.prod(shape) - len(categories), categories, width, layers, bounded=bounded)
    return MLP(math.prod(shape), width, layers, bounded=bounded)


def _wide_deep(inputs: int, outputs: int, hidden: tuple[int, ...]) -> Concat:
    """One linear layer whose outputs are the answer itself, and beside it hidden units that see parties together."""
    if not hidden:
        raise ConfigError("server model 'wide_deep' needs hidden, such as [32]")
    deep = nn.Sequential(nn.ReLU(), MLP(hidden[0], outputs, hidden[1:]))
    return Concat(nn.Sequential(nn.Linear(inputs, outputs + hidden[0]), Beside(outputs, deep)))


register_party_model("linear", lambda shape, width, categories: _tabular(shape, width, (), categories, bounded=False))
register_party_model(
    "mlp", lambda shape, width, hidden, categories: _tabular(shape, width, hidden, categories, bounded=True)
)
register_party_model(
    "tabular",
    lambda shape, width, hidden, categories, dropout, pieces: Tabular(
        math.prod(shape) - len(categories), categories, width, hidden, pieces=pieces, dropout=dropout
    ),
)
register_party_model("lstm", lambda shape, width: LSTM(shape[-1], width))
register_party_model("gru", lambda shape, width: GRU(shape[-1], width))
register_party_model("cnn", lambda shape, width, hidden: CNN(shape[0], width, *hidden))
register_party_model("resnet", lambda shape, width, hidden: ResNet(shape[0], width, *hidden))
register_party_model("mvcnn", lambda shape, width, hidden: MVCNN(shape[1], width, (shape[2], shape[3]), *hidden))

register_server_model("linear", lambda widths, outputs: Concat(nn.Linear(sum(widths), outputs)))
register_server_model("mlp", lambda widths, outputs, hidden: Concat(MLP(sum(widths), outputs, hidden)))
register_server_model("wide_deep", lambda widths, outputs, hidden: _wide_deep(sum(widths), outputs, hidden))
register_server_model("sum", lambda widths, outputs, hidden: Sum(MLP(max(widths), outputs, hidden)))
register_server_model(
    "attention", lambda widths, outputs, hidden: Attention(widths, MLP(max(widths), outputs, hidden), max(widths))
)
