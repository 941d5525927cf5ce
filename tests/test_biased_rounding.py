"""Biased rounding: what notebook 10 must show, at its own scale."""

import numpy as np
import pytest
import torch

from fa_lib import sweep
from fa_lib.experiments.biased_rounding import bias, problem
from fa_lib.kernels import flash, golden
from fa_lib.kernels.shipped import vectorised
from fa_lib.numerics.formats import BF16, FP64

pytestmark = pytest.mark.slow


def mean(table, by, value):
    return table.groupby(by)[value].mean()


def test_ties_that_always_round_away_bias_o_and_delta():
    grid = dict(cure="carried_bf16", seed=range(6))
    table = sweep(bias, grid | dict(sign=["positive", "negative", "both"], repeats=[1, 2]))
    of_o, of_delta = (mean(table, ["sign", "repeats"], column) for column in ("error", "delta"))
    assert of_o["positive", 2] > 0.1 and of_o["negative", 2] < -0.1
    assert abs(of_o["positive", 1]) < 0.04 and abs(of_o["both", 2]) < 0.05
    assert of_delta["positive", 2] > 0.15 and abs(of_delta["both", 2]) < 0.03


def test_cures_remove_the_bias_and_the_printed_one_can_lose_everything():
    cures = ["delta_from_probs", "output_fp32", "dynamic_2", "stochastic"]
    table = sweep(bias, dict(cure=cures, sign="negative", repeats=2, seed=range(6)))
    error, delta = (mean(table, "cure", column) for column in ("error", "delta"))
    assert (delta.abs() < 0.05).all() and (error.drop("delta_from_probs").abs() < 0.02).all()
    assert abs(error["delta_from_probs"]) > 0.1  # O itself stays as it was
    lost = bias(2, "negative", "dynamic_8", 0)
    assert lost["delta"] == -256  # the whole of delta: exp(16 - 128) is 0
    kept = bias(2, "negative", "dynamic_8", 0, gap=12)
    assert abs(kept["error"]) < 1


def test_to_carry_o_in_fp32_is_no_cure_by_itself():
    """It is rounded at the end, and the exponential's last bits say which way: torch's kernel has all of the bias."""
    cures = ["carried_bf16", "carried_fp32", "fast_exp"]
    table = sweep(bias, dict(cure=cures, sign="negative", repeats=2, seed=range(8)))
    delta, rmse = mean(table, "cure", "delta"), mean(table, "cure", "delta_rmse")
    carried, exact, torchs = (delta[cure] for cure in cures)
    assert torchs == pytest.approx(carried, rel=0.01) and -0.5 * carried < exact < 0
    assert rmse["carried_fp32"] > 0.25 * rmse["carried_bf16"]
    if vectorised():
        q, k, v, dO = problem(2, "negative", 0)
        o = flash(*(x.bfloat16() for x in (q, k, v))).double()
        golden_o = golden(q, k, v, inputs=FP64)
        off = ((dO * (o - golden_o)).sum(-1) / (dO * golden_o).abs().sum(-1)).mean().item() / BF16.unit_roundoff
        assert off == pytest.approx(table[(table.cure == cures[2]) & (table.seed == 0)].delta.item(), rel=0.02)


def test_the_problem_is_what_it_says():
    q, k, v, dO = problem(3, "negative", 0)
    S = (q @ k.mT)[0, 0] / 8
    assert (S.amax(-1, keepdim=True) == S).sum(-1).eq(3).all() and np.allclose(S.amax(-1), 16, rtol=0.02)
    assert S.topk(4).values[:, 3].max() < 8 and (v <= 0).all() and (dO <= 0).all()
    assert all(torch.equal(x, x.bfloat16().double()) for x in (q, k, v, dO))


def test_unknown_keys_are_refused():
    with pytest.raises(ValueError, match="sign: got 'V > 0'; accepted are positive, negative, both"):
        problem(2, "V > 0", 0)
    with pytest.raises(ValueError, match="cure: got 'none'; accepted are carried_bf16, carried_fp32"):
        bias(2, "both", "none", 0)
