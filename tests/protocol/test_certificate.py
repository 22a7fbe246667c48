"""What a certificate says of two gradients, and what is left of a tolerance."""

from __future__ import annotations

import math

import pytest
import torch

from cvfl.compress import build
from cvfl.protocol import Certificate, Codec, Loss
from cvfl.protocol.coding.follow import certify, worst


def of(exact: float, across: float, caused: float) -> tuple[float, float] | None:
    found = Certificate.of(exact, across, caused, 1.0)
    return None if found is None else (found.cosine, found.ratio)


def test_cosine_and_ratio_of_lengths() -> None:
    assert of(4.0, 4.0, 4.0) == (1.0, 1.0)
    assert of(4.0, -8.0, 16.0) == (-1.0, 2.0)
    assert of(1.0, 0.3, 0.25) == (0.6, 0.5)
    assert of(3.0, 1.0, 7.0) == (float(f"{1 / math.sqrt(21):.6g}"), float(f"{math.sqrt(7 / 3):.6g}"))


def test_rounding_leaves_no_cosine_above_one() -> None:
    assert of(1.0, 1.0 + 1e-9, 1.0) == (1.0, 1.0)


def test_a_message_that_causes_nothing_has_no_direction() -> None:
    assert of(1.0, 0.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("products", [(0.0, 0.0, 1.0), (-1e-30, 0.0, 0.0), (math.nan, 1.0, 1.0), (1e-300, 1.0, 1e300)])
def test_nothing_is_said_where_there_is_nothing_to_compare_with(products: tuple[float, float, float]) -> None:
    assert of(*products) is None


def test_the_worst_of_several() -> None:
    found = [Certificate(0.9, 1.2, 1.0), None, Certificate(0.95, 0.5, 0.25), Certificate(0.99, 1.0, 0.5)]
    assert worst(found) == Certificate(0.9, 0.5, 0.25)
    assert worst([Certificate(1.0, 0.0, 1.0), Certificate(1.0, 9.0, 1.0)]) == Certificate(1.0, 0.0, 1.0)
    assert worst([None]) is None


@pytest.mark.parametrize("spec", ["shaped", "entropy(shaped)", "feedback(entropy(shaped))"])
def test_the_tolerance_is_lowered_and_comes_back(spec: str) -> None:
    """By what was decoded: nothing, several times, and then all of it."""
    torch.manual_seed(1)
    h, W, y = torch.randn(40, 3), torch.randn(3, 1), (torch.rand(40) < 0.5).float()
    codec = Codec(build(spec), 0, 1, "bank")
    assert codec.ease == 1.0

    def outputs(x: torch.Tensor) -> torch.Tensor:
        return (x @ W).squeeze(1)

    leaf = h.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Loss.BINARY(outputs(leaf), y), leaf)

    def seen(decoded: torch.Tensor) -> Certificate:
        found = certify(codec, outputs, h, gradient, decoded, y, Loss.BINARY)
        assert found is not None
        return found

    exact = seen(h)
    assert (exact.cosine, exact.ratio, exact.ease) == (1.0, 1.0, 1.0)
    lost = [seen(-h) for _ in range(4)][-1]
    assert lost.cosine < 0.9
    assert lost.ease < 1
    assert [seen(h) for _ in range(60)][-1].ease == 1.0


def test_a_compressor_that_does_not_follow_has_all_of_its_tolerance() -> None:
    assert build("feedback(scalar:bits=2)").ease == 1.0
