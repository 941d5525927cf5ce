"""Dots with block scales: by hand-made cases, against whole numbers, and the same bits on every device."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_lib.kernels.quantization_schemes import Scheme
from fa_lib.numerics.block_formats import BLOCKS, E8M0
from fa_lib.numerics.formats import FP32, round_to
from fa_lib.numerics.tensor_cores import UNITS, ScaledCore, TensorCore

CORES = [core for core in UNITS if isinstance(core, ScaledCore)]
MXFP8, MXFP4, NVFP4 = (TensorCore.of("B200", name) for name in ("MXFP8", "MXFP4", "NVFP4"))
BITS = 210  # of a factor behind the point, as a whole number


def name(core):
    return str(core.inputs)


def whole(x):
    """x * 2**BITS, a whole number."""
    fraction, e = math.frexp(x)
    return int(fraction * 2**53) << e - 53 + BITS


def exponent(x, emin):
    return max(math.frexp(x)[1] - 1, emin)


def in_integers(core, a, b, c, a_scales, b_scales):
    """c + sum_k a_k b_k by the rule, with whole numbers alone."""
    fmt, d = core.inputs, whole(c) << 3 * BITS
    for first in range(0, len(a), core.block):
        size = abs(d).bit_length() - 1 - 4 * BITS
        terms = [(d, max(size, -126) if d else core.zero)]
        for start in range(first, min(first + core.block, len(a)), core.group):
            s, t = a_scales[start // fmt.size], b_scales[start // fmt.size]
            products = [whole(a[k]) * whole(b[k]) for k in range(start, start + core.group)]
            e = exponent(s, fmt.scale.emin) + exponent(t, fmt.scale.emin)
            if core.group == 1:
                e += exponent(a[start], fmt.element.emin) + exponent(b[start], fmt.element.emin)
            if any(products) and s and t:
                terms.append((sum(products) * whole(s) * whole(t), e))
        unit = max(e for _, e in terms) - core.F + 4 * BITS
        d = sum((abs(x) >> unit) * (1 if x > 0 else -1) for x, _ in terms) << unit
        if abs(d) >> 128 + 4 * BITS:
            return math.copysign(math.inf, d)
        drop = max(abs(d).bit_length() - 24, 4 * BITS - 149)  # toward zero, to FP32
        d = (abs(d) >> drop << drop) * (1 if d > 0 else -1)
    return math.ldexp(d >> 4 * BITS - 149, -149) if d >= 0 else -math.ldexp(-d >> 4 * BITS - 149, -149)


def drawn(core, n, k, seed, wide):
    """Elements (n, k) and scales (n, k / size) of two factors, and c (n,), their exponents over `wide` powers of two;
    some are zero and some subnormal."""
    g, fmt = torch.Generator().manual_seed(seed), core.inputs

    def some(*shape, low, high):
        low, high = max(low, -wide), min(high, wide)
        x = torch.randn(*shape, dtype=torch.float64, generator=g)
        return x * 2.0 ** torch.randint(low, high + 1, shape, generator=g).double()

    def factor():
        of = fmt.element
        x = of(some(n, k, low=of.emin - 2, high=2).clamp(-of.max, of.max))
        scale = some(n, k // fmt.size, low=-60 if fmt.scale == E8M0 else -9, high=60 if fmt.scale == E8M0 else 8).abs()
        scale = 2.0 ** scale.log2().floor() if fmt.scale == E8M0 else fmt.scale(scale.clamp(max=fmt.scale.max))
        return x * (torch.rand(n, k, generator=g) > 0.1), scale

    (a, a_scales), (b, b_scales) = factor(), factor()
    a[: n // 5] *= torch.rand(n // 5, k, generator=g) > 0.9  # groups of nothing but zeros
    return a, b, round_to(some(n, low=-60, high=60), FP32, "toward_zero"), (a_scales, b_scales)


@pytest.mark.parametrize("core", CORES, ids=name)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), wide=st.integers(0, 40), blocks=st.integers(1, 5))
def test_a_scaled_core_is_its_rule_in_whole_numbers(core, seed, wide, blocks):  # 100 dot products each: 8,000 in all
    a, b, c, scales = drawn(core, 100, 32 * blocks, seed, wide)
    rows = zip(a.tolist(), b.tolist(), c.tolist(), *(x.tolist() for x in scales))
    assert core(a, b, c, scales).tolist() == [in_integers(core, *row) for row in rows]


@pytest.mark.parametrize("core", CORES, ids=name)
def test_matrix_products_have_the_bits_of_dot_products_on_any_number_of_threads(core):
    for k in (32, 160):
        a, _, _, (a_scales, _) = drawn(core, 60, k, k, 10)
        b, _, c, (b_scales, _) = drawn(core, 150, k, k + 1, 6)
        c = (c[:60, None] + c[None]).float().double()
        a[3, 0], c[7, 7], b_scales[5, 0] = math.nan, -math.inf, math.nan
        given = a[None], b.mT[None], c[None], (a_scales[None], b_scales.mT[None])
        due = core(a[:, None], b[None], c, (a_scales[:, None], b_scales[None]))[None]
        for threads in (1, 2):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            found = core.matmul(*given)
            torch.set_num_threads(before)
            torch.testing.assert_close(found, due, rtol=0, atol=0, equal_nan=True)
        assert found[0, 3].isnan().all() and found[0, :, 5].isnan().all() and found[0, 7, 7] == -math.inf
        assert found.isfinite().sum() == 59 * 149 - 1


def by(core, groups, c=0.0):
    """The core's sum of c and of groups [(scale of a, scale of b, [(x, y), ...]), ...], one for each of its scales."""
    size, (a, b) = core.inputs.size, ([], [])
    for _, _, pairs in groups:
        filled = [*pairs, *[(0.0, 0.0)] * (size - len(pairs))]
        a, b = a + [x for x, _ in filled], b + [y for _, y in filled]
    scales = ([s for s, _, _ in groups], [t for _, t, _ in groups])
    a, b, c, s, t = (torch.tensor(x, dtype=torch.float64) for x in (a, b, c, *scales))
    return core(a, b, c, (s, t)).item()


