"""Metrics against numpy and scipy, exactly where the mathematics says exact."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fa_lib import BF16, FP32, deviation, wasserstein

VALUES = st.floats(-1e3, 1e3, width=32)


def test_deviation_by_hand():
    golden = torch.tensor([[1.0, 2.0], [4.0, 8.0]], dtype=torch.float64)
    signed = torch.tensor([[0.5, -0.25], [0.25, 1.0]], dtype=torch.float64)
    d = deviation(golden + signed, golden, BF16)
    assert (d.max, d.mean, d.bias, d.count, d.nonfinite) == (1.0, 0.5, 0.375, 4, 0)
    assert d.rmse == math.sqrt((0.25 + 0.0625 * 2 + 1) / 4)
    assert d.std == np.std([0.5, 0.25, 0.25, 1.0])
    assert d.bias_se == pytest.approx(np.std([0.125, 0.625], ddof=1) / math.sqrt(2), rel=1e-15)
    # ulps of BF16 at 1, 2, 4, 8: 2**-7, 2**-6, 2**-5, 2**-4
    assert d.max_ulp == 64.0 and d.mean_ulp == (64 + 16 + 8 + 16) / 4


def test_deviation_counts_nan_and_infinity_and_hides_none():
    golden = torch.zeros(2, 3, dtype=torch.float64)
    out = torch.tensor([[0.0, math.nan, 1.0], [math.inf, 0.0, 0.0]])
    d = deviation(out, golden)
    assert d.nonfinite == 2 and math.isnan(d.max) and math.isnan(d.rmse)
    assert deviation(torch.where(out.isnan(), 0.0, out), golden).max == math.inf


def test_deviation_refuses_other_shapes():
    for out, golden in ((torch.zeros(2), torch.zeros(3)), (torch.zeros(0), torch.zeros(0))):
        with pytest.raises(ValueError, match="out: got shape"):
            deviation(out, golden)


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, st.integers(1, 60), elements=VALUES), arrays(np.float64, st.integers(1, 60), elements=VALUES))
def test_wasserstein_is_scipys(a, b):
    assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a, b), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("sizes", [(70_000, 70_000), (70_000, 50_000)])
def test_wasserstein_of_many_values_is_scipys(sizes, monkeypatch):
    monkeypatch.setattr("fa_lib.numerics.wasserstein.MANY", 60_000)  # one of them, or both, by their bits
    a, b = (np.random.default_rng(size).standard_normal(size).astype(np.float32) for size in sizes)
    assert wasserstein(a, b + 1) == pytest.approx(stats.wasserstein_distance(a, b + 1), rel=1e-6)
    assert wasserstein(a, np.random.default_rng(1).permutation(a)) == 0
    assert math.isnan(wasserstein(a, np.append(b[1:], -np.float32(math.nan))))


def test_wasserstein_takes_any_format_and_refuses_nothing_to_compare():
    a = torch.tensor([1.0, 2.0, 4.0])
    assert wasserstein(a.bfloat16(), a.half() + 1) == 1.0
    assert wasserstein(a, [3]) == pytest.approx((2 + 1 + 1) / 3)
    assert math.isnan(wasserstein(a, torch.tensor([1.0, math.nan, 2.0])))
    assert math.isnan(wasserstein(a, torch.tensor([1.0, math.nan])))
    with pytest.raises(ValueError, match="a, b: got 3 and 0"):
        wasserstein(a, [])


def test_units_in_the_last_place_default_to_the_outputs_format():
    golden = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert deviation(torch.tensor([[1.0078125, 1.0]]).bfloat16(), golden).max_ulp == 1.0
    assert deviation(torch.tensor([[1.0078125, 1.0]]), golden, FP32).max_ulp == 2.0**16
