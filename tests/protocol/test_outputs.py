"""Law 11: a row's outputs are a matter of the row alone, not of the rows that are evaluated with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cvfl.models import server_model
from cvfl.protocol.outputs import ROWS, outputs_of
from cvfl.rng import stream
from cvfl.runtime import one_thread_a_role


def rows(count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(stream(1, "rows").uniform(count * width)).reshape(count, width).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 31, 33, 777, ROWS, ROWS + 1])
def test_a_row_has_the_same_outputs_beside_any_others(dtype, count):
    model, x = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 1)).to(dtype), rows(3000, 13, dtype)
    with one_thread_a_role(), torch.no_grad():
        whole = outputs_of(model, x)
        assert torch.equal(outputs_of(model, x[:count]), whole[:count])
        assert torch.equal(outputs_of(model, x[-count:]), whole[-count:])


@pytest.mark.parametrize("name", ["linear", "mlp", "wide_deep", "sum", "attention"])
def test_so_do_server_models(name):
    make = server_model(name, (8, 8, 8), 3, (16,), torch.float32)
    phi = list(rows(1500, 24, torch.float32).split(8, 1))
    with one_thread_a_role(), torch.no_grad():
        model = make()
        whole = outputs_of(model, phi)
        assert torch.equal(outputs_of(model, [h[700:705] for h in phi]), whole[700:705])


def test_no_rows_have_no_outputs():
    assert outputs_of(nn.Linear(3, 2), torch.zeros(0, 3)).shape == (0, 2)
