"""docs/writing-a-compressor.md works as printed: its code is run, and its compressor keeps what the page promises."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cvfl.compress import Context, Packet, Plane, build, registry
from cvfl.errors import CompressError, DecodeError
from cvfl.wire import decode_packet, encode_packet

pytestmark = pytest.mark.usefixtures("no_pages")
PAGE = (Path(__file__).parents[2] / "docs" / "writing-a-compressor.md").read_text(encoding="utf-8")
DEFINITION, USE = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)
CONTEXT = Context(seed=1, t0=2, m=3)


@pytest.fixture(autouse=True)
def _defined():
    """The page's compressor is known in these tests alone."""
    exec(compile(DEFINITION, "docs/writing-a-compressor.md", "exec"), {"__name__": "page"})
    yield
    del registry.COMPRESSORS["signs"]


def test_it_is_about_thirty_lines():
    body = DEFINITION.partition("class Signs")[2]
    assert 20 <= sum(bool(line.strip()) for line in body.splitlines()) <= 35


def test_by_hand():
    h = torch.tensor([[1.0, -2.0], [0.0, 5.0]])
    packet = build("signs").compress(h, CONTEXT)
    assert packet.planes[0].symbols.tolist() == [0, 1, 0, 0]
    assert packet.scalars == (2.0,)
    assert build("signs").decompress(packet, CONTEXT).tolist() == [[2.0, -2.0], [2.0, 2.0]]
    assert build("signs").bound(h, CONTEXT).worst == pytest.approx((1 + 0 + 4 + 9) * (1 + 2**-10))
    assert build("signs:scale=0.5").compress(h, CONTEXT).scalars == (1.0,)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1), (5, 7), (2, 3, 4), (1000, 17)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", ["signs", "signs:scale=0.9"])
def test_round_trip_bytes_and_bound(shape, dtype, spec):
    h = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=dtype) * 3 + 1
    sender, receiver = build(spec), build(spec)
    data = encode_packet(sender.compress(h, CONTEXT))
    size = 4 if dtype == torch.float32 else 8
    assert len(data) == 2 + size + math.ceil(h.numel() / 8)  # "a bit a component, and 4 bytes"

    back = receiver.decompress(decode_packet(data, shape), CONTEXT)
    assert (back.shape, back.dtype) == (h.shape, h.dtype)
    bound = sender.bound(h, CONTEXT)
    error = float((back.double() - h.double()).square().sum())
    assert bound.expected == bound.worst
    assert 0.99 * bound.worst <= error <= bound.worst
    assert error <= float(h.double().square().sum())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(CompressError, match="NaN or an infinite"):
        build("signs").compress(torch.tensor([0.0, bad]), CONTEXT)


@pytest.mark.parametrize(
    "packet",
    [
        Packet((3,), (Plane(torch.zeros(2, dtype=torch.uint8), 1),), scalars=(1.0,)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 2),), scalars=(1.0,)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 1),)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 1),), scalars=(math.nan,)),
    ],
    ids=["count", "width", "no size", "nan"],
)
def test_bad_packets_are_refused(packet):
    with pytest.raises(DecodeError):
        build("signs").decompress(packet, CONTEXT)


@pytest.mark.parametrize("spec", ["signs", "entropy(signs)", "feedback(signs)", "feedback(entropy(signs))"])
def test_wrappers_take_it(spec):
    sender, receiver = build(spec), build(spec)
    h = torch.randn(300, 8, generator=torch.Generator().manual_seed(4)) + 2
    errors, sizes = [], []
    for t0 in range(6):
        context = Context(seed=1, t0=t0, m=3)
        data = encode_packet(sender.compress(h, context))
        assert encode_packet(sender.compress(h, context)) == data
        packet = decode_packet(data, (300, 8))
        back = receiver.decompress(packet, context)
        errors.append(float((back - h).square().sum()))
        sizes.append(len(data))
        assert errors[-1] <= sender.bound(h, context).worst
        for end in (sender, receiver):
            end.settle(packet, back, context)
    assert (errors[-1] < 0.2 * errors[0]) == ("feedback" in spec)
    assert (sizes[0] < 300) == ("entropy" in spec)  # a bit a component, or less: most signs are alike


def test_the_use_trains(capsys):
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(USE, "docs/writing-a-compressor.md", "exec"), names)
    run = names["run"]
    assert run.config["compressor"] == "signs:scale=0.9"
    assert f"accuracy {run.metrics.test.accuracy:.4f}" in capsys.readouterr().out
    assert run.metrics.test.accuracy > 0.5  # of ten digits
    assert 0 < run.compression_error.measured <= run.compression_error.bound
