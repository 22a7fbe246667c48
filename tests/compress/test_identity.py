"""Identity: the float's own bits, nothing else, and no NaN."""

import math

import pytest
import torch

from cvfl.compress import Context, Identity, Packet, Plane
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.theory import EXACT

CONTEXT = Context(seed=3, t0=5, m=2)


def test_by_hand():
    packet = Identity().compress(torch.tensor([[1.0, -2.0]]), CONTEXT)
    (plane,) = packet.planes
    assert packet.shape == (1, 2)
    assert packet.scalars == ()
    assert plane.width == 32
    assert [symbol % 2**32 for symbol in plane.symbols.tolist()] == [0x3F800000, 0xC0000000]


def test_float64_has_64_bits():
    packet = Identity().compress(torch.tensor(1.5, dtype=torch.float64), CONTEXT)
    assert packet.shape == ()
    assert packet.dtype == torch.float64
    assert packet.planes[0].width == 64
    assert packet.planes[0].symbols.tolist() == [0x3FF8000000000000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_finite_float_returns_with_its_sign(dtype):
    info = torch.finfo(dtype)
    h = torch.tensor([0.0, -0.0, info.max, info.min, info.tiny, info.tiny * info.eps, 1 / 3], dtype=dtype)
    back = Identity().decompress(Identity().compress(h, CONTEXT), CONTEXT)
    assert back.dtype == dtype
    assert torch.equal(back, h)
    assert math.copysign(1, float(back[1])) == -1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_travels_as_float32(dtype):
    h = torch.tensor([1.5, -0.125], dtype=dtype)
    packet = Identity().compress(h, CONTEXT)
    assert packet.dtype == torch.float32
    assert Identity().decompress(packet, CONTEXT).tolist() == [1.5, -0.125]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(CompressError, match="NaN or an infinite"):
        Identity().compress(torch.tensor([0.0, bad, 1.0]), CONTEXT)


def test_the_bound_is_exact_and_cannot_be_finer():
    identity = Identity()
    assert identity.bound(torch.ones(3), CONTEXT) == EXACT
    assert identity.refined(0.1) is identity
    assert identity.nominal_bits(7) == 32


def test_the_graph_stays_behind():
    h = torch.ones(2, requires_grad=True)
    assert not Identity().decompress(Identity().compress(h, CONTEXT), CONTEXT).requires_grad


def test_it_keeps_no_state():
    assert Identity().state_dict() == {}
    Identity().load_state_dict({})
    with pytest.raises(ConfigError, match=r"keeps no state but was given \['score'\]"):
        Identity().load_state_dict({"score": torch.ones(1)})


@pytest.mark.parametrize(
    "packet",
    [
        Packet((2,), ()),
        Packet((2,), (Plane(torch.zeros(1, dtype=torch.int32), 32),)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 8),)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.int32), 32),) * 2),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.int32), 32),), dtype=torch.float64),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.int32), 32),), scalars=(1.0,)),
    ],
    ids=["no plane", "too few", "wrong width", "two planes", "wrong dtype", "a scalar"],
)
def test_a_packet_of_another_form_is_refused(packet):
    with pytest.raises(DecodeError, match="expected"):
        Identity().decompress(packet, CONTEXT)
