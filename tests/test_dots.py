"""Dots: tensor cores by hand-made cases and against integers, sums in order, the same bits on every device; exp,
guarded against the race in torch's, and correctly rounded in 16 bits."""

import math
import subprocess
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_lib.execution.paths import ROOT
from fa_lib.kernels import reference, tiled
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import EXACT, SEQUENTIAL
from fa_lib.numerics.formats import BF16, E4M3, FP16, FP32, FP64, round_to, truncated
from fa_lib.numerics.tensor_cores import UNITS, TensorCore

CORES = [*UNITS, TensorCore.of("H100", FP16, result=FP16), TensorCore.of("H100", E4M3, two_level=2)]


def name(core):
    if not isinstance(core, TensorCore):
        return f"in order, {core.fmt}"
    levels = f" two-level {core.two_level}" if core.two_level else ""
    return f"{core.unit} {core.inputs} in {core.result}{levels}"


def rounded(numerator, exponent, fmt, to_nearest):
    """numerator * 2**exponent on a format's grid, in whole numbers."""
    size, sign = abs(numerator), -1 if numerator < 0 else 1
    step = max(size.bit_length() - 1 + exponent, fmt.emin) - fmt.precision + 1  # the last bit that stays
    drop = step - exponent
    if drop <= 0:
        return sign * math.ldexp(size, exponent)
    kept, rest, half = size >> drop, size & ((1 << drop) - 1), 1 << (drop - 1)
    if to_nearest and (rest > half or (rest == half and kept & 1)):
        kept += 1
    return sign * (math.inf if kept.bit_length() + step - 1 > fmt.emax else math.ldexp(kept, step))


def parts(x, emin):
    """A value as a whole number times a power of two, and its exponent as its field has it; of 0 none."""
    fraction, e = math.frexp(0.0 if math.isinf(x) else x)  # an infinite sum stays what it is
    return int(fraction * 2**53), e - 53, (max(e - 1, emin) if x else None)


def in_integers(core, a, b, c):
    """c + sum_k a_k b_k by the rule, with whole numbers alone."""
    d, total = (0.0, c) if core.two_level else (c, None)
    blocks = range(0, len(a), core.block)
    for i, first in enumerate(blocks):
        terms = [parts(d, core.result.emin)]
        for x, y in zip(a[first : first + core.block], b[first : first + core.block]):
            (m, s, e), (n, t, f) = parts(x, core.inputs.emin), parts(y, core.inputs.emin)
            terms.append((m * n, s + t, None if e is None or f is None else e + f))
        aligned = [e for _, _, e in terms if e is not None]
        if aligned and not math.isinf(d):
            last = max(aligned) - core.F
            whole = sum((1 if m > 0 else -1) * (abs(m) << s - last if s > last else abs(m) >> last - s)
                        for m, s, e in terms if e is not None)  # fmt: skip
            d = rounded(whole, last, core.result, core.to_nearest)
        if core.two_level and ((i + 1) % core.two_level == 0 or i + 1 == len(blocks)):
            total, d = FP32(torch.tensor(total + d, dtype=torch.float64)).item(), d if math.isinf(d) else 0.0
    return total if core.two_level else d


def drawn(core, n, k, seed, wide):
    """Factors (n, k) and c (n,) on their grids, exponents over `wide` powers of two, some zeros and subnormals."""
    g, fmt = torch.Generator().manual_seed(seed), core.inputs

    def some(*shape, fmt=fmt, low):
        x = torch.randn(*shape, dtype=torch.float64, generator=g)
        x = x * 2.0 ** torch.randint(max(-wide, low), wide + 1, shape, generator=g).double()
        return fmt(x * (torch.rand(shape, generator=g) > 0.1)).clamp(-fmt.max, fmt.max)

    a, b = (some(n, k, low=fmt.emin - 3) for _ in "ab")
    return a, b, round_to(some(n, fmt=core.result, low=-40), core.result, "toward_zero")


@pytest.mark.parametrize("core", CORES, ids=name)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), wide=st.integers(0, 20), k=st.integers(1, 70))
def test_a_tensor_core_is_its_rule_in_whole_numbers(core, seed, wide, k):  # 100 dot products each
    a, b, c = drawn(core, 100, k, seed, wide)
    due = [in_integers(core, *row) for row in zip(a.tolist(), b.tolist(), c.tolist())]
    assert core(a, b, c).tolist() == due


