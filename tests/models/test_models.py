from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cvfl.errors import ConfigError
from cvfl.models import LSTM, MLP, Concat, ResNet, party_model, server_model
from cvfl.models.server import Ended, parted
from cvfl.protocol.fusion import held, joined


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize(
    "head",
    [
        lambda: nn.Linear(9, 2),
        lambda: nn.Linear(9, 2, bias=False),
        lambda: MLP(9, 2, (5, 4)),
        lambda: nn.Sequential(nn.Linear(9, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.LayerNorm(9), nn.Linear(9, 2)),
        lambda: nn.Bilinear,
    ],
)
def test_holding_the_others_changes_neither_outputs_nor_gradients(head: Callable[[], nn.Module], m: int) -> None:
    made = head()
    model = Concat(made).double() if isinstance(made, nn.Module) else _Product().double()
    model.requires_grad_(False)
    widths = (2, 3, 4)
    phi = [torch.randn(7, width, dtype=torch.float64) for width in widths]
    whole, alone = phi[m].clone().requires_grad_(), phi[m].clone().requires_grad_()
    expected = model([*phi[:m], whole, *phi[m + 1 :]])
    stale: list[Tensor] = list(phi)
    stale[m] = torch.empty(0)  # the own place holds nothing
    fuse = held(model, stale, m)
    for _ in range(2):  # the second call must not depend on the first
        alone.grad = None
        output = fuse(alone)
        output.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(alone.grad, whole.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(joined(model, phi)), expected, rtol=0, atol=0)


class _Product(nn.Module):
    """A fusion that no part of cvfl knows."""

    def forward(self, embeddings: list[Tensor]) -> Tensor:
        return torch.stack([h.sum(1) for h in embeddings], 1).prod(1, keepdim=True)


def test_one_party_has_no_others_to_hold() -> None:
    model = Concat(nn.Linear(3, 2))
    h = torch.randn(4, 3)
    torch.testing.assert_close(held(model, [torch.empty(0)], 0)(h), model([h]))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (MLP(20, 6, (8,), bounded=True), torch.randn(5, 4, 5)),
        (LSTM(3, 6), torch.randn(5, 9, 3)),
        (ResNet(3, 6, width=4, blocks=1, stages=2), torch.randn(5, 3, 8, 8)),
    ],
)
def test_party_models_give_rows_of_their_width(model: nn.Module, x: Tensor) -> None:
    h = model(x)
    assert h.shape == (5, 6)
    h.sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_resnet18_has_its_eleven_million_parameters() -> None:
    count = sum(value.numel() for value in ResNet(3, 10).parameters())
    assert count == 11_173_962  # the 3x3-stem variant for small images


def test_unknown_names_and_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'resnet'"):
        party_model("resnets", (3, 8, 8), 4, (), torch.float32)
    with pytest.raises(ConfigError, match="'lstm' does not take rows of shape"):
        party_model("lstm", (3,), 4, (), torch.float32)
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        server_model("liner", (2, 3), 4, (), torch.float32)


@pytest.mark.parametrize(
    "head",
    [
        lambda: nn.Linear(9, 2),
        lambda: nn.Linear(9, 2, bias=False),
        lambda: MLP(9, 2, (5, 4)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(9, 5, bias=False), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)),
    ],
)
def test_a_model_with_its_first_layer_at_the_parties_is_the_same(head: Callable[[], nn.Module]) -> None:
    model, widths = Concat(head()).double(), (2, 3, 4)
    phi = [torch.randn(7, width, dtype=torch.float64) for width in widths]
    expected = model(phi)
    found = parted(model, widths)
    assert found is not None
    slices, rest = found
    parties = [Ended(nn.Identity(), W) for W in slices]
    sent = [party(h) for party, h in zip(parties, phi, strict=True)]
    assert {h.shape for h in sent} == {(7, len(slices[0]))}
    torch.testing.assert_close(rest(sent), expected, rtol=0, atol=1e-12)
    for value in [*rest.parameters(), *(value for party in parties for value in party.parameters())]:
        nn.init.zeros_(value)  # what the parties train is theirs, and b the server's own
    if isinstance(model.head, nn.Linear):
        assert torch.equal(model(phi), expected)


def test_only_a_linear_layer_over_all_embeddings_can_be_parted() -> None:
    assert parted(Concat(nn.Sequential(nn.LayerNorm(9), nn.Linear(9, 2))), (2, 3, 4)) is None
    assert parted(server_model("attention", (4, 4), 2, (), torch.float32)(), (4, 4)) is None
    assert parted(server_model("sum", (4, 4), 2, (), torch.float32)(), (4, 4)) is None