@pytest.mark.parametrize(("core", "x"), [(MXFP8, math.nan), (TensorCore.of("B200", "MXFP8_E5M2"), math.inf)], ids=str)
def test_infinity_and_nan_go_through(core, x):
    for found in (by(core, [(1.0, 1.0, [(x, 1.0), (1.0, 1.0)])]), by(core, [(1.0, 1.0, [(1.0, 1.0)])], x)):
        assert found == x or math.isnan(x) and math.isnan(found)
    assert math.isnan(by(core, [(1.0, 1.0, [(x, 0.0)])])) and math.isnan(by(core, [(1.0, 1.0, [(x, 1.0), (-x, 1.0)])]))
    for each in (core, MXFP4, NVFP4):
        assert math.isnan(by(each, [(math.nan, 1.0, [])])) and by(each, [(1.0, 1.0, [])], -math.inf) == -math.inf


def test_rows_say_what_they_are():
    assert {str(core.inputs): (core.block, core.group, core.F) for core in CORES} == {
        "MXFP8": (32, 1, 25), "MXFP8_E5M2": (32, 1, 25), "MXFP4": (64, 16, 35), "NVFP4": (64, 16, 35),
    }  # fmt: skip
    assert all(not core.measured and core.result == FP32 and "2511.10909" in core.source for core in CORES)
    assert TensorCore.of("B200", BLOCKS["NVFP4"]) == NVFP4
    for key, fmt in BLOCKS.items():
        scheme = Scheme.of(key)
        assert (scheme.element, scheme.size, scheme.scale) == (fmt.element, fmt.size, fmt.scale)


def test_wrong_arguments_are_named():
    x, s = torch.zeros(64, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    for call, told in (
        (lambda: TensorCore.of("H100", "MXFP8"), "inputs: got MXFP8 for H100; accepted are FP16"),
        (lambda: TensorCore.of("B200", "MXFP8", two_level=4), "two_level: got 4 for MXFP8; accepted is None"),
        (lambda: TensorCore.of("B200", "NVFP4", result="FP16"), "result: got FP16 for NVFP4 on B200; accepted is FP32"),
        (lambda: MXFP8(x, x), r"^scales: got None; .*kernels\.quantized_attention"),
        (lambda: MXFP8(x, x, None, (s, s[:1])), "b: got 64 elements with 1 scales"),
        (lambda: MXFP8(x, x[:32], None, (s, s[:1])), "b: got 32 elements with 1 scales"),
        (lambda: MXFP8(x, x, None, (s.float(), s)), r"^a: got 64 elements .*2 scales in torch\.float32"),
    ):
        with pytest.raises(ValueError, match=told):
            call()
