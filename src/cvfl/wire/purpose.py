"""What a frame is sent for, by its kind: the one table by which bytes are counted."""

from __future__ import annotations

from enum import StrEnum

from cvfl.wire.control import CONTROL, TARGETS
from cvfl.wire.frame import Bytes, head_of, kind_of
from cvfl.wire.message import (
    BROADCAST,
    EMBEDDING,
    EVALUATION,
    FOLDED,
    GRADIENT,
    PASSED,
    PREDICTION,
    REPORT,
    SLOPED,
    STOP,
)
from cvfl.wire.serving import SERVING
from cvfl.wire.setup import BLINDED, MATCHED
from cvfl.wire.varint import read_varint


class Purpose(StrEnum):
    """Training, evaluation of held-out rows, prediction, finding the shared rows, or agreeing on a run and its end."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    ALIGNMENT = "alignment"
    SETUP = "setup"


PURPOSES = {
    EMBEDDING: Purpose.TRAINING,
    BROADCAST: Purpose.TRAINING,
    GRADIENT: Purpose.TRAINING,
    SLOPED: Purpose.TRAINING,
    FOLDED: Purpose.TRAINING,
    REPORT: Purpose.TRAINING,
    EVALUATION: Purpose.EVALUATION,
    STOP: Purpose.EVALUATION,
    PREDICTION: Purpose.PREDICTION,
    SERVING: Purpose.PREDICTION,
    BLINDED: Purpose.ALIGNMENT,
    MATCHED: Purpose.ALIGNMENT,
    CONTROL: Purpose.SETUP,
    TARGETS: Purpose.SETUP,
}
"""Of every kind but that of a passed message, which is for what the sealed one inside is for."""
NAMES = {
    EMBEDDING: "Embedding",
    BROADCAST: "Broadcast",
    GRADIENT: "Gradient",
    SLOPED: "Gradient",
    FOLDED: "Folded",
    REPORT: "Report",
    PASSED: "Passed",
    EVALUATION: "Evaluation",
    STOP: "Stop",
    PREDICTION: "Prediction",
    SERVING: "Serving",
    BLINDED: "Blinded",
    MATCHED: "Matched",
    CONTROL: "Control",
    TARGETS: "Targets",
}
"""What messages of each kind are called, for people."""


def purpose_of(frame: Bytes) -> Purpose:
    """What a whole frame is for, open or sealed."""
    kind = kind_of(frame)
    if kind == PASSED:  # behind its receiver it names the kind of what it holds
        kind = frame[read_varint(frame, head_of(frame).size)[1]]
    return PURPOSES[kind]
