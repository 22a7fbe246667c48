"""Compressed vertical federated learning: one model across organisations that hold different columns.

import cvfl

result = cvfl.train(cvfl.configure(data={"name": "digits"}, step_size={"eta": 0.1}, epochs=20))
print(result.summary["metrics"]["test"])
"""

from typing import Any

from cvfl.config.files import load_config, parse_config
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData, load
from cvfl.federation.train import RunResult, train

__version__ = "0.1.0"

__all__ = ["RunConfig", "RunResult", "VerticalData", "configure", "load", "load_config", "train"]


def configure(**values: Any) -> RunConfig:
    """A checked configuration from keyword arguments, with the keys of the TOML file."""
    return parse_config(values)
