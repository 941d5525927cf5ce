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
U = 2.0**-23  # FP32's ulp of 1


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
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), wide=st.integers(0, 40), blocks=st.integers(1, 5))
def test_a_scaled_core_is_its_rule_in_whole_numbers(core, seed, wide, blocks):  # 100 dot products each: 16,000 in all
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


def test_mxfp8_aligns_by_elements_and_scales():
    def one(pairs, c=0.0, s=1.0, t=1.0):
        return by(MXFP8, [(s, t, pairs)], c)

    small = [(1.75, 2.0**-6)] * 8  # beside a scale of 2**-20: 1.75 * 2**-26 each
    cases = {
        "an exact sum": (one([(1.5, 2.0), (-0.5, 3.0)], 4.0), 5.5),
        "times the scales": (one([(1.5, 2.0)], 0.0, 8.0, 2.0**-5), 0.75),
        "c alone": (one([], -1 - U), -1 - U),
        "what is below F = 25 bits of c is dropped": (one(small, 1.0, 2.0**-20), 1.0),
        "of either sign": (one([(-x, y) for x, y in small], -1.0, 2.0**-20), -1.0),
        "toward zero, not down": (one([(-x, y) for x, y in small], 1.0, 2.0**-20), 1.0),
        "a bit higher it stays": (one(small, 1.0, 2.0**-20, 2.0), 1 + 2 * U),
        "the result is rounded toward zero": (one([(1.0, 1.5)], 1.0, 2.0**-24), 1.0),
        "so is a negative one": (one([(-1.0, 1.5)], -1.0, 2.0**-24), -1.0),
        "a product is not normalised": (one([(1.5, 1.5), (-1.5, 1.5)], 2.0**-25), 2.0**-25),
        "a subnormal element has its format's exponent": (one([(2.0**-9, 1.0)], 2.0**-32), 2.0**-9),
        "and F bits below it": (one([(2.0**-9, 1.0)], 2.0**-31), 2.0**-9 + 2.0**-31),
        "the same product of normal ones": (one([(2.0**-6, 2.0**-3)], 2.0**-32), 2.0**-9 + 2.0**-32),
        "so with scales: 2**-6 * 2**10": (one([(2.0**-9, 1.0)], 2.0**-22, 2.0**10), 2.0),
        "not 2": (one([(1.0, 1.0)], 2.0**-22, 2.0), 2.0 + 2.0**-22),
        "a zero aligns nothing, whatever its scale": (one([(0.0, 1.0)], 1 + U, 2.0**100, 2.0**20), 1 + U),
        "beyond FP32 is infinity": (one([(1.0, 1.0)] * 2, 0.0, 2.0**127), math.inf),
        "the smallest number": (one([(1.0, 1.0)], 0.0, 2.0**-127, 2.0**-22), 2.0**-149),
        "below it": (one([(1.75, 1.0)], 0.0, 2.0**-127, 2.0**-23), 0.0),
        "a c of 0 has the exponent -133": (
            one([(1.0, 1.0), (-(2.0**-6), 2.0**-5)], 0.0, 2.0**-127, 2.0**-22), 2.0**-149),
    }  # fmt: skip
    for what, (found, due) in cases.items():
        assert found == due, what
    far = (1.0, 1.0, [(1.0, 1.0)]), (2.0**-20, 1.0, small), (1.0, 1.0, [(-1.0, 1.0)])
    assert by(MXFP8, far) == 0.0  # the first block's sum is the second one's c
    assert by(MXFP8, [far[1], far[0], far[2]]) == U  # the small ones first: 1.75 * U, and beside 1 in FP32 U
    assert by(MXFP8, [(2.0**127, 1.0, [(2.0, 1.0)]), (2.0**127, 1.0, [(-2.0, 1.0)])]) == math.inf  # it stays


