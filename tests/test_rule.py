"""Our rule, after flash-attention's: what it lets pass and what it catches."""

import math
from functools import partial

import pytest
import torch

from benchmarks.mutants.controls import each_operation_rounds
from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.rule import ALLOWED, CALLS, Case, eager_baseline, exact, rule, rule_rows
from fa_lib.numerics.metrics import deviation

pytestmark = pytest.mark.slow


def test_shapes_are_known():
    assert any(c.options.get("window") for c in CALLS.values()) and max(c.n_q for c in CALLS.values()) == 4096
    with pytest.raises(ValueError, match="shape: got '98'; accepted are 97, 113 x 203"):
        rule("98", 64, "normal", "BF16", 0)


def test_where_baseline_makes_no_error_the_ratio_is_one_or_infinite():
    case = Case("window 512", 64, "normal", "FP64", 0)
    truth = exact(case)
    truth |= dict(baseline=torch.zeros_like(truth["baseline"]))
    flash, golden = (rule_rows(kernel, case, truth) for kernel in ("flash", partial(kernels.golden, inputs="FP64")))
    assert [row["ratio"] for row in flash] == [math.inf] * len(ALLOWED) and not any(row["passed"] for row in flash)
    assert [(row["error"], row["ratio"], row["passed"]) for row in golden] == [(0.0, 1.0, True)] * len(ALLOWED)


def test_in_fp64_baseline_errs_as_a_plain_loop_does_under_a_window_too():
    for shape in ("113 x 203", "window 512"):
        (row,) = rule(shape, 64, "normal", "FP64", 0, ["reference"], gradients=False)
        assert 0 < row["baseline"] < 1e-14


def test_every_kernel_is_held_once_and_to_the_same_numbers():
    rows = rule("GQA 384", 32, "normal", "BF16", 0)
    assert rule("GQA 384", 32, "normal", "BF16", 0, ["as_shipped", "as_shipped"]) == rows[4:8]
    assert {row["tensor"]: row["allowed"] for row in rows} == ALLOWED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("head_dim", "options"), [(40, {}), (96, dict(causal=True)), (128, {}), (64, dict(scale=0.1))])
def test_a_kernel_that_rounds_scores_before_and_after_their_scale_errs_as_baseline_does(dtype, head_dim, options):
    before = []
    for seed in range(8):
        q, k, v = (x.to(dtype) for x in draw("peaked", seed, (1, 2, 97, head_dim)))
        golden = kernels.golden(q, k, v, inputs=str(dtype), **options)
        fns = each_operation_rounds, eager_baseline, kernels.baseline
        own, due, once = (deviation(fn(q, k, v, **options), golden).max for fn in fns)
        assert own < 1.25 * due
        before.append(own / once)
    assert max(before) > 1.25  # Baseline whose scores are rounded once is no measure of it


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_yardstick_is_baseline_where_the_scale_is_a_power_of_two_and_in_fp32(dtype):
    for head_dim in (16, 64, 256) if dtype != torch.float32 else (96,):
        q, k, v = (x.to(dtype).requires_grad_() for x in draw("outliers", 0, (1, 2, 50, head_dim)))
        outputs = [fn(q, k, v, causal=True) for fn in (eager_baseline, kernels.baseline)]
        found, due = ([o, *torch.autograd.grad(o.sum(), (q, k, v))] for o in outputs)
        assert all(torch.equal(a, b) for a, b in zip(found, due))
