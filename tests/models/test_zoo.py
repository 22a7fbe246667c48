"""All models by name: shapes, gradients, determinism, learning; and models of a user's own."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cvfl.errors import ConfigError
from cvfl.models import MVCNN, Attention, Sum, Tabular, TabularMLP, party_model, server_model
from cvfl.models.image import _channels_last
from cvfl.models.tabular import Gates
from cvfl.protocol import Optimizer
from cvfl.protocol.fusion import held, joined
from cvfl.protocol.learning.layers import Dropout, Forward, initialised
from cvfl.rng import stream

F64 = torch.float64
PARTY = [
    ("linear", (7,), (32,)),
    ("mlp", (7,), (8,)),
    ("mlp", (3, 5), (8, 6)),
    ("tabular", (7,), (8,)),
    ("tabular", (3,), ()),
    ("lstm", (9, 3), (32,)),
    ("gru", (1, 3), (32,)),
    ("gru", (9, 3), ()),
    ("cnn", (1, 8, 8), (4,)),
    ("cnn", (3, 13, 9), (4,)),
    ("cnn", (3, 5, 31), (4, 2)),
    ("resnet", (1, 5, 7), (4, 1, 2)),
    ("resnet", (3, 16, 16), (4, 1)),
    ("mvcnn", (1, 1, 17, 17), (2,)),
    ("mvcnn", (3, 1, 29, 23), (2,)),
    ("mvcnn", (2, 3, 20, 31), (2,)),
]
SERVER = [("linear", ()), ("mlp", (6,)), ("sum", ()), ("sum", (6, 5)), ("attention", ()), ("attention", (6,))]
SERVER += [("wide_deep", (6,)), ("wide_deep", (6, 5))]


def numbers(*shape: int) -> Tensor:
    """Numbers within [-1, 1) that are the same on every machine."""
    x = stream(4, "zoo", *shape).uniform(int(torch.tensor(shape).prod()))
    return torch.from_numpy(2 * x - 1).reshape(shape)


def made(name: str, shape: tuple[int, ...], hidden: tuple[int, ...], dtype: torch.dtype = F64) -> nn.Module:
    return initialised(party_model(name, shape, 6, hidden, dtype), 1, 1)


@pytest.mark.parametrize(("name", "shape", "hidden"), PARTY)
def test_a_party_model_gives_its_width_and_a_gradient_everywhere(
    name: str, shape: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    for dtype in (torch.float32, F64):
        model = made(name, shape, hidden, dtype)
        h = model(numbers(5, *shape).to(dtype))
        assert (h.shape, h.dtype) == ((5, 6), dtype)
        h.square().sum().backward()
        assert all(value.grad is not None and bool(value.grad.isfinite().all()) for value in model.parameters())
    if name in {"mlp", "tabular", "lstm", "gru"}:
        assert float(model(1e6 * numbers(5, *shape)).detach().abs().max()) <= 1


@pytest.mark.parametrize(("name", "shape", "hidden"), PARTY)
def test_a_party_model_is_the_same_each_time_and_a_row_alone_is_a_row_of_a_batch(
    name: str, shape: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    model, again = made(name, shape, hidden).eval(), made(name, shape, hidden).eval()
    x = numbers(4, *shape)
    assert torch.equal(model(x), again(x))
    torch.testing.assert_close(torch.cat([model(row[None]) for row in x]), model(x), rtol=0, atol=1e-12)
    embed = Forward(model, 1, 1, x)
    assert not embed._by_generator
    assert not embed._by_stream


@pytest.mark.parametrize(("name", "shape", "hidden"), [case for case in PARTY if case[0] != "resnet"])
def test_the_gradient_of_a_party_model_is_that_of_its_values(
    name: str, shape: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    """Along a random direction of all parameters, by differences; batch normalisation is torch's own affair."""
    model = made(name, shape, hidden)
    x, weight = numbers(3, *shape), numbers(3, 6)
    (model(x) * weight).sum().backward()
    gradient = torch.cat([value.grad.flatten() for value in model.parameters()])
    theta = parameters_to_vector(model.parameters()).detach()
    direction = numbers(len(theta))
    values = []
    with torch.no_grad():
        for step in (1e-6, -1e-6):
            vector_to_parameters(theta + step * direction, model.parameters())
            values.append(float((model(x) * weight).sum()))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(gradient @ direction), rel=1e-4, abs=1e-6)


