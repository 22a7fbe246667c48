"""Optimizers: torch's own steps, to the bit, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from cvfl.protocol.plan import Optimizer


def stepped(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> None:
    for _ in range(3):
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("settings", [{"name": "adam"}, {"name": "sgd"}, {"name": "sgd", "momentum": 0.9}])
def test_steps_are_those_of_torch(settings: dict[str, Any]) -> None:
    own, plain = (torch.nn.Parameter(torch.arange(3.0)) for _ in range(2))
    theirs = torch.optim.Adam if settings["name"] == "adam" else torch.optim.SGD
    momentum = {key: value for key, value in settings.items() if key == "momentum"}
    stepped(Optimizer(weight_decay=0.1, **settings).build([own]), own)
    stepped(theirs([plain], lr=0.0, weight_decay=0.1, **momentum), plain)
    assert torch.equal(own, plain)
    assert not torch.equal(own, torch.arange(3.0))


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_step_does_not_load_the_compiler(name: str) -> None:
    """It takes over a second, in every process of a federation."""
    code = f"""
import sys, torch
from cvfl.protocol.plan import Optimizer
w = torch.nn.Parameter(torch.ones(2))
optimizer = Optimizer(name="{name}").build([w])
w.sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