def in_order(dot, a, b, c):
    """c + a b as an Ordered sums, in torch's operations."""
    for k in range(a.shape[1]):
        c = dot.fmt(c + dot.fmt(a[:, k, None] * b[k]))
    return c


@pytest.mark.parametrize("dot", [*CORES, SEQUENTIAL(FP32), SEQUENTIAL(BF16), SEQUENTIAL(FP64)], ids=name)
def test_matrix_products_have_the_bits_of_dot_products_on_any_number_of_threads(dot):
    like = dot if isinstance(dot, TensorCore) else TensorCore.of("H100", BF16)
    for k in (1, 33, 64):
        a, b, _ = drawn(like, 60, k, seed=k, wide=6)
        c = drawn(like, 60 * 150, 1, seed=k + 1, wide=3)[2].reshape(60, 150)
        b = b.repeat(3, 1)[:150].mT  # (k, 150)
        a[3, 0], b[0, 5], c[7, 7] = math.inf, math.nan, -math.inf
        a[4] = 0
        due = dot(a[:, None], b.mT[None], c) if isinstance(dot, TensorCore) else in_order(dot, a, b, c)
        for threads in (1, 2):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            found = dot.matmul(a, b, c)
            torch.set_num_threads(before)
            torch.testing.assert_close(found, due, rtol=0, atol=0, equal_nan=True)
        assert found[3, 5].isnan() and found[3].isfinite().sum() == 0 and found[7, 7] == -math.inf


def padded(values, k):
    return torch.tensor([*values, *[0.0] * (k - len(values))], dtype=torch.float64)


def by(core, products, c=0.0):
    """The core's sum of c and products (x, y), in one block, or in several where they are more."""
    xs, ys = zip(*products) if products else ((), ())
    k = max(core.block, len(xs))
    return core(padded(xs, k), padded(ys, k), torch.tensor(c, dtype=torch.float64)).item()


def test_a_sum_that_overflowed_meets_the_opposite_infinity_of_a_later_block():
    """As on a GPU, and in mmasim (tests/gpu): blocks are added one after the other."""
    core = TensorCore.of("A100", FP16, result=FP16)
    large, minus = [(300.0, 300.0), *[(0.0, 0.0)] * 7], [(-math.inf, 1.0), *[(0.0, 0.0)] * 7]
    assert math.isnan(by(core, large + minus)) and by(core, minus + large) == -math.inf
    assert by(TensorCore.of("H100", FP16, result=FP16), large + minus) == -math.inf  # one block of 16


@pytest.mark.parametrize(("x", "due"), [(math.inf, math.inf), (-math.inf, -math.inf), (math.nan, math.nan)])
def test_infinity_and_nan_go_through(x, due):
    core = TensorCore.of("A100", BF16)
    for found in (by(core, [(x, 1.0), (1.0, 1.0)]), by(core, [(1.0, 1.0)], c=x)):
        assert found == due or math.isnan(due) and math.isnan(found)
    assert math.isnan(by(core, [(x, 0.0)])) and math.isnan(by(core, [(x, 1.0), (-x, 1.0)]))
    largest = FP32.max
    assert by(core, [], c=largest) == largest and by(core, [(2.0**64, 2.0**63), (2.0**64, 2.0**63)]) == math.inf
    assert by(core, [(2.0**64, 2.0**40)], c=largest) == math.inf  # an ulp more
    assert by(core, [(2.0**40, 2.0**40)], c=largest) == largest
    assert by(core, [(2.0**64, 2.0**64), *[(0.0, 0.0)] * 7, (-(2.0**64), 2.0**64)]) == math.inf  # it stays


def test_sums_in_order_round_every_step():
    x = torch.tensor([1.0, 2.0**-24, 2.0**-24, -1.0], dtype=torch.float64)
    ones, big = torch.ones(4, dtype=torch.float64), torch.tensor(2.0**24, dtype=torch.float64)
    assert SEQUENTIAL(FP32)(x, ones) == 0.0 and EXACT(x, ones) == 2.0**-23
    assert SEQUENTIAL(FP32)(ones, ones, big) == 2.0**24
    assert SEQUENTIAL(BF16)(ones[:1] + 2**-7, ones[:1] + 2**-7) == 1 + 2**-6  # the product is rounded