def train(model: nn.Module, x: object, y: Tensor, steps: int = 25, eta: float = 0.02) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=eta)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("name", "shape", "hidden"), PARTY)
def test_a_party_model_learns(name: str, shape: tuple[int, ...], hidden: tuple[int, ...]) -> None:
    x = numbers(24, *shape)
    y = torch.arange(24) % 2
    x += 0.7 * y.reshape(-1, *[1] * len(shape))
    losses = train(nn.Sequential(made(name, shape, hidden), nn.Linear(6, 2).double()), x, y)
    assert losses[-1] < 0.7 * losses[0]


def test_views_may_come_in_any_order_and_often() -> None:
    model = made("mvcnn", (3, 1, 20, 20), (2,))
    x = numbers(2, 3, 1, 20, 20)
    torch.testing.assert_close(model(x[:, [2, 0, 1, 1]]), model(x), rtol=0, atol=1e-12)
    assert not torch.equal(model(x[:, :1]), model(x))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_of_images_is_not_in_the_numbers(channels: int) -> None:
    model = MVCNN(channels, 5, (20, 31), width=2).double()
    x = torch.randn(4, 2, channels, 20, 31, dtype=torch.float64)
    plain = model.head(model.features(x.flatten(0, 1)).unflatten(0, (4, 2)).amax(1).flatten(1))
    assert torch.allclose(model(x), plain, rtol=0, atol=1e-12)
    assert model.features[0](_channels_last(x.flatten(0, 1))).stride(1) == 1  # and the fast way is taken


def test_mvcnn_is_the_papers_at_224_pixels_and_fits_every_size() -> None:
    model = MVCNN(3, 4096, (224, 224))
    assert [tuple(value.shape) for value in model.parameters()] == [
        *[(64, 3, 11, 11), (64,), (256, 64, 3, 3), (256,)],
        *[(4096, 256 * 5 * 5), (4096,)],
    ]
    assert MVCNN(1, 4, (48, 48)).head.in_features == 256 * 4 * 4
    with torch.device("meta"):
        for side in range(MVCNN.smallest(), 260, 3):
            h = MVCNN(1, 3, (side, side + 5), width=2)(torch.empty(2, 1, 1, side, side + 5))
            assert h.shape == (2, 3)
        for step in (1, 2, 3, 5):
            side = MVCNN.smallest(step)
            assert MVCNN(1, 3, (side, side), 2, step)(torch.empty(2, 1, 1, side, side)).shape == (2, 3)


def test_a_category_is_looked_up_and_numbers_pass_through() -> None:
    model = TabularMLP(2, (3, 100), 4).double()
    assert [tuple(vector.weight.shape) for vector in model.vectors] == [(3, 3), (100, 21)]
    x = torch.tensor([[0.5, -0.25, 2, 99], [1.5, 3.0, 0, 7]], dtype=F64)
    first, second = (vector.weight for vector in model.vectors)
    by_hand = torch.stack([torch.cat([x[i, :2], first[a], second[b]]) for i, (a, b) in enumerate([(2, 99), (0, 7)])])
    assert torch.equal(model(x), model.head(by_hand))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_tables_with_categories_get_vectors_and_learn_from_them(name: str) -> None:
    make = party_model(name, (3,), 6, (8,), F64, categories=(12,))
    model = initialised(make, 1, 1)
    assert isinstance(model, TabularMLP)
    codes = torch.arange(48) % 12
    x = torch.cat([numbers(48, 2), codes[:, None]], 1)
    h = model(x)
    assert h.shape == (48, 6)
    assert (float(h.detach().abs().max()) <= 1) or name == "linear"
    y = codes * 7 % 12 % 2  # no threshold on the code tells these apart
    losses = train(nn.Sequential(model, nn.Linear(6, 2).double()), x, y, steps=60, eta=0.05)
    assert losses[-1] < 0.2 * losses[0]


