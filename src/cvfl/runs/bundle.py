"""What a role needs to predict, as it is left at the end of a run: three files in one folder.

    FOLDER/ROLE.model.json    the bundle itself: of which run it is, how to make the model, what outputs mean
    FOLDER/ROLE.safetensors   the weights of the model that the last evaluation saw
    FOLDER/ROLE.preparation   of a party with a table: how its columns become numbers

ROLE is `server`, or a party's name. A party's bundle has nothing of another role but the names of the parties. The
server's is with the role that scores: the server itself, or the party with which labels stay.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from cvfl import models as networks
from cvfl.config.sections import PartyModelConfig, ServerModelConfig
from cvfl.data.tables.encoders import Code, Fitted, OneHot
from cvfl.data.tables.ids import Duplicates, IdType
from cvfl.data.tables.prepare import Preparation
from cvfl.data.tables.spellings import Type
from cvfl.errors import DataError, writing
from cvfl.models.server import Ended, parted
from cvfl.protocol import Loss, Units
from cvfl.protocol.absence import StandIns
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.release import Clipped
from cvfl.runs.directory import fingerprint
from cvfl.runs.journal import write_whole
from cvfl.types import SERVER, Section

FORMAT = 1
PRIVATE = "private"
"""The folder, beside the bundles, of a server bundle that the holder of labels told randomised fitted to the true ones:
with it rows are scored, and no run goes on from it."""
MODEL, WEIGHTS, PREPARATION = ".model.json", ".safetensors", ".preparation"
"""What the names of the files end with."""


class Column(Section):
    """A column that is needed: how it is read, and of a category the values that training knew."""

    type: Type
    categories: tuple[str, ...] | None = None


class Reading(Section):
    """How a party's table is read: as in training.

    The party that has the label knows its column, and the names of its classes, or the units of a quantity.
    """

    alignment: Literal["private", "aligned"] = "private"
    id: tuple[str, ...] = ()
    id_type: IdType = "text"
    duplicates: Duplicates = "error"
    delimiter: str | None = None
    encoding: str | None = None
    missing: tuple[str, ...] = ()
    label: str | None = None
    classes: tuple[str, ...] = ()
    units: Units | None = None
    """Those of a label that is a quantity."""


class _Role(Fitted):
    """What the bundles of all roles have: whose it is, and of which run."""

    format: Literal[1] = 1
    role: str
    """`server`, or the name of a party."""
    run: str
    """The run that trained the model; bundles of one run belong together."""
    terms: str
    """A hash of what all roles agreed on."""
    names: tuple[str, ...]
    """The parties in their order."""
    parameters: str
    """SHA-256 of the weights."""
    precision: Literal["float32", "float64"]
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes with."""
        found: torch.dtype = getattr(torch, self.precision)
        return found


class PartyBundle(_Role):
    """A party's: from its columns to its embedding."""

    kind: Literal["party"] = "party"
    model: PartyModelConfig | None
    """How the model is made; none if it was a module of the user's own."""
    shape: tuple[int, ...]
    """Of a row as the model takes it."""
    categories: tuple[int, ...] = ()
    """How many codes each of the last numbers of a row has."""
    width: int
    """How many numbers a row's embedding has as it is sent."""
    first_layer: bool = False
    """Whether the model ends in the party's part of the server model's first layer."""
    absence: bool = False
    """Whether the server model was prepared for parties that are away."""
    clip: float | None = None
    """The largest norm of a row's embedding."""
    compressor: str
    """Of the embeddings of rows that are predicted: that of held-out rows."""
    table: Reading | None = None
    columns: dict[str, Column] = Field(default_factory=dict)


class ServerBundle(_Role):
    """That of the role that scores: from all embeddings to outputs, and what these mean."""

    kind: Literal["server"] = "server"
    model: ServerModelConfig | None
    """How the model is made; none if it was a module of the user's own."""
    offered: tuple[int, ...]
    """Widths of the parties' own embeddings."""
    widths: tuple[int, ...]
    """Widths of what parties send."""
    first_layer: bool = False
    """Whether parties hold their parts of the first layer."""
    private: bool = False
    """Whether the party that told labels randomised has fitted it to the true ones, for itself alone."""
    scored_by: str = ""
    """The party that scores with such a model in place of this one, if there is one."""
    stand_ins: bool = False
    """Whether the model has something that stands for the embedding of a party that is away."""
    learned: tuple[str, ...] | None = None
    """The parties for which that was trained: the others every row of training had. Earlier bundles do not say."""
    outputs: int
    loss: Loss
    classes: tuple[str, ...] = ()
    """Names of the classes in their order, where they are known."""
    units: Units = Units()
    """Those of a label that is a quantity."""
    decided: Decided = Decided()
    """How outputs become probabilities, and from which one on a row is positive."""


