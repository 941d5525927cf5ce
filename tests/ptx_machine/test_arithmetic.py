"""The arithmetic of PTX, instruction by instruction, held to Python's integers and to torch. tests/gpu/test_compilers
holds FP32 in every rounding mode to gcc."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from small_ptx import lanewise

RNG = np.random.default_rng(0)
EDGES32 = np.array([0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF,
                    0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x3F7FFFFF, 0x33800000, 0x4B800001],
                   np.uint32)  # fmt: skip


def floats(count=32):
    """FP32 of all sizes, near one another, and edges."""
    any_bits = RNG.integers(0, 1 << 32, count, dtype=np.uint32)
    near = (RNG.standard_normal(count) * 2.0 ** RNG.integers(-3, 3, count)).astype(np.float32).view(np.uint32)
    choice = RNG.integers(0, 3, count)
    bits = np.where(choice == 0, any_bits, np.where(choice == 1, near, RNG.choice(EDGES32, count)))
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("kind, dtype", [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_16_bits_are_rounded_once(kind, dtype):
    """A sum and a product of two such numbers are exact in FP64, and torch rounds FP64 once."""
    for operation in ("fma", "add", "mul"):
        if kind == "bf16" and operation != "fma":
            continue  # PTX has them from sm_90 on
        a, b, c = (torch.randn(32, dtype=torch.float64).mul(4).to(dtype) for _ in range(3))
        x, y, z = (t.double() for t in (a, b, c))
        exact = {"fma": x * y + z, "add": x + y, "mul": x * y}[operation]
        operands = [t.view(torch.int16).numpy().view(np.uint16) for t in ((a, b, c) if operation == "fma" else (a, b))]
        names = ", ".join(f"{{{i}}}" for i in range(len(operands)))
        got = lanewise(f"{operation}.rn.{kind} {{out}}, {names}", operands, np.uint16)
        assert np.array_equal(got, exact.to(dtype).view(torch.int16).numpy().view(np.uint16)), operation
        pairs = [x.astype(np.uint32) | (np.roll(x, 1).astype(np.uint32) << 16) for x in operands]
        both = lanewise(f"{operation}.rn.{kind}x2 {{out}}, {names}", pairs, np.uint32)
        assert np.array_equal(both, got.astype(np.uint32) | (np.roll(got, 1).astype(np.uint32) << 16))


def test_the_larger_and_the_smaller():
    a = np.array([1, np.nan, 0.0, -0.0, np.nan, 1e-40, -3, np.inf] * 4, np.float32)
    b = np.array([2, 5, -0.0, 0.0, np.nan, -1e-40, -4, np.nan] * 4, np.float32)
    assert lanewise("max.f32 {out}, {0}, {1}", [a, b], np.float32)[:4].tolist() == [2, 5, 0, 0]
    assert np.signbit(lanewise("min.f32 {out}, {0}, {1}", [a, b], np.float32)[2:4]).all()
    assert lanewise("max.f32 {out}, {0}, {1}", [a, b], np.uint32)[4] == 0x7FFFFFFF
    assert lanewise("max.ftz.f32 {out}, {0}, {1}", [a, b], np.float32)[5] == 0
    assert np.isnan(lanewise("max.NaN.f32 {out}, {0}, {1}", [a, b], np.float32)[[1, 7]]).all()


ARGUMENTS = np.concatenate([RNG.uniform(-20, 20, 24), [0, 1, -1, 0.5, -126, 64, -149.5, 10]]).astype(np.float32)


@pytest.mark.parametrize("name, function", [
    ("ex2.approx", lambda x: 2.0**x), ("lg2.approx", np.log2), ("rcp.approx", lambda x: 1 / x),
    ("rsqrt.approx", lambda x: 1 / np.sqrt(x)), ("sqrt.rn", np.sqrt), ("tanh.approx", np.tanh),
    ("sin.approx", np.sin), ("cos.approx", np.cos), ("rcp.rn", lambda x: 1 / x),
])  # fmt: skip
def test_functions_are_rounded_correctly(name, function):
    x = np.abs(ARGUMENTS) + np.float32(0.001) if name[:2] in ("lg", "rs", "sq") else ARGUMENTS
    with np.errstate(all="ignore"):
        want = function(x.astype(np.float64)).astype(np.float32)
    assert np.array_equal(lanewise(f"{name}.f32 {{out}}, {{0}}", [x], np.float32), want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_quotients_and_roots_in_directed_rounding(mode):
    """A result is on its side of the exact one, and its neighbour is not."""
    a, b = floats(), floats()
    ok = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    a, b = np.where(ok, a, np.float32(3)), np.where(ok, b, np.float32(-7))
    exact = {
        "div": ([a, b], lambda x, y: Fraction(x) / Fraction(y)), "rcp": ([a], lambda x: 1 / Fraction(x)),
        "sqrt": ([np.abs(a)], Fraction),
    }  # fmt: skip
    for name, (operands, value) in exact.items():
        places = ", ".join(f"{{{i}}}" for i in range(len(operands)))
        got = lanewise(f"{name}.{mode}.f32 {{out}}, {places}", operands, np.float32)
        for result, *given in zip(got, *operands):
            due = value(*map(float, given))
            up = mode == "rp" or mode == "rz" and due < 0
            with np.errstate(over="ignore"):
                beyond = np.nextafter(result, np.float32(-np.inf if up else np.inf))
            sides = [float(x) if np.isinf(x) else Fraction(float(x)) for x in (result, beyond)]
            inner, outer = (x * abs(x) for x in sides) if name == "sqrt" else sides
            assert (inner >= due > outer) if up else (inner <= due < outer), (name, given, result)


def test_functions_at_their_ends():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 200, -200] * 4, np.float32)
    inf, nan = np.inf, 0x7FFFFFFF
    ex2 = lanewise("ex2.approx.ftz.f32 {out}, {0}", [x], np.float32)
    assert ex2[[0, 1, 3, 4, 5, 6, 7]].tolist() == [inf, 0, 1, 1, 2, inf, 0] and ex2.view(np.uint32)[2] == nan
    lg2 = lanewise("lg2.approx.ftz.f32 {out}, {0}", [x], np.float32)
    assert lg2[[0, 3, 4, 5]].tolist() == [inf, -inf, -inf, 0] and (lg2.view(np.uint32)[[1, 2, 7]] == nan).all()
    tanh = lanewise("tanh.approx.f32 {out}, {0}", [x], np.float32)
    assert tanh[[0, 1, 5]].tolist() == [1, -1, np.float32(np.tanh(1))]
    assert lanewise("rcp.approx.ftz.f32 {out}, {0}", [x], np.float32)[[0, 1, 3, 4]].tolist() == [0, 0, inf, -inf]


def wrapped(value, kind):
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def quotient(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


WHOLE = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b, "min": min, "max": max,
    "div": quotient, "rem": lambda a, b: a - b * quotient(a, b), "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_whole_numbers(kind):
    bits = int(kind[1:])
    edges = [0, 1, -1, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    a, b = (np.array([wrapped(int(x), f"u{bits}") for x in [*edges, *RNG.integers(-(1 << 15), 1 << 15, 11),
            *RNG.integers(0, 1 << (bits - 1), 16)]], f"uint{bits}") for _ in range(2))  # fmt: skip
    b = np.where(np.roll(b, 1) == 0, np.array(7, b.dtype), np.roll(b, 1))
    values = [[wrapped(int(x), kind) for x in each] for each in (a, b)]
    for name, function in WHOLE.items():
        word = f"b{bits}" if name in ("and", "or", "xor") else kind
        got = lanewise(f"{name}.{word} {{out}}, {{0}}, {{1}}", [a, b], f"uint{bits}")
        assert got.tolist() == [wrapped(function(x, y), f"u{bits}") for x, y in zip(*values)], name
    high = lanewise(f"mul.hi.{kind} {{out}}, {{0}}, {{1}}", [a, b], f"uint{bits}")
    assert high.tolist() == [wrapped(x * y >> bits, f"u{bits}") for x, y in zip(*values)]
    if bits < 64:
        wide = lanewise(f"mul.wide.{kind} {{out}}, {{0}}, {{1}}", [a, b], f"uint{2 * bits}")
        assert wide.tolist() == [wrapped(x * y, f"u{2 * bits}") for x, y in zip(*values)]
    n = RNG.integers(0, bits + 9, 32).astype(np.uint32)
    right = lanewise(f"shr.{kind} {{out}}, {{0}}, {{1}}", [a, n], f"uint{bits}")
    assert right.tolist() == [wrapped(x >> min(int(s), bits if kind[0] == "u" else bits - 1), f"u{bits}")
                              for x, s in zip(values[0], n)]  # fmt: skip
    left = lanewise(f"shl.b{bits} {{out}}, {{0}}, {{1}}", [a, n], f"uint{bits}")
    assert left.tolist() == [wrapped(x << int(s), f"u{bits}") if s < bits else 0 for x, s in zip(values[0], n)]


def test_bits():
    x, y = (RNG.integers(0, 1 << 32, 32, dtype=np.uint32) for _ in range(2))
    x[:3] = 0, 0xFFFFFFFF, 0x80000000
    n = RNG.integers(0, 40, 32).astype(np.uint32)
    m = RNG.integers(0, 40, 32).astype(np.uint32)
    pairs = [*zip(map(int, x), map(int, y), map(int, n), map(int, m))]
    assert lanewise("popc.b32 {out}, {0}", [x], np.uint32).tolist() == [a.bit_count() for a, *_ in pairs]
    assert lanewise("clz.b32 {out}, {0}", [x], np.uint32).tolist() == [32 - a.bit_length() for a, *_ in pairs]
    assert lanewise("brev.b32 {out}, {0}", [x], np.uint32).tolist() == [int(f"{a:032b}"[::-1], 2) for a, *_ in pairs]
    found = lanewise("bfind.u32 {out}, {0}", [x], np.uint32)
    assert found.tolist() == [a.bit_length() - 1 if a else 0xFFFFFFFF for a, *_ in pairs]

    def extract(a, p, k, signed):
        sign = a >> min(p + k - 1, 31) & 1 if signed and k else 0
        return sum((a >> (p + i) & 1 if i < k and p + i < 32 else sign) << i for i in range(32))

    for kind in ("u32", "s32"):
        got = lanewise(f"bfe.{kind} {{out}}, {{0}}, {{1}}, {{2}}", [x, n, m], np.uint32)
        assert got.tolist() == [extract(a, p, k, kind == "s32") for a, _, p, k in pairs]

    def insert(a, b, p, k):
        for i in range(k):
            if p + i < 32:
                b = b & ~(1 << (p + i)) | (a >> i & 1) << (p + i) if i < 32 else b
        return b

    got = lanewise("bfi.b32 {out}, {0}, {1}, {2}, {3}", [x, y, n, m], np.uint32)
    assert got.tolist() == [insert(a, b, p, k) for a, b, p, k in pairs]

    def permute(a, b, which):
        bytes_of = (a | b << 32).to_bytes(8, "little")
        out = 0
        for i in range(4):
            nibble = which >> 4 * i & 15
            byte = bytes_of[nibble & 7]
            out |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * i
        return out

    which = RNG.integers(0, 1 << 16, 32).astype(np.uint32)
    got = lanewise("prmt.b32 {out}, {0}, {1}, {2}", [x, y, which], np.uint32)
    assert got.tolist() == [permute(a, b, int(w)) for (a, b, *_), w in zip(pairs, which)]
    got = lanewise("lop3.b32 {out}, {0}, {1}, {2}, 0xE8", [x, y, which], np.uint32)
    assert np.array_equal(got, (x & y) | (x & which) | (y & which))  # the majority
    got = lanewise("shf.l.wrap.b32 {out}, {0}, {1}, {2}", [x, y, n], np.uint32)
    assert got.tolist() == [((a | b << 32) << (p & 31) >> 32) & 0xFFFFFFFF for a, b, p, _ in pairs]
    got = lanewise("shf.r.clamp.b32 {out}, {0}, {1}, {2}", [x, y, n], np.uint32)
    assert got.tolist() == [((a | b << 32) >> min(p, 32)) & 0xFFFFFFFF for a, b, p, _ in pairs]


def test_comparisons():
    a = np.array([1, 2, np.nan, 0.0] * 8, np.float32)
    b = np.array([2, 1, 1, -0.0] * 8, np.float32)
    says = {"lt": [1, 0, 0, 0], "leu": [1, 0, 1, 1], "ne": [1, 1, 0, 0], "neu": [1, 1, 1, 0], "num": [1, 1, 0, 1],
            "eq": [0, 0, 0, 1], "nan": [0, 0, 1, 0]}  # fmt: skip
    for word, want in says.items():
        got = lanewise(f"setp.{word}.f32 %p1, {{0}}, {{1}}; selp.u32 {{out}}, 1, 0, %p1", [a, b], np.uint32)
        assert got[:4].tolist() == want, word
    both = "setp.lt.or.f32 %p1|%p2, {0}, {1}, !%p3; selp.u32 %r61, 2, 0, %p2; selp.u32 {out}, 1, 0, %p1"
    both += "; add.u32 {out}, {out}, %r61"
    assert lanewise(both, [a, b], np.uint32)[:4].tolist() == [3, 3, 3, 3]  # %p3 is false
    x, y = np.array([1, 0xFFFFFFFF] * 16, np.uint32), np.array([2, 2] * 16, np.uint32)
    for word, want in {"lt.s32": [1, 1], "lt.u32": [1, 0], "hs.u32": [0, 1]}.items():
        got = lanewise(f"setp.{word} %p1, {{0}}, {{1}}; selp.u32 {{out}}, 1, 0, %p1", [x, y], np.uint32)
        assert got[:2].tolist() == want


def bits_of(tensor, dtype):
    return tensor.view({2: torch.int16, 4: torch.int32, 1: torch.uint8}[tensor.element_size()]).numpy().view(dtype)


def test_conversions_are_torchs():
    x = torch.from_numpy(floats())
    x[torch.isnan(x)] = 1.5
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        got = lanewise(f"cvt.rn.{name}.f32 {{out}}, {{0}}", [x.numpy()], np.uint16)
        assert np.array_equal(got, bits_of(x.to(dtype), np.uint16))
        pair = lanewise(f"cvt.rn.{name}x2.f32 {{out}}, {{0}}, {{1}}", [x.numpy(), x.flip(0).numpy()], np.uint32)
        assert np.array_equal(pair, got[::-1].astype(np.uint32) | got.astype(np.uint32) << 16)
        back = lanewise(f"cvt.f32.{name} {{out}}, {{0}}", [got], np.float32)
        assert np.array_equal(back, x.to(dtype).float().numpy())
    small = x.clamp(-448, 448)
    got = lanewise("cvt.rn.satfinite.e4m3x2.f32 {out}, {0}, {1}", [small.numpy(), small.flip(0).numpy()], np.uint16)
    byte = bits_of(small.to(torch.float8_e4m3fn), np.uint8).astype(np.uint16)
    assert np.array_equal(got, byte[::-1] | byte << 8)
    half = lanewise("cvt.rn.f16x2.e4m3x2 {out}, {0}", [got], np.uint32)
    assert np.array_equal((half >> 16).astype(np.uint16), bits_of(small.to(torch.float8_e4m3fn).half(), np.uint16))


def test_conversions_to_whole_numbers_saturate():
    x = np.array([2.5, -2.5, 3.5, 1e20, -1e20, np.nan, np.inf, -0.7] * 4, np.float32)
    low, high = -(1 << 31), (1 << 31) - 1
    for mode, first in {"rni": [2, -2, 4], "rzi": [2, -2, 3], "rmi": [2, -3, 3], "rpi": [3, -2, 4]}.items():
        got = lanewise(f"cvt.{mode}.s32.f32 {{out}}, {{0}}", [x], np.int32)
        assert got[:7].tolist() == [*first, high, low, 0, high]
    assert lanewise("cvt.rzi.u32.f32 {out}, {0}", [x], np.uint32)[[0, 1, 3]].tolist() == [2, 0, (1 << 32) - 1]
    assert lanewise("cvt.rzi.s64.f32 {out}, {0}", [x], np.int64)[[0, 3, 4]].tolist() == [2, (1 << 63) - 1, -(1 << 63)]
    whole = np.array([0x7FFFFFFF, 0x80000000, 16777217, 5] * 8, np.uint32)
    got = lanewise("cvt.rn.f32.s32 {out}, {0}", [whole], np.float32)
    assert np.array_equal(got, whole.view(np.int32).astype(np.float32))
    assert lanewise("cvt.rz.f32.u32 {out}, {0}", [whole], np.float32)[:3].tolist() == [2**31 - 128, 2**31, 16777216]
    wide = np.array([(1 << 62) + 1, (1 << 24) + 1, (1 << 63) - 1, -((1 << 60) + (1 << 36) + 1)] * 8, np.int64)
    got = lanewise("cvt.rn.f32.s64 {out}, {0}", [wide], np.float32)
    assert np.array_equal(got, wide.astype(np.float32))  # C's own, rounded once
    assert lanewise("cvt.s64.s8 {out}, {0}", [np.full(32, 0x1FF, np.uint32)], np.int64)[0] == -1
    got = lanewise("cvt.sat.u8.s32 {out}, {0}", [np.array([-5, 300] * 16, np.int32)], np.uint32)
    assert got[:2].tolist() == [0, 255]