def test_a_table_of_categories_only_is_a_table() -> None:
    model = party_model("mlp", (2,), 3, (4,), torch.float32, categories=(5, 2))()
    assert model(torch.tensor([[4.0, 1.0]])).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "shape", "categories"), [("lstm", (4, 3), (2,)), ("mlp", (4, 3), (2,)), ("mlp", (1,), (2, 2))]
)
def test_categories_belong_to_tables(name: str, shape: tuple[int, ...], categories: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=f"model '{name}' does not take rows of shape .* are categories"):
        party_model(name, shape, 4, (8,), F64, categories=categories)


@pytest.mark.parametrize(
    ("name", "shape", "hidden", "message"),
    [
        ("cnn", (3, 7, 9), (8,), r"takes images of 8 x 8 pixels or more, not \(3, 7, 9\)"),
        ("cnn", (3, 15, 15), (8, 4), "takes images of 16 x 16 pixels"),
        ("mvcnn", (3, 1, 16, 40), (8,), "takes images of 17 x 17 pixels"),
        ("mvcnn", (1, 16, 40), (8,), "does not take rows of shape"),
        ("gru", (3,), (8,), "does not take rows of shape"),
        ("cnn", (8, 8), (8,), "does not take rows of shape"),
        ("cnn", (1, 8, 8), (8, 2, 2), r"hidden of model 'cnn' is \[width, layers\], each at least 1, not \[8, 2, 2\]"),
        ("mlp", (3,), (8, 0), "is the sizes of layers, each at least 1"),
        ("gnu", (3, 3), (), "did you mean 'gru'"),
    ],
)
def test_what_a_party_model_cannot_do_is_said(
    name: str, shape: tuple[int, ...], hidden: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        party_model(name, shape, 4, hidden, F64)


@pytest.mark.parametrize(("name", "hidden"), SERVER)
@pytest.mark.parametrize("parties", [1, 3])
def test_a_server_model_is_differentiable_deterministic_and_held_exactly(
    name: str, hidden: tuple[int, ...], parties: int
) -> None:
    make = server_model(name, (4,) * parties, 3, hidden, F64)
    model, again = initialised(make, 1, 0), initialised(make, 1, 0)
    phi = [numbers(5, 4, m + 1)[..., 0] for m in range(parties)]
    output = model(phi)
    assert (output.shape, output.dtype) == ((5, 3), F64)
    assert torch.equal(output, again(phi))
    torch.testing.assert_close(model(joined(model, phi)), output, rtol=0, atol=1e-12)
    torch.testing.assert_close(model([h[2:3] for h in phi]), output[2:3], rtol=0, atol=1e-12)
    output.square().sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    for m in range(parties):
        whole, alone = phi[m].clone().requires_grad_(), phi[m].clone().requires_grad_()
        expected = model([*phi[:m], whole, *phi[m + 1 :]])
        stale = [*phi[:m], torch.empty(0), *phi[m + 1 :]]
        fused = held(model, stale, m)(alone)
        torch.testing.assert_close(fused, expected, rtol=0, atol=1e-12)
        gradients = [torch.autograd.grad(y.square().sum(), h)[0] for y, h in ((expected, whole), (fused, alone))]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "hidden"), SERVER)
def test_a_server_model_learns(name: str, hidden: tuple[int, ...]) -> None:
    phi = [numbers(32, 4, m)[..., 0] for m in (1, 2, 3)]
    y = (sum(h.sum(1) for h in phi) > 0).long()
    losses = train(initialised(server_model(name, (4,) * 3, 2, hidden, F64), 2, 0), phi, y, steps=80, eta=0.05)
    assert losses[-1] < 0.5 * losses[0]


def test_numbers_fill_the_boxes_of_their_scale_one_after_the_other() -> None:
    """The additive part of one column is a line from box to box, flat in all where no weight is."""
    model = Tabular(1, (), 1, (), pieces=4).double().eval()
    with torch.no_grad():
        model.deep[-1].weight.zero_()
        model.additive.bias.zero_()
        model.additive.weight[0, 1 + 2] = 1.0  # the third of four boxes
    places = torch.tensor([0.001, 0.3, 0.5, 0.625, 0.75, 0.999], dtype=F64)
    z = torch.special.ndtri(places)[:, None]
    filled = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 1.0], dtype=F64) - 0.5
    torch.testing.assert_close(model(z)[:, 0].atanh(), filled, rtol=0, atol=1e-9)