Bundle = PartyBundle | ServerBundle
_BUNDLE: TypeAdapter[Bundle] = TypeAdapter(Annotated[Bundle, Field(discriminator="kind")])


def columns_of(preparation: Preparation) -> dict[str, Column]:
    """The columns that a preparation takes."""
    known = {
        name: (*encoder.values, *encoder.rare) if isinstance(encoder, OneHot | Code) else None
        for name, encoder in preparation.encoders.items()
    }
    return {name: Column(type=preparation.kinds[name], categories=values) for name, values in known.items()}


def write_bundle(bundle: Bundle, folder: Path) -> None:
    """Write ROLE.model.json; the other files of a bundle are with the run's parameters already."""
    with writing(folder):
        write_whole(folder / f"{bundle.role}{MODEL}", bundle.model_dump_json(indent=1) + "\n")


def read_bundle(path: Path) -> Bundle:
    """The bundle in a file, checked."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no bundle, or a damaged one ({type(error).__name__})") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise DataError(f"{path}: a bundle of format {found}; this version of cvfl reads format {FORMAT}")
    try:
        return _BUNDLE.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: {where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def party_module(bundle: PartyBundle, folder: Path, own: nn.Module | None = None) -> nn.Module:
    """The party's model with its weights, at rest; `own` is the user's module, where no file can make it again."""
    made = bundle.model
    if made is None:
        model = _copied(own, bundle)
    else:
        make = networks.party_model(
            made.name,
            bundle.shape,
            made.width,
            made.hidden,
            bundle.dtype,
            categories=bundle.categories,
            dropout=made.dropout,
            pieces=made.pieces,
        )
        model = initialised(make, 0, bundle.names.index(bundle.role) + 1)
        if bundle.first_layer:
            model = Ended(model, torch.zeros(bundle.width, made.width, dtype=bundle.dtype))
        restore(model, bundle, folder)
    return (model if bundle.clip is None else Clipped(model, bundle.clip)).eval()


def server_module(bundle: ServerBundle, folder: Path, own: nn.Module | None = None) -> nn.Module:
    """The server model with its weights, at rest; `own` likewise."""
    made = bundle.model
    if made is None:
        return _copied(own, bundle).eval()
    make = networks.server_model(made.name, bundle.offered, bundle.outputs, made.hidden, bundle.dtype)
    model = initialised(make, 0, SERVER)
    if bundle.first_layer:
        parts = parted(model, bundle.offered)
        assert parts is not None  # or parties could not hold them
        model = parts[1]
    if bundle.stand_ins:
        model = StandIns(model, bundle.widths, bundle.dtype)
    restore(model, bundle, folder)
    return model.eval()


def needed(bundle: ServerBundle, model: nn.Module) -> tuple[str, ...]:
    """The parties without which no row has a score: all but those that the model has learned to do without."""
    if not bundle.stand_ins:
        return bundle.names
    assert isinstance(model, StandIns)
    told = zip(bundle.names, model.learned, strict=True)
    learned = bundle.learned if bundle.learned is not None else [name for name, trained in told if trained]
    return tuple(name for name in bundle.names if name not in learned)


def read_preparation(bundle: PartyBundle, folder: Path) -> Preparation:
    """How the party's columns become numbers; a preparation of other columns is refused."""
    path = folder / f"{bundle.role}{PREPARATION}"
    preparation = Preparation.load(path)
    if columns_of(preparation) != bundle.columns:
        raise DataError(f"{path}: not the preparation that {bundle.role}{MODEL} was written with")
    return preparation


def _copied(model: nn.Module | None, bundle: Bundle) -> nn.Module:
    if model is None:
        raise DataError(
            f"{bundle.role}: its model was a module of your own, which no file can make again; predict with the run "
            "that `fit` returned, or name a function that makes it, as in party_model.name = 'my_package:make_model'"
        )
    return copy.deepcopy(model).cpu()


def restore(model: nn.Module, bundle: Bundle, folder: Path) -> None:
    """Give a model that is made as the bundle's the weights that it has."""
    path = folder / f"{bundle.role}{WEIGHTS}"
    try:
        weights: Mapping[str, Any] = load(path.read_bytes())
        model.load_state_dict(weights)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; a bundle needs its weights") from None
    except (SafetensorError, RuntimeError):
        raise DataError(f"{path}: does not hold the weights of the model of {bundle.role}{MODEL}") from None
    if fingerprint(model) != bundle.parameters:
        raise DataError(f"{path}: not the weights that {bundle.role}{MODEL} was written with")
