"""Compressors by name: ``lattice:bits=3``, ``scalar:bits=2,low=-1,high=1``, ``schedule(topk:bits=2):rate=0.5``.

    spec  :=  name [ "(" spec ")" ] [ ":" key "=" value { "," key "=" value } ]

A compressor is known once it is registered; its constructor's parameters are the keys. A wrapper takes the
compressor that it wraps as its first argument, written in parentheses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cvfl.compress.base import Compressor
from cvfl.compress.deadzone import DeadZone
from cvfl.compress.entropy import Entropy
from cvfl.compress.feedback import Feedback
from cvfl.compress.identity import Identity
from cvfl.compress.lattice import Lattice
from cvfl.compress.scalar import Scalar
from cvfl.compress.schedule import Schedule
from cvfl.compress.shaped import Shaped
from cvfl.compress.topk import TopK
from cvfl.errors import ConfigError, suggest
from cvfl.registry import Registry

AUTO = {
    "embedding": "feedback(entropy(shaped))",
    "partial": "feedback(entropy(shaped))",
    "model": "feedback(entropy(deadzone:step=0.25))",
    "trained embedding": "feedback(entropy(shaped:tolerance=0.0002,agreement=0.7,curiosity=1,coarsest=0.5))",
    "trained partial": "feedback(entropy(shaped:tolerance=0.0002,agreement=0.7,curiosity=1,coarsest=0.5))",
    "trained model": "feedback(entropy(deadzone:step=0.1))",
    "evaluation": "feedback(entropy(shaped:tolerance=0.0001,fading=0))",
    "gradient": "entropy(deadzone:step=0.5)",
}
"""What `auto` stands for: the composition that was measured best for each kind of message.

Where a first layer that hidden layers follow is trained by the server on what it decodes, and parties by its weights,
errors do not end with a round: "trained" messages are finer.
"""

Make = Callable[..., Compressor]
COMPRESSORS = Registry[Make]("compressor")
register = COMPRESSORS.register


def known() -> list[str]:
    """Names of all registered compressors."""
    return sorted(COMPRESSORS)


def build(spec: str, part: str = "embedding") -> Compressor:
    """Build the compressor that a spec string describes; each call gives a new one. `auto` depends on the message."""
    if spec.strip() == "auto":
        return build(AUTO[part])
    head, _, tail = _outside(spec, ":")
    name = head.strip()
    inner: tuple[Compressor, ...] = ()
    if head.rstrip().endswith(")") and "(" in head:
        name, _, rest = head.strip().partition("(")
        inner = (build(rest[:-1]),)
    make = COMPRESSORS[name]
    options: dict[str, int | float | str] = {}
    for option in tail.split(",") if tail.strip() else ():
        key, value = _option(option, spec)
        if key in options:
            raise ConfigError(f"compressor {spec!r}: {key} is given twice")
        options[key] = value
    return _made(name, make, inner, options)


def _made(name: str, make: Make, inner: tuple[Compressor, ...], options: dict[str, int | float | str]) -> Compressor:
    parameters = inspect.signature(make).parameters
    keys = [key for key, parameter in parameters.items() if parameter.annotation not in ("Compressor", Compressor)]
    if len(inner) != len(parameters) - len(keys):
        raise ConfigError(
            f"{name}(...) wraps a compressor, as in '{name}(scalar:bits=2)'"
            if not inner
            else f"{name} does not wrap another compressor"
        )
    for key in options:
        if key not in keys:
            raise ConfigError(f"compressor {name!r} has no option {key!r}{suggest(key, keys)}")
    for key in keys:
        if parameters[key].default is inspect.Parameter.empty and key not in options:
            raise ConfigError(f"compressor {name!r} needs {key}, as in '{name}:{key}=2'")
    try:
        return make(*inner, **options)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"compressor {name!r}: {error}") from None


def _outside(spec: str, mark: str) -> tuple[str, str, str]:
    """Partition at the first mark that is not inside parentheses."""
    depth = 0
    for place, letter in enumerate(spec):
        depth += (letter == "(") - (letter == ")")
        if letter == mark and depth == 0:
            return spec[:place], mark, spec[place + 1 :]
    if depth:
        raise ConfigError(f"compressor {spec!r}: parentheses do not match")
    return spec, "", ""


def _option(part: str, spec: str) -> tuple[str, int | float | str]:
    key, equals, text = (piece.strip() for piece in part.partition("="))
    if not (key and equals and text):
        raise ConfigError(f"compressor {spec!r}: write options as key=value, not {part.strip()!r}")
    for number in (int, float):
        try:
            return key, number(text)
        except ValueError:
            continue
    return key, text


register("identity", Identity)
register("scalar", Scalar)
register("lattice", Lattice)
register("topk", TopK)
register("schedule", Schedule)
register("deadzone", DeadZone)
register("shaped", Shaped)
register("entropy", Entropy)
register("feedback", Feedback)
