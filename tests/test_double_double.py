"""Double-double, and what is made of it: the golden value beyond FP64, and FP64 attention that no machine changes."""

import math

import mpmath
import numpy as np
import pytest
import torch

from fa_lib import BF16, FP32, FP64, deviation, draw, kernels
from fa_lib.numerics import double_double
from fa_lib.numerics.dots import DOUBLE_DOUBLE, EXACT

mpmath.mp.prec = 300
rng = np.random.default_rng(0)


def mpf(x):
    return mpmath.mpf(float(x))


def numbers(shape, low=-30, high=30):
    """Of 53 bits and of many sizes."""
    return rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(low, high, shape)


X = np.concatenate([
    -rng.exponential(3, 3000), rng.uniform(-600, 700, 2000), numbers(1000, -60, 0), np.arange(-700, 700) * math.log(2),
    (np.arange(-900, 900) + 0.5) * (math.log(2) / double_double.STEPS),
])  # fmt: skip


def test_exp_is_right_to_98_bits_and_its_high_part_correctly_rounded():
    y = X * rng.uniform(-1, 1, X.size) * 2.0**-54
    for x, rest, h, low in zip(X, y, *double_double.exp(X, y)):
        exact = mpmath.exp(mpf(x) + mpf(rest))
        assert abs((mpf(h) + mpf(low)) / exact - 1) < 2.0**-98 and h == float(exact)


def test_exp_where_float64_ends():
    x = np.array([-math.inf, -800, -745.2, -745.1, -720.3, -0.0, 0, 709.78, 709.79, 800, math.inf, math.nan])
    high, low = double_double.exp(x, np.zeros_like(x))
    within = [float(mpmath.exp(mpf(y))) for y in x[4:8]]
    assert high[:-1].tolist() == [0, 0, 0, 2.0**-1074, *within, *[math.inf] * 3] and math.isnan(high[-1])
    assert np.isfinite(low[:-1]).all()
    table = double_double.exp(X.reshape(2, -1), np.zeros((2, X.size // 2)))[0]
    assert (table.ravel() == double_double.exp(X, np.zeros_like(X))[0]).all()


@pytest.mark.parametrize("bits", [(53, 53), (53, 24), (24, 24)])  # of a and b: each has a loop
def test_matrix_products_are_as_good_as_they_say(bits):
    k, columns = 96, double_double.LANES + 3
    wide = zip((numbers((3, k)), numbers((k, columns))), bits)
    a, b = (x if p == 53 else x.astype(np.float32).astype(float) for x, p in wide)
    c, a_low = numbers((3, columns)), a * rng.uniform(-1, 1, a.shape) * 2.0**-54
    high, low = double_double.matmul(a, b, a_low, c)
    assert (high == high + low).all()
    for i in range(3):
        for j in (0, 1, columns - 1):
            terms = [(mpf(x) + mpf(y)) * mpf(z) for x, y, z in zip(a[i], a_low[i], b[:, j])]
            error = abs(mpf(high[i, j]) + mpf(low[i, j]) - mpf(c[i, j]) - sum(terms))
            assert error <= k**2 * 2.0**-106 * (sum(map(abs, terms)) + abs(c[i, j]))


def test_a_dot_is_the_exact_sum_rounded_once():
    a, b = (torch.from_numpy(numbers((40, 77), -8, 8)).float().double() for _ in range(2))  # exact products
    wanted = [[math.fsum((x * y).tolist()) for y in b] for x in a]
    assert DOUBLE_DOUBLE.matmul(a, b.mT).tolist() == wanted
    assert DOUBLE_DOUBLE(a[:, None], b).tolist() == wanted
    assert EXACT.matmul(a, b.mT).tolist() != wanted
    assert DOUBLE_DOUBLE.totals(a)[:, 0].tolist() == [math.fsum(x.tolist()) for x in a]
    assert DOUBLE_DOUBLE.exp_(a.clone()).tolist() == [[float(mpmath.exp(mpf(x))) for x in row] for row in a.tolist()]


def attention(q, k, v, scale):
    """One row in 300 bits."""
    S = [mpf(scale) * sum(mpf(x) * mpf(y) for x, y in zip(q, key)) for key in k]
    P = [mpmath.exp(s) for s in S]
    return [sum(p * mpf(x) for p, x in zip(P, column)) / sum(P) for column in v.T]


@pytest.mark.parametrize("distribution", ["uniform", "normal", "outliers"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_golden_pair_is_right_to_1e_30(distribution, scale):
    q, k, v = draw(distribution, 1, (2, 4, 5, 16), (2, 2, 130, 16))
    high, low = kernels.golden_pair(q, k, v, inputs=BF16, scale=scale)
    assert high.shape == low.shape == (2, 4, 5, 16) and torch.equal(high + low, high)
    q, k, v = (BF16(x).numpy() for x in (q, k, v))
    for batch, head, row in ((0, 0, 0), (0, 3, 4), (1, 1, 2)):
        kv = batch, head // 2
        exact = attention(q[batch, head, row], k[kv], v[kv], 0.25 if scale is None else scale)
        got = [mpf(h) + mpf(r) for h, r in zip(high[batch, head, row], low[batch, head, row])]
        assert max(abs(x - y) for x, y in zip(got, exact)) < 1e-30 * abs(v[kv]).max()


def test_the_golden_value_is_its_high_part_but_for_float64s_last_bits():
    q, k, v = draw("normal", 0, (1, 1, 100, 64), (1, 1, 333, 64))
    high, low = kernels.golden_pair(q, k, v, inputs=FP32)
    golden = kernels.golden(q, k, v, inputs=FP32)
    assert 0 < (golden - high).abs().max() < 1e-14
    assert deviation(golden, high, FP64, low).max == (golden - high - low).abs().max().item()
    with pytest.raises(ValueError, match="k: "):
        kernels.golden_pair(q, k[..., :32], v, inputs=FP32)


def test_the_golden_pair_refuses_what_is_not_finite():
    q, k, v = draw("normal", 0, (1, 1, 4, 8))
    k[0, 0, 1, 2] = math.inf
    with pytest.raises(ValueError, match=r"^k: 1 values are NaN"):
        kernels.golden_pair(q, k, v, inputs=FP64)
