"""Who sees what, by mode: the one source of what owners are shown before a run, and of what docs/threat-model.md says.

A test captures all frames of a run in each mode and compares their kinds with the page, and the page with this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """The messages that arrive in training at the server, at a party, and at the party with the labels."""

    server: tuple[str, ...]
    party: tuple[str, ...]
    holder: tuple[str, ...] = ()


TOLD_PRIVATE = "told, private model"
_EMBEDDINGS = ("Embedding", "Evaluation")
_RELAYED = Seen(("Passed", "Report"), ("Passed",), ("Passed",))
MODES = {
    "open": Seen(_EMBEDDINGS, ("Broadcast",), ("Broadcast",)),
    "folded": Seen(_EMBEDDINGS, ("Folded",), ("Folded",)),
    "labels at the server": Seen(_EMBEDDINGS, ("Gradient",)),
    "labels at a party": _RELAYED,
    "labels told": Seen(_EMBEDDINGS, ("Broadcast",), ("Broadcast",)),
    f"labels {TOLD_PRIVATE}": Seen((*_EMBEDDINGS, "Passed"), ("Broadcast",), ("Broadcast", "Passed")),
    "secure": Seen(_EMBEDDINGS, ("Folded",), ("Folded",)),
    "secure, labels at the server": Seen(_EMBEDDINGS, ("Gradient",)),
    "secure, labels at a party": _RELAYED,
}
"""What arrives where, by mode."""

_OPEN = {
    "Embedding": "your embedding of every training row, as coarse as its compressor makes it",
    "Evaluation": "your embedding of every held-out row",
    "Broadcast": "the model of the server, and your embedding of every training row",
    "Folded": "the sum of all others' embeddings of a row, yours among them; of two parties, that is yours",
    "Gradient": "nothing of yours; it is told how the loss changes with its own embeddings",
    "Report": "the mean loss of a round, and the metrics of an evaluation",
    "Passed": "only sizes and times: what it passes on is sealed",
}
_MASKED = {
    "Embedding": "the sum of all parties' embeddings of every training row, not yours alone",
    "Evaluation": "the same of held-out rows",
    "Folded": "the same sum; of two parties, one that takes its own part from it has yours",
}


def plainly(message: str, secure: bool) -> str:
    """What a message tells of a party, in plain words for its owner; masked where aggregation is secure."""
    return _MASKED.get(message, _OPEN[message]) if secure else _OPEN[message]


def mode_of(secure: bool, labels: str, folded: bool) -> str:
    """The mode's name; `labels` is "shared", "told", TOLD_PRIVATE or "server", or the party that keeps them."""
    told = labels in ("told", TOLD_PRIVATE)
    if told and not secure and not folded:
        return f"labels {labels}"
    known = {"shared": "", "server": "labels at the server"}
    where = "" if told else known.get(labels, "labels at a party")
    if secure:
        return f"secure, {where}" if where else "secure"
    return where or ("folded" if folded else "open")