def test_wrong_arguments_are_named():
    x = torch.zeros(4, dtype=torch.float64)
    for call, told in (
        (lambda: TensorCore.of("H300", FP16), "unit: got 'H300'; accepted are V100"),
        (lambda: TensorCore.of("V100", BF16), "inputs: got BF16 for V100; accepted are FP16"),
        (lambda: TensorCore.of("H100", BF16, result=BF16), "result: got BF16 for BF16 on H100; accepted is FP32"),
        (lambda: TensorCore.of("H100", E4M3, result=FP32), "result: got FP32 for E4M3 on H100; accepted is E8M13"),
        (lambda: SEQUENTIAL(truncated(BF16)), "fmt: got BF16 truncated, rounded toward_zero"),
        (lambda: TensorCore.of("H100", E4M3, two_level=0), "two_level: got 0"),
        (lambda: EXACT(x.float(), x), "a: got torch.float32"),
        (lambda: EXACT(x, x[:3]), "b: got 3 factors"),
    ):
        with pytest.raises(ValueError, match=told):
            call()


@pytest.mark.parametrize("products", [TensorCore.of("A100", BF16), SEQUENTIAL(FP32)], ids=name)
def test_products_reach_every_matrix_product(products):
    q, k, v = (x.to(torch.bfloat16) for x in draw("normal", 1, (1, 2, 80, 64)))
    for kernel, more in ((tiled, dict(tiling=Tiling(32, 32))), (reference, {})):
        answers = []
        for p in (Precision.kernel(BF16), replace(Precision.kernel(BF16), products=products, output=FP64, probs=FP64)):
            leaves = [x.double().requires_grad_() for x in (q, k, v)]
            o = kernel(*leaves, precision=replace(p, output=FP64), **more)
            answers.append([o, *torch.autograd.grad(o.square().sum(), leaves)])
        for x, y in zip(*answers):
            assert 0 < (x - y).abs().max() < 0.02 * x.abs().max()


FIRST_CALLS = """
import torch
calls, exp = [], torch.exp
torch.exp = lambda x, **options: calls.append((x.dtype, x.numel())) or exp(x, **options)
import fa_lib.kernels
assert calls == [(torch.float32, 64), (torch.float64, 64)], calls
"""


def test_one_small_exp_per_dtype_comes_before_everything():
    """64 elements are below torch's grain of parallel work, so these calls run on one thread."""
    subprocess.run([sys.executable, "-c", FIRST_CALLS], check=True, cwd=ROOT)


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
def test_exp_of_every_16_bit_argument_is_correctly_rounded(fmt):
    """The exponential of softmax takes arguments <= 0. All of a 16-bit format's, against 40 digits."""
    x = torch.arange(-(2**15), 0, dtype=torch.int32).to(torch.int16).view(fmt.dtype).double()  # sign bit set
    x = x[x.isfinite()]
    ours = round_to(torch.exp(x), fmt)
    with mpmath.workdps(40):
        exact = [mpmath.exp(mpmath.mpf(value)) for value in x.tolist()]
        error = np.array([float(abs(mpmath.mpf(o) - e)) for o, e in zip(ours.tolist(), exact)])
        # to nearest: no other value of the format is closer than half a gap away
        half = fmt.ulp(ours).numpy() / 2
        below = fmt.ulp(torch.nextafter(ours, torch.zeros(()).double())).numpy() / 2  # below a power of two
    limit = np.where([e < o for o, e in zip(ours.tolist(), exact)], below, half)
    assert (error <= limit).all()


@pytest.mark.parametrize("rest", [-1.0, -745.0, torch.inf, torch.nan])
@pytest.mark.parametrize("few", [True, False])
def test_arguments_whose_exponential_is_0_leave_the_bits_of_the_others(rest, few):
    """Hidden keys, and scores far below their maximum, are kept from torch, which is slow there."""
    x = -torch.rand(100, 67, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 800
    x[::3, 5:] = -torch.inf
    x[1], x[2, ::2] = rest, -746.5
    x = x[:3] if few else x
    assert torch.equal(EXACT.exp_(x.clone()).view(torch.int64), torch.exp(x).view(torch.int64))
