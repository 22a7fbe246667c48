"""What is sent back: scores by id, in a plain form and in that of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cvfl.runs.bundle import PartyBundle, ServerBundle
from cvfl.serving.online.batching import DoorError, Reply
from cvfl.serving.online.door import Id

PLATFORM = "cvfl"


def kinds_of(columns: int) -> str:
    """What a row of scores is, by how many numbers it has: a quantity, two classes, or several."""
    return {1: "value", 2: "score"}.get(columns, "scores")


class Meaning:
    """What the numbers of a run's scores mean: the names of classes come from the party that had the label."""

    def __init__(self, bundle: PartyBundle, server: ServerBundle | None) -> None:
        told = bundle.table.classes if bundle.table else ()
        self.run, self._classes = bundle.run, (server.classes if server else ()) or told
        self.partly = bundle.absence
        """Whether rows that some parties do not know have scores, too; then it is said who knew them."""

    def of(self, numbers: Sequence[float]) -> dict[str, Any]:
        """One row in the plain form."""
        match kinds_of(len(numbers)):
            case "value":
                return {"value": numbers[0]}
            case "score":
                return {"score": numbers[0], "class": self.name(numbers[1])}
        names = (self.name(place) for place in range(len(numbers) - 1))
        return {"scores": dict(zip(names, numbers[:-1], strict=True)), "class": self.name(numbers[-1])}

    def name(self, number: float) -> str:
        """Of a class."""
        place = int(number)
        return self._classes[place] if place < len(self._classes) else str(place)


def plain_answer(ids: Sequence[Id], reply: Reply, meaning: Meaning, names: Sequence[str]) -> dict[str, Any]:
    """{"run": ..., "scores": [{"id": ..., "score": ..., "class": ...}, ...]}, an id without a score with why."""
    _some(reply, names)
    rows, found = reply.numbers.tolist(), []
    for parts, row, unknown in zip(ids, reply.rows, reply.unknown, strict=True):
        called: Any = parts[0] if len(parts) == 1 else list(parts)
        who = {"parties": _who(unknown, names)} if meaning.partly else {}
        why = {"error": _why(unknown, names, reply.away)} if row < 0 else {}
        found.append({"id": called} | (why or meaning.of(rows[row]) | who))
    return {"run": reply.run, "scores": found}


def inference_answer(
    model: str, ids: Sequence[Id], reply: Reply, meaning: Meaning, names: Sequence[str], request_id: str | None
) -> dict[str, Any]:
    """The same as tensors: `score`, `class` or `value`, and `error`, which is empty of an id that has a score."""
    _some(reply, names)
    rows, columns = reply.numbers.tolist(), reply.numbers.shape[1]
    blank = [0.0] * columns
    numbers = [rows[row] if row >= 0 else blank for row in reply.rows]
    errors = [
        "" if row >= 0 else _why(who, names, reply.away) for row, who in zip(reply.rows, reply.unknown, strict=True)
    ]
    kind = kinds_of(columns)
    if kind == "value":
        outputs = [_tensor("value", "FP64", [len(ids)], [row[0] for row in numbers])]
    else:
        classes = ["" if error else meaning.name(row[-1]) for row, error in zip(numbers, errors, strict=True)]
        shape = [len(ids)] if kind == "score" else [len(ids), columns - 1]
        scores = _tensor("score", "FP64", shape, [one for row in numbers for one in row[:-1]])
        outputs = [scores, _tensor("class", "BYTES", [len(ids)], classes)]
    outputs.append(_tensor("error", "BYTES", [len(ids)], errors))
    if meaning.partly:
        who = [
            ", ".join(_who(unknown, names)) if row >= 0 else ""
            for row, unknown in zip(reply.rows, reply.unknown, strict=True)
        ]
        outputs.append(_tensor("parties", "BYTES", [len(ids)], who))
    answer = {"model_name": model, "model_version": reply.run, "outputs": outputs}
    return answer if request_id is None else answer | {"id": request_id}


def metadata(model: str, run: str | None, bundle: PartyBundle) -> dict[str, Any]:
    """What the Open Inference Protocol says of a model, by the bundle of the party that had the label."""
    classes = len(bundle.table.classes) if bundle.table else 0
    tensors = [("score", "FP64", [-1, classes] if classes > 2 else [-1]), ("class", "BYTES", [-1])]
    if bundle.table and bundle.table.units:
        tensors = [("value", "FP64", [-1])]
    tensors += [("error", "BYTES", [-1])]
    tensors += [("parties", "BYTES", [-1])] if bundle.absence else []
    return {
        "name": model,
        "versions": [run] if run else [],
        "platform": PLATFORM,
        "inputs": [{"name": "ids", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in tensors],
    }


def server_metadata(version: str) -> dict[str, Any]:
    """What it says of a server."""
    return {"name": PLATFORM, "version": version, "extensions": []}


def read_inference(body: Any) -> tuple[Any, str | None]:
    """The list of ids and the name of a request of the Open Inference Protocol."""
    if not isinstance(body, dict):
        raise DoorError(422, "bad_request", "the request must be an object")
    name, inputs = body.get("id"), body.get("inputs")
    if not isinstance(name, str | None) or not isinstance(inputs, list) or len(inputs) != 1:
        raise DoorError(422, "bad_request", "a request has `inputs` with one tensor, and perhaps a text `id`")
    (tensor,) = inputs
    if not isinstance(tensor, dict) or (tensor.get("name"), tensor.get("datatype")) != ("ids", "BYTES"):
        raise DoorError(422, "bad_request", "the one input is `ids`, of datatype BYTES")
    data = tensor.get("data")
    if tensor.get("shape") not in ([len(data)], [len(data), 1]) if isinstance(data, list) else True:
        raise DoorError(422, "bad_request", "`ids` has a shape [n] and a list `data` of n texts")
    return data, name


def _some(reply: Reply, names: Sequence[str]) -> None:
    """A request of which no id has a score is an error of its own."""
    if all(row < 0 for row in reply.rows):
        if all(set(who) <= set(reply.away) for who in reply.unknown):
            awaited = sorted({m for who in reply.unknown for m in who})
            raise DoorError(503, "party_away", absent([names[m - 1] for m in awaited]))
        why = sorted({_why(who, names, reply.away) for who in reply.unknown})
        raise DoorError(404, "unknown_ids", f"no id has a score: {'; '.join(why)}")


def _why(unknown: tuple[int, ...], names: Sequence[str], away: Sequence[int]) -> str:
    if 0 in unknown:
        return "its score is not finite"
    asked = [names[m - 1] for m in unknown if m not in away]
    said = [f"unknown at {' and '.join(asked)}"] if asked else []
    return ", and ".join(said + ([absent([names[m - 1] for m in away])] if away else []))


def absent(names: Sequence[str]) -> str:
    """Who is away, in words."""
    return f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} away"


def _who(unknown: tuple[int, ...], names: Sequence[str]) -> list[str]:
    """The parties that know a row."""
    return [name for m, name in enumerate(names, start=1) if m not in unknown]


def _tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
