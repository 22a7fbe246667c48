"""What the door says of itself: the words and shapes of its OpenAPI description, and a page made of it.

The page is written here, and its style and script are in it: a browser without a network shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment

TEXT = "Scores of people whom all parties of a federation hold, by their ids."
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
_ID = {
    "oneOf": [
        {"type": "string"},
        {"type": "integer"},
        {"type": "array", "items": {"type": "string"}, "description": "of an id of several columns"},
    ]
}
_PROBLEMS = {
    400: "not JSON",
    401: "no key, or a wrong one",
    404: "no id is known, or no such model",
    413: "too many ids, or too many bytes",
    422: "not a list of ids",
    429: "too many requests a second",
    503: "a role is away, or is starting",
    504: "no answer in time",
}


def _json(schema: Mapping[str, Any], example: Any = None) -> dict[str, Any]:
    shown = {} if example is None else {"example": example}
    return {"application/json": {"schema": schema, **shown}}


def _answers(schema: Mapping[str, Any], example: Any, problems: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    good: dict[int | str, dict[str, Any]] = {200: {"description": "the answer", "content": _json(schema, example)}}
    bad = {status: {"description": text, "content": _json(_ERROR)} for status, text in problems.items()}
    return good | bad


def _asked(schema: Mapping[str, Any], example: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": _json(schema, example)}}


_SCORE = {
    "type": "object",
    "properties": {
        "id": _ID,
        "score": {"type": "number", "description": "of two classes: the probability of the second"},
        "scores": {"type": "object", "description": "of several classes: the probability of each"},
        "class": {"type": "string"},
        "value": {"type": "number", "description": "of a quantity: in the label's own units"},
        "error": {"type": "string", "description": "why there is no score, such as: unknown at shop"},
        "parties": {
            "type": "array",
            "items": {"type": "string"},
            "description": "who knew the person, of a model that does with some parties",
        },
    },
    "required": ["id"],
}
_SCORES = {
    "type": "object",
    "properties": {"run": {"type": "string"}, "scores": {"type": "array", "items": _SCORE}},
    "required": ["run", "scores"],
}
_OBJECT = {"type": "object"}
_TENSOR = {"name": "ids", "datatype": "BYTES", "shape": [2], "data": ["4711", "4712"]}
_FOUND = {
    "run": "0f3a",
    "scores": [{"id": "4711", "score": 0.83, "class": "yes"}, {"id": "9", "error": "unknown at shop"}],
}
_OUTPUTS = [
    {"name": "score", "datatype": "FP64", "shape": [2], "data": [0.83, 0.0]},
    {"name": "class", "datatype": "BYTES", "shape": [2], "data": ["yes", ""]},
    {"name": "error", "datatype": "BYTES", "shape": [2], "data": ["", "unknown at shop"]},
]
_READY = {"ready": True, "run": "0f3a", "roles": {"server": True, "shop": True}}
_AWAY = {503: _PROBLEMS[503]}

PREDICT: dict[str, Any] = {
    "summary": "Scores by ids",
    "description": "Ids are texts; whole numbers are taken as their text. Each is answered, in its order.",
    "openapi_extra": _asked(
        {"type": "object", "properties": {"ids": {"type": "array", "items": _ID}}, "required": ["ids"]},
        {"ids": ["4711", "4712"]},
    ),
    "responses": _answers(_SCORES, _FOUND, _PROBLEMS),
}
INFER: dict[str, Any] = {
    "summary": "Scores by ids, as tensors (Open Inference Protocol)",
    "description": "One input, ids of datatype BYTES; outputs score and class, or value, and error.",
    "openapi_extra": _asked(_OBJECT, {"inputs": [_TENSOR]}),
    "responses": _answers(_OBJECT, {"model_name": "credit", "model_version": "0f3a", "outputs": _OUTPUTS}, _PROBLEMS),
}
SERVER: dict[str, Any] = {
    "summary": "Name and version of what answers (Open Inference Protocol)",
    "responses": _answers(_OBJECT, {"name": "cvfl", "version": "0.2.0", "extensions": []}, {}),
}
LIVE: dict[str, Any] = {"summary": "Whether the door runs", "responses": _answers(_OBJECT, {"live": True}, {})}
READY: dict[str, Any] = {
    "summary": "Whether requests are answered, and who is away if not",
    "responses": _answers(_OBJECT, _READY, _AWAY),
}
READY_MODEL: dict[str, Any] = READY | {"summary": "The same of the model"}
MODEL: dict[str, Any] = {
    "summary": "What the model takes and gives",
    "responses": _answers(_OBJECT, None, {status: _PROBLEMS[status] for status in (401, 404)}),
}
METRICS: dict[str, Any] = {
    "summary": "Figures for Prometheus",
    "responses": {200: {"description": "text", "content": {"text/plain": {}}}},
}


def page(schema: Mapping[str, Any]) -> str:
    """The description as a page."""
    template = (Path(__file__).parent / "api.html.j2").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            info=schema["info"], calls=[call for path, found in schema["paths"].items() for call in _calls(path, found)]
        )
    )


def _calls(path: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": call["summary"],
            "description": call.get("description", ""),
            "asked": _example(call.get("requestBody", {})),
            "answers": [
                {"status": status, "description": answer["description"], "example": _example(answer)}
                for status, answer in call["responses"].items()
                if status != "422" or answer["description"] != "Validation Error"
            ],
        }
        for method, call in found.items()
    ]


def _example(part: Mapping[str, Any]) -> str:
    example = part.get("content", {}).get("application/json", {}).get("example")
    return "" if example is None else json.dumps(example, indent=1, ensure_ascii=False)