def test_gates_of_columns_that_do_not_help_close() -> None:
    """The label is in the first of six columns; the steps are Adam's, as `init` has them."""
    model = initialised(party_model("tabular", (6,), 1, (8,), F64), 1, 1)
    steps = Optimizer(name="adamw", sparsity=0.25).of(model)
    for n in range(500):
        drawn = stream(n, "gates").uniform(64 * 7)
        x, noise = torch.tensor(drawn, dtype=F64).mul(2).sub(1).reshape(64, 7).split([6, 1], 1)
        steps.take((model(x) - x[:, :1].tanh() - noise).square().mean().backward, 0.003)
    gates = model.gates.scale.detach()
    assert gates[0] > 0.1
    assert gates[1:].abs().max() < 0.01


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=5), st.floats(0, 1))
def test_a_gate_shrinks_towards_zero_and_not_beyond(scale: list[float], by: float) -> None:
    gates = Gates(len(scale)).double()
    with torch.no_grad():
        gates.scale.copy_(torch.tensor(scale, dtype=F64))
    gates.shrink(by)
    for before, after in zip(scale, gates.scale.tolist(), strict=True):
        assert after == pytest.approx(math.copysign(max(0.0, abs(before) - by), before), abs=1e-12)


def test_without_sparsity_gates_are_ordinary_weights() -> None:
    model = initialised(party_model("tabular", (3,), 2, (4,), F64), 1, 1)
    before = model.gates.scale.detach().clone()
    Optimizer(name="sgd").of(model).take(model(numbers(5, 3)).sum().backward, 0.0)
    assert torch.equal(model.gates.scale, before)


def test_dropout_is_of_training_and_from_the_stream_of_layers() -> None:
    model = initialised(party_model("tabular", (4,), 3, (16,), F64, dropout=0.5), 1, 1)
    x = numbers(6, 4)
    assert torch.equal(model.eval()(x), model.eval()(x))
    embed = Forward(model.train(), 1, 1, x)
    assert torch.equal(embed(x, 2, 0), embed(x, 2, 0))
    assert not torch.equal(embed(x, 2, 0), embed(x, 2, 1))


@given(st.floats(0, 0.95), st.integers(0, 99))
def test_dropout_leaves_out_a_share_and_keeps_the_mean(p: float, seed: int) -> None:
    layer, x = Dropout(p), torch.full((100, 50), 3.0, dtype=F64)
    passed = Forward(layer, seed, 1, x)(x, 0, 0)
    kept = passed != 0
    torch.testing.assert_close(passed[kept], torch.full_like(passed[kept], 3 / (1 - p)), rtol=1e-3, atol=0)
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9
    assert torch.equal(layer.eval()(x), x)


def test_dropout_is_the_same_numbers_on_every_machine() -> None:
    """Drawn from the named stream, not by a library: these are its first numbers."""
    x = torch.ones(1, 8)
    assert (Forward(Dropout(0.5), 7, 2, x)(x, 3, 1) != 0).int().tolist() == [[0, 0, 0, 1, 0, 0, 1, 0]]


def test_dropout_outside_of_a_pass_is_torch_s() -> None:
    layer, x = Dropout(0.5), torch.ones(40)
    torch.manual_seed(3)
    own = layer(x)
    torch.manual_seed(3)
    assert torch.equal(own, nn.functional.dropout(x, 0.5))


def test_wide_deep_is_linear_beside_what_its_hidden_units_see() -> None:
    model = server_model("wide_deep", (2, 3), 2, (4,), F64)()
    phi = [numbers(5, 2), numbers(5, 3)]
    first, beside = model.head
    z = first(torch.cat(phi, 1))
    torch.testing.assert_close(model(phi), z[:, :2] + beside.model[1](z[:, 2:].relu()), rtol=0, atol=1e-12)
    assert model.folds
    with pytest.raises(ConfigError, match=r"'wide_deep' needs hidden, such as \[32\]"):
        server_model("wide_deep", (2, 3), 2, (), F64)()


def test_sum_needs_one_width_and_adds() -> None:
    with pytest.raises(ConfigError, match="'sum' adds embeddings of one width, not of 4, 4, 5"):
        server_model("sum", (4, 4, 5), 2, (), F64)
    model = Sum(nn.Identity())
    phi = [numbers(2, 3, m)[..., 0] for m in (1, 2)]
    assert torch.equal(model(phi), phi[0] + phi[1])


