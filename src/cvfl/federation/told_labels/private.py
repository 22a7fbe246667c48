"""A holder's private model as it is left at the end of a run: a bundle of its own, and what the record says of it.

FOLDER/private/server.*    in place of the server's bundle, wherever rows are scored
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from cvfl import models as networks
from cvfl.config.sections import ServerModelConfig
from cvfl.errors import writing
from cvfl.federation.results.bundles import BundleMaker
from cvfl.privacy.private_model import Fitter, PrivateModel
from cvfl.protocol import PartyMachine, Units
from cvfl.runs.bundle import PRIVATE, WEIGHTS, write_bundle
from cvfl.runs.directory import fingerprint, serialised
from cvfl.runs.record import HolderScores
from cvfl.runtime import one_thread_a_role


def private_of(machines: Iterable[PartyMachine]) -> PrivateModel | None:
    """The model that one of these parties has fitted to labels of its own, if one has."""
    found = (machine.private for machine in machines if isinstance(machine, Fitter))
    return next((one for one in found if one), None)


def fit_private(machines: Iterable[PartyMachine]) -> None:
    """Have the party that fits a model of its own do so, if one of these does; a run is over to the others then."""
    with one_thread_a_role():
        for machine in machines:
            if isinstance(machine, Fitter):
                machine.fit()


def scores_of(private: PrivateModel) -> HolderScores:
    """How good it is by the true labels."""
    return HolderScores(validation=private.validation, test=private.test, threshold=private.decided.threshold)


def write_private(
    private: PrivateModel, maker: BundleMaker, outputs: int, classes: Iterable[str], units: Units, folder: Path
) -> None:
    """Write the bundle below the folder where the holder has its models."""
    config, plan = maker.config, maker.recipe.plan
    made = ServerModelConfig(name="sum" if config.privacy.secure else "linear")
    model = networks.server_model(made.name, plan.widths, outputs, made.hidden, plan.dtype)()
    _give(model, private)
    bundle = maker.server(fingerprint(model), outputs, classes, units, private.decided)
    bundle = bundle.model_copy(update={"model": made, "offered": plan.widths, "first_layer": False, "private": True})
    with writing(folder):
        (folder / PRIVATE).mkdir(exist_ok=True)
        (folder / PRIVATE / f"server{WEIGHTS}").write_bytes(serialised(model))
    write_bundle(bundle, folder / PRIVATE)


def _give(model: nn.Module, private: PrivateModel) -> None:
    """Its one layer is the one that was fitted."""
    (layer,) = (part for part in model.modules() if isinstance(part, nn.Linear))
    layer.load_state_dict(private.layer)
