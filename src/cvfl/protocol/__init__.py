"""Algorithms 1 and 2 as message machines."""

from cvfl.protocol.absence import Presence
from cvfl.protocol.coding.codec import Codec, Measured
from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.coding.follow import Certificate
from cvfl.protocol.coding.model_codec import ModelCodec
from cvfl.protocol.evaluation import Evaluated, Labels
from cvfl.protocol.learning.decision import Decision
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.optimizer import Optimizer, StepSize
from cvfl.protocol.learning.units import Units
from cvfl.protocol.machines import PartyMachine, ServerMachine
from cvfl.protocol.party import Party
from cvfl.protocol.plan import Plan
from cvfl.protocol.recipe import Recipe
from cvfl.protocol.rows import Augment, Holding, Rows
from cvfl.protocol.server import Server

__all__ = [
    "Augment",
    "Certificate",
    "Codec",
    "Codecs",
    "Decision",
    "Evaluated",
    "Holding",
    "Labels",
    "Loss",
    "Measured",
    "ModelCodec",
    "Optimizer",
    "Party",
    "PartyMachine",
    "Plan",
    "Presence",
    "Recipe",
    "Rows",
    "Server",
    "ServerMachine",
    "StepSize",
    "Units",
]
