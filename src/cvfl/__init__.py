"""Compressed vertical federated learning: one model across organisations that hold different columns.

    >>> import cvfl
    >>> federation = cvfl.Federation.from_data_set("wine", parties=2)
    >>> federation.parties
    ('hospital', 'bank')
    >>> run = federation.fit(epochs=40, step_size={"eta": 0.01}, seed=1)
    >>> run.metrics.test.accuracy > 0.9
    True
    >>> run.bytes.total < 2_000_000
    True

Own tables: `Federation.from_frames`. A configuration file: `Federation.from_config`. A recorded run: `load_run`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cvfl.api.federation import Federation, Round
    from cvfl.api.run import Bytes, Metrics, Run, Scores, load_run

__version__ = "0.1.0"

__all__ = ["Bytes", "Federation", "Metrics", "Round", "Run", "Scores", "load_run"]


def __getattr__(name: str) -> Any:
    """What is public, loaded when it is first asked for: PyTorch takes a second or two."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "federation" if name in ("Federation", "Round") else "run"
    return getattr(import_module(f"cvfl.api.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