def test_fp4_aligns_groups_by_their_scales_alone():
    def four(*groups, c=0.0):
        """Of NVFP4: a block of four groups, what is missing zero."""
        return by(NVFP4, [*groups, *[(1.0, 1.0, [])] * (4 - len(groups))], c)

    def cancelling(s, t, x=1.0):
        return (s, t, [(x, x)]), (s, t, [(-x, x)])

    tiny = 2.0**-9  # E4M3's smallest number, with the exponent -6: two of them are 2**-18 with the exponent -12
    large = cancelling(256.0, 256.0)  # of exponent 16, so that 2**-19 is the last bit
    cases = {
        "an exact group": (four((1.0, 1.0, [(6.0, 6.0), (0.5, 0.5)]), c=-36.0), 0.25),
        "times scales with bits of their own": (four((1.75, 1.125, [(1.5, 1.0)])), 1.5 * 1.75 * 1.125),
        "elements do not align": (four(*cancelling(1.0, 1.0, 6.0), c=2.0**-35), 2.0**-35),
        "F = 35 bits below the scales": (four(*cancelling(1.0, 1.0, 6.0), c=2.0**-36), 0.0),
        "nor do an E4M3 scale's own bits": (four(*cancelling(1.75, 1.75), c=2.0**-35), 2.0**-35),
        "c is truncated": (four(*cancelling(1.75, 1.75), c=1.75 * 2.0**-35), 2.0**-35),
        "toward zero": (four(*cancelling(1.75, 1.75), c=-1.75 * 2.0**-35), -(2.0**-35)),
        "a scale's exponent does": (four(*cancelling(2.0, 1.0), c=2.0**-35), 0.0),
        "a subnormal scale has its format's": (four(*cancelling(tiny, 1.0), c=2.0**-42), 0.0),
        "and F bits below it": (four(*cancelling(tiny, 1.0), c=2.0**-41), 2.0**-41),
        "the same scale of normal ones": (four(*cancelling(2.0**-5, 2.0**-4), c=2.0**-44), 2.0**-44),
        "a group below the last bit is dropped": (four(*large, (tiny, tiny, [(0.5, 0.5)])), 0.0),
        "above it stays": (four(*large, (tiny, tiny, [(0.5, 1.0)])), 2.0**-19),
        "16 products are added before": (four(*large, (tiny, tiny, [(0.5, 0.5)] * 2)), 2.0**-19),
        "two groups after": (four(*large, *[(tiny, tiny, [(0.5, 0.5)])] * 2), 0.0),
        "a group that cancels aligns": (four((256.0, 4.0, [(1.0, 1.0), (-1.0, 1.0)]), c=2.0**-26), 0.0),
        "one of zeros does not": (four((256.0, 4.0, [(0.0, 1.0), (1.0, 0.0)]), c=2.0**-26), 2.0**-26),
        "nor one whose scale is zero": (four((0.0, 448.0, [(6.0, 6.0)]), c=2.0**-36), 2.0**-36),
        "c aligns groups": (four((tiny, 1.0, [(-0.5, 0.5)]), c=2.0**26), 2.0**26),
        "the result is rounded toward zero": (four((1.0, 1.0, [(1.0, 1.0)]), c=1.5 * 2.0**-24), 1.0),
        "so is a negative one": (four((1.0, 1.0, [(-1.0, 1.0)]), c=-1.5 * 2.0**-24), -1.0),
        "nothing": (four(), 0.0),
    }  # fmt: skip
    for what, (found, due) in cases.items():
        assert found == due, what
    block = [*large, (tiny, tiny, [(0.5, 0.5)]), (1.0, 1.0, [])]
    assert by(NVFP4, [*block, *block]) == 0.0 and by(NVFP4, [*block[2:], *large]) == 0.0
    assert by(NVFP4, [*block[2:], *block[3:] * 2, *large]) == 0.0  # 2**-20 alone, then as c 36 bits below 2**16
    assert by(NVFP4, [(tiny, tiny, [(0.5, 1.0)]), *block[3:] * 3, *large, *block[3:] * 2]) == 2.0**-19


def test_mxfp4_has_one_scale_for_two_groups():
    pair = [(1.0, 1.0), *[(0.0, 0.0)] * 15, (-1.0, 1.0)]  # a group of 1 and a group of -1
    assert by(MXFP4, [(1.0, 1.0, pair), (1.0, 1.0, [])], 2.0**-35) == 2.0**-35
    assert by(MXFP4, [(2.0, 1.0, pair), (1.0, 1.0, [])], 2.0**-35) == 0.0
    assert by(MXFP4, [(2.0**127, 2.0**-127, [(3.0, 1.5)]), (1.0, 4.0, [(0.5, 0.5)])]) == 5.5
    assert by(MXFP4, [(2.0**-127, 2.0**-20, [(0.5, 0.5)])]) == 2.0**-149
    # a c of 0 has the exponent -139: 2**-174 is the last bit
    tail = [(1.0, 1.0), *[(0.0, 0.0)] * 15]
    assert by(MXFP4, [(2.0**-127, 2.0**-22, tail), (2.0**-127, 2.0**-46, [(-0.5, 1.0)])]) == 0.0
    assert by(MXFP4, [(2.0**-127, 2.0**-22, tail), (2.0**-127, 2.0**-46, [(-0.5, 0.5)])]) == 2.0**-149


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
