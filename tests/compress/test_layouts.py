"""The same numbers give the same symbols, however they lie in memory and wherever they are."""

import pytest
import torch

from cvfl.compress import Context, build
from cvfl.wire import encode_packet

SPECS = ["identity", "scalar:bits=3", "scalar:bits=11", "lattice:bits=3", "lattice:bits=11"]
SPECS += ["topk:bits=8", "topk:bits=8,by=entry", "schedule(scalar:bits=2)", "deadzone", "entropy(deadzone)", "shaped"]
SPECS += ["feedback(lattice:bits=3)", "feedback(entropy(scalar:bits=3))", "entropy(topk:bits=8,by=entry)"]
CONTEXT = Context(seed=11, t0=7, m=2)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


LAYOUTS = {
    "transposed": lambda: numbers(9, 14).T,
    "every second row": lambda: numbers(18, 7)[::2],
    "every second column": lambda: numbers(9, 14)[:, ::2],
    "an inner block": lambda: numbers(20, 20)[3:12, 5:12],
    "permuted": lambda: numbers(3, 4, 5).permute(2, 0, 1),
    "expanded": lambda: numbers(1, 7).expand(9, 7),
    "strided row": lambda: numbers(40)[1::3],
    "flipped": lambda: numbers(9, 7).flip(1).T,
    "channels last": lambda: numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layout_does_not_matter(spec, layout):
    h = layout()
    plain = h.clone(memory_format=torch.contiguous_format)
    before = h.clone()
    sent = encode_packet(build(spec).compress(h, CONTEXT))
    assert sent == encode_packet(build(spec).compress(plain, CONTEXT))
    assert torch.equal(h, before)  # and h is not touched
    assert build(spec).bound(h, CONTEXT) == build(spec).bound(plain, CONTEXT)


def test_the_layouts_are_not_contiguous():
    assert [name for name, layout in LAYOUTS.items() if layout().is_contiguous()] == []


@pytest.mark.parametrize("spec", SPECS)
def test_the_graph_stays_behind(spec):
    h = numbers(4, 6).requires_grad_()
    compressor = build(spec)
    back = compressor.decompress(compressor.compress(h * 2, CONTEXT), CONTEXT)
    compressor.bound(h * 2, CONTEXT)
    assert not back.requires_grad


@pytest.mark.parametrize("spec", SPECS)
def test_threads_do_not_matter(spec):
    h = numbers(700, 300)
    threads = torch.get_num_threads()
    try:
        sent = []
        for count in (1, 2):
            torch.set_num_threads(count)
            sent.append(encode_packet(build(spec).compress(h, CONTEXT)))
    finally:
        torch.set_num_threads(threads)
    assert sent[0] == sent[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch finds no CUDA device")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_gives_the_same_bytes_and_values(spec, dtype):
    h = numbers(33, 65).to(dtype)
    cpu, gpu = build(spec), build(spec)
    packet = cpu.compress(h, CONTEXT)
    on_gpu = gpu.compress(h.cuda(), CONTEXT)
    assert encode_packet(on_gpu) == encode_packet(packet)
    assert torch.equal(gpu.decompress(on_gpu, CONTEXT).cpu(), cpu.decompress(packet, CONTEXT))