def test_attention_takes_unequal_widths_and_its_weights_follow_the_query() -> None:
    model = initialised(server_model("attention", (2, 5, 3), 4, (6,), F64), 1, 0)
    assert isinstance(model, Attention)
    phi = [numbers(7, width) for width in (2, 5, 3)]
    values = torch.stack([to_common(h) for to_common, h in zip(model.maps, phi, strict=True)], 1)
    torch.testing.assert_close(model(phi), model.head(values.mean(1)))  # at first all parties weigh alike
    with torch.no_grad():
        model.query.copy_(1e4 * torch.eye(5, dtype=F64)[0])
    loudest = values[torch.arange(7), values[:, :, 0].argmax(1)]
    torch.testing.assert_close(model(phi), model.head(loudest))


OWN = """
import torch
from torch import nn

CONSTANT = 3

class Tiny(nn.Linear):
    def __init__(self, shape, width):
        super().__init__(shape[0], width)

def everything(**given):
    model = nn.Linear(given["shape"][0] if "shape" in given else sum(given["widths"]), 2)
    model.given = given
    return model

def with_depth(shape, width, depth):
    return nn.Linear(1, 1)

def nothing(shape):
    return None

class Head(nn.Module):
    def __init__(self, widths, outputs, *, hidden):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, embeddings):
        return sum(h.sum(1, keepdim=True) for h in embeddings) * self.scale
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_models.py").write_text(OWN)
    (tmp_path / "broken_models.py").write_text("def make(:\n")
    (tmp_path / "needy_models.py").write_text("import a_library_that_is_not_there\n")
    yield tmp_path
    for name in ("my_models", "broken_models", "needy_models"):
        sys.modules.pop(name, None)


def test_a_users_own_model_is_found_in_the_current_directory(here: Path) -> None:
    make = party_model("my_models:Tiny", (5,), 3, (8,), F64)
    model = make()
    assert model(numbers(2, 5)).shape == (2, 3)
    assert torch.equal(initialised(make, 1, 1).weight, initialised(make, 1, 1).weight)
    assert sys.path.count(str(here)) == 1
    given = party_model("my_models:everything", (5,), 3, (8,), F64, categories=(4,))().given
    assert given == {"shape": (5,), "width": 3, "hidden": (8,), "categories": (4,), "dropout": 0.0, "pieces": 8}
    head = server_model("my_models:Head", (2, 3), 4, (), F64)()
    assert head([numbers(6, 2), numbers(6, 3)]).shape == (6, 4)
    given = server_model("my_models:everything", (2, 3), 4, (9,), torch.float32)().given
    assert given == {"widths": (2, 3), "outputs": 4, "hidden": (9,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_models:make", "no module 'no_such_models', neither in .* nor installed"),
        ("my_models.inner:make", "importing my_models.inner fails|no module 'my_models.inner'"),
        ("my_models:tiny", "my_models has no 'tiny'; did you mean 'Tiny'"),
        ("my_models:CONSTANT", "CONSTANT is of type int and cannot be called"),
        ("my_models:with_depth", "missing a required argument: 'depth'; it is called with shape, width, hidden"),
        ("broken_models:make", "importing broken_models fails .SyntaxError"),
        ("needy_models:make", "importing needy_models fails .ModuleNotFoundError: .*a_library_that_is_not_there"),
        ("my_models:", "write it as module:function"),
        (":Tiny", "write it as module:function"),
        ("my models:Tiny", "write it as module:function"),
    ],
)
def test_what_is_wrong_with_an_own_model_is_one_line(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{text}': .*({message})") as refusal:
        party_model(text, (5,), 3, (), F64)
    assert "\n" not in str(refusal.value)


def test_an_own_model_must_be_a_module_and_know_categories_if_there_are_any(here: Path) -> None:
    make = party_model("my_models:nothing", (5,), 3, (), F64)
    with pytest.raises(ConfigError, match=r"model 'my_models:nothing' returned NoneType, not a torch.nn.Module"):
        make()
    with pytest.raises(ConfigError, match="model 'my_models:Tiny' takes no 'categories'"):
        party_model("my_models:Tiny", (5,), 3, (), F64, categories=(2,))
