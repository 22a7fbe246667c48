"""What the owner of a party agrees to by predictions of new rows, and by answers online, in plain words.

Each is approved apart from training and from the other. It is of the models that were trained by these terms, of
whichever run: a new one asks for no new approval, and the log of actions names the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cvfl.config.modes import does_without, scoring_party
from cvfl.config.schema import RunConfig
from cvfl.federation.consent import NOT_PROTECTED, Consent, Use, as_texts, columns_line, leaves_line
from cvfl.privacy.seen import plainly
from cvfl.runs.bundle import PartyBundle

_SINGLE = "of somebody whom you alone know, that is yours"


def prediction_consent(config: RunConfig, bundle: PartyBundle, names: Sequence[str], terms: dict[str, Any]) -> Consent:
    """What a party agrees to by a prediction of these parties; `terms` are all but the run whose models are used."""
    others = "how many rows are scored, and nothing else of yours" if len(names) > 1 else "nothing: there is none"
    shown = {
        "use": "new rows are scored: those of the table that you name, by models that were trained by these terms",
        **_own(bundle, names),
        "your people": _found(config, bundle, names),
        **_seen(config, bundle, names, "every new row that is scored", "not yours alone"),
        "every other party sees": others,
        "scores": _scores(config, bundle, names),
        "not protected": NOT_PROTECTED,
    }
    return Consent(shown, as_texts(terms | _terms(bundle)), Use.PREDICTION)


def serving_consent(config: RunConfig, bundle: PartyBundle, terms: dict[str, Any]) -> Consent:
    """What a party agrees to by answering the door, or by having it; `terms` are those of serving."""
    names, door = bundle.names, _had_label(bundle)
    where = "your door" if door else "the door of the party that had the label"
    shown = {
        "use": f"answers online: whoever may ask at {where} gets scores of people by their ids, as often as they ask, "
        "until you stop it; by models that were trained by these terms, and by new ones as they come",
        **_own(bundle, names),
        "who is asked for": "the server hears it by a pseudonym, and which parties know them; every other party of its "
        "own people; the party that had the label asks, and hears who does not know them",
        **_seen(config, bundle, names, "each person who is asked for, if you know them", _SINGLE),
        "every other party sees": "which of its own people you ask for, and when" if door else "nothing of yours",
        "scores": _scores(config, bundle, names),
        "not protected": f"{NOT_PROTECTED}; nothing counts how often somebody is asked for",
    }
    return Consent(shown, as_texts(terms | _terms(bundle)), Use.SERVING)


def _own(bundle: PartyBundle, names: Sequence[str]) -> dict[str, str]:
    return {
        "who takes part": f"the server, and {', '.join(names)}",
        "your columns": columns_line([*bundle.columns]),
        "what leaves you": leaves_line(bundle.width, bundle.compressor, bundle.clip),
    }


def _terms(bundle: PartyBundle) -> dict[str, Any]:
    """What the party brings itself."""
    own = {"columns": [*bundle.columns], "width": bundle.width, "compressor": bundle.compressor, "clip": bundle.clip}
    return {f"own.{key}": value for key, value in own.items()}


def _had_label(bundle: PartyBundle) -> bool:
    return bundle.table is not None and bundle.table.label is not None


def _found(config: RunConfig, bundle: PartyBundle, names: Sequence[str]) -> str:
    """How the rows are found that several parties hold."""
    if len(names) == 1:
        return "nobody else's are needed"
    if bundle.table is None or bundle.table.alignment != "private":
        return "row i is the same person at every party"
    found = "those whom all hold are found without showing anybody your ids"
    if not does_without(config):
        return found
    if _had_label(bundle):
        return "each other party learns which of its own people are among them; you learn who holds which of yours"
    return "the party that had the label learns which of its own people you hold; nobody sees another id"


def _seen(config: RunConfig, bundle: PartyBundle, names: Sequence[str], rows: str, single: str) -> dict[str, str]:
    """Who reads embeddings: the server, or the party that scores; `single` is what sums say of a single party."""
    secure, holder = config.privacy.secure, scoring_party(config, names)
    yours = f"the sum of all parties' embeddings of {rows}; {single}" if secure else f"your embedding of {rows}"
    if not holder:
        return {"the server sees": yours}
    own = names[holder - 1] == bundle.role
    return {"the server sees": plainly("Passed", secure)} | ({} if own else {f"{names[holder - 1]} sees": yours})


def _scores(config: RunConfig, bundle: PartyBundle, names: Sequence[str]) -> str:
    holder = scoring_party(config, names)
    if holder:
        who = "you compute them, and" if names[holder - 1] == bundle.role else f"{names[holder - 1]} computes them, and"
        return f"{who} nobody else hears one"
    receiver = "you alone hear" if _had_label(bundle) else "the party that had the label alone hears"
    return f"the server computes them without ids, and {receiver} them"
