"""Why emulated BF16 and FP16 do not depend on the order of summation, and where they could.

Products of two values with p significant bits are whole multiples of g, the product of their smallest units. If the
sum of their sizes is at most 2**53 g, every partial sum in any order is a whole multiple of g below 2**53 g: float64
holds it exactly.
"""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_lib import BF16, FP16, draw, round_to

values = st.floats(-1e4, 1e4, allow_nan=False, allow_infinity=False)


def unit(x):
    """The largest power of two that every element of x is a whole multiple of, elementwise; infinite for 0."""
    significand, exponent = torch.frexp(x)
    whole = (significand.abs() * 2**53).long()
    lowest = torch.where(whole == 0, 0, whole & -whole).double()
    return torch.where(x == 0, math.inf, torch.ldexp(lowest, exponent - 53))


def provably_exact(a, b):
    """For each pair of a row of a and a row of b: their dot product is exact in float64 whatever the order."""
    smallest = (unit(a)[:, None, :] * unit(b)[None, :, :]).amin(-1)
    return a.abs() @ b.abs().mT <= 2.0**53 * smallest


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=60), st.sampled_from([BF16, FP16]))
def test_where_the_bound_holds_sums_are_exact_in_any_order(pairs, fmt):
    a, b = (fmt(torch.tensor(x, dtype=torch.float64)) for x in zip(*pairs))
    if not provably_exact(a[None], b[None]).item():
        return
    exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist()))
    order = torch.randperm(len(a))
    assert Fraction((a @ b).item()) == exact == Fraction((a[order] @ b[order]).item())


def test_where_it_does_not_hold_they_need_not_be():
    a = torch.tensor([2.0**60, 1.0, -(2.0**60)], dtype=torch.float64)
    b = torch.ones(3, dtype=torch.float64)
    assert not provably_exact(a[None], b[None]).item()
    assert torch.cumsum(a * b, 0)[-1] == 0 != a[[0, 2, 1]].cumsum(0)[-1]


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize("distribution, least", [("uniform", 0.999), ("normal", 0.999)])
def test_scores_of_the_figures_are_provably_exact(distribution, least, fmt):
    q, k, _ = (round_to(x, fmt) for x in draw(distribution, 0, (256, 64)))
    assert provably_exact(q, k).double().mean() > least
