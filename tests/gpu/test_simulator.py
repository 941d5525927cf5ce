"""How products are summed, held to mmasim, a simulator by others (github.com/microsoft/MMA-Sim): every mma.sync that
the machine has, a million operands each, normal numbers, numbers of all sizes, and special ones."""

import pytest
import torch
from mmasim.nv_ptx.sim import MMA, WGMMA, TCGen05MMA

from ptx_machine.device import GPU
from ptx_machine.matrix import Product
from ptx_machine.syntax import Instruction

ARCHITECTURES = {"Ampere": "A100", "Ada Lovelace": "L40S", "Hopper": "H100", "Blackwell": "B200"}
KINDS = [f"m16n8k{k}.{d}.{x}.{x}.{d}" for k, d, x in (
    (8, "f32", "f16"), (16, "f32", "f16"), (8, "f16", "f16"), (16, "f16", "f16"), (8, "f32", "bf16"),
    (16, "f32", "bf16"), (4, "f32", "tf32"), (8, "f32", "tf32"), (16, "f32", "e4m3"), (32, "f32", "e4m3"),
    (16, "f32", "e5m2"), (32, "f32", "e5m2"))]  # fmt: skip
VECTORS = 1 << 15


def product(kind, gpu):
    shape, types = kind.split(".", 1)
    words = ("mma", "sync", "aligned", shape, "row", "col", *types.split("."))
    return Product(Instruction(words, (), None, 1), GPU.of(gpu))


def drawn(size, dtype, sizes, seed):
    """Values of a type; sizes: the spread of their exponents."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    x = x * 2.0 ** torch.randint(-sizes, sizes + 1, size, generator=generator).double()
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    x[torch.rand(size, generator=generator) < 0.03] = 0.0
    return x.float().to(dtype)


def special(x, seed):
    """With NaN, infinities, negative zeros and the smallest numbers among them."""
    generator = torch.Generator().manual_seed(seed)
    found = x.double().clone()
    finite = x.dtype is torch.float8_e4m3fn
    tiny = torch.finfo(x.dtype).smallest_normal / 4
    for value in (float("nan"), -0.0, tiny, -tiny, *(() if finite else (float("inf"), -float("inf")))):
        found[torch.rand(x.shape, generator=generator) < 0.01] = value
    return found.float().to(x.dtype)


def same(x, y):
    return torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_sum_is_mmasims(kind, architecture):
    k, (gives, takes, *_) = int(kind.split(".")[0].split("k")[1]), kind.split(".")[1:]
    try:
        theirs = MMA(architecture, kind)
    except (ValueError, AssertionError, KeyError, NotImplementedError):
        theirs = None
    try:
        ours = product(kind, ARCHITECTURES[architecture]).core
    except ValueError:
        ours = None
    assert (ours is None) == (theirs is None), "one of both has no such instruction"
    if ours is not None and theirs is not None:
        every_sum_is_the_same(ours, theirs, k, gives, takes)


SHORT = ("k16.f32.bf16.bf16", "k16.f32.f16.f16", "k16.f16.f16.f16")  # products of 16 bits
OTHERS = ("k8.f32.tf32.tf32", "k32.f32.e4m3.e4m3", "k32.f32.e5m2.e5m2")


@pytest.mark.parametrize("words, kind", [*(("wgmma", kind) for kind in SHORT + OTHERS),
                                         *(("tcgen05.mma", kind) for kind in SHORT)])  # fmt: skip
def test_products_from_shared_memory_are_summed_as_mmasim_sums(words, kind):
    k, gives, takes, _ = kind[1:].split(".")
    hopper = words == "wgmma"
    shape = f"k{k}.kind::f16{kind[3:]}"
    theirs = WGMMA("Hopper", f"m64n64{kind}") if hopper else TCGen05MMA("Blackwell", f"m128n64{shape}")
    every_sum_is_the_same(GPU.of("H100" if hopper else "B200").core(takes, gives, words), theirs, int(k), gives, takes)


def every_sum_is_the_same(ours, theirs, k, gives, takes):
    result = torch.float16 if gives == "f16" else torch.float32
    for seed, sizes in enumerate((0, 3, 12, 40 if takes in ("bf16", "tf32") else 8)):
        a, b = (drawn((VECTORS // 4, k), theirs.a_type, sizes, 10 * seed + i) for i in range(2))
        c = drawn((VECTORS // 4,), result, sizes, 10 * seed + 2)
        for x, y, z in ((a, b, c), (special(a, seed), special(b, seed + 1), special(c, seed + 2))):
            mine = x if takes != "tf32" else (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
            other = y if takes != "tf32" else (y.view(torch.int32) & ~0x1FFF).view(torch.float32)
            got = ours(mine.double(), other.double(), z.double())
            assert same(got, theirs.dpa(x, y, z).double().reshape(got.shape)), sizes
