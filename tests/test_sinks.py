"""Sinks: a logit a head that joins the softmax's sum, held to attention with one more key whose V is 0, written out."""

import pytest
import torch
from test_kernels import plain, seen_keys

from fa_lib import BF16, FP32, FP64, Precision, Tiling, deviation, draw, kernels
from fa_lib.kernels.algorithm import Algorithm

EXACT, TILING = Precision.uniform(FP64), Tiling(16, 16)
SINKS = torch.tensor([-2.0, 0.5, 3.0, 40.0]).double()
HOW = [
    dict(), dict(name="fa1"), dict(name="fa4"), dict(name="fa4", p_exponent_offset=2),
    dict(p_exponent_offset=5), dict(splits=3),
    dict(reverse=True), dict(scale_in_exponent=True), dict(scale_in_exponent=True, splits=2),
]  # fmt: skip


def one_more_key(q, k, v, sinks, causal=False, scale=None, mask=None):
    """Straight: a key is appended whose score is the sink and whose V is 0."""
    seen = seen_keys(q, k, dict(causal=causal, mask=mask))
    scores = torch.zeros(seen.shape).double().masked_fill(~seen, -torch.inf).expand(len(sinks), *seen.shape)
    scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(seen), 1)], -1)
    k, v = (torch.cat([x, torch.zeros_like(x[..., :1, :])], -2) for x in (k, v))
    return plain(q, k, v, dict(scale=scale, mask=scores))


def problem():
    q, k, v = draw("normal", 3, (2, 4, 21, 8), (2, 2, 50, 8))
    return [x.clone().requires_grad_() for x in (q, k, v, SINKS)], draw("normal", 4, q.shape)[0]


def kernel(how):
    if how is None:
        return lambda q, k, v, **options: kernels.golden(q, k, v, inputs=FP64, **options)
    given = dict(tiling=TILING, precision=EXACT, algorithm=Algorithm(**how))
    return lambda q, k, v, **options: kernels.tiled(q, k, v, **given, **options)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(scale=2.0), dict(mask=True)], ids=str)
@pytest.mark.parametrize("how", [None, *HOW], ids=str)
def test_in_fp64_a_sink_is_a_key_without_a_value_forward_and_backward(how, options):
    tensors, dO = problem()
    if options.get("mask"):
        mask = torch.rand(21, 50, generator=torch.Generator().manual_seed(0)) > 0.5
        mask[3] = False  # the sink alone
        options = dict(mask=mask)
    *qkv, sinks = tensors
    theirs = one_more_key(*qkv, sinks, **options)
    ours = kernel(how)(*qkv, sinks=sinks, **options)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    for a, b in zip(torch.autograd.grad(ours, tensors, dO), torch.autograd.grad(theirs, tensors, dO)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_the_gradient_is_of_the_sinks_alone_where_only_they_ask_for_one():
    (q, k, v, sinks), dO = problem()
    q, k, v = (x.detach() for x in (q, k, v))
    outputs = kernel(None)(q, k, v, sinks=sinks), one_more_key(q, k, v, sinks)
    ours, theirs = (torch.autograd.grad(o, sinks, dO)[0] for o in outputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", [dict(), dict(name="fa1"), dict(splits=2)], ids=str)
def test_rounded_a_sink_costs_no_more_than_a_key(how):
    """As shipped, in BF16, with a sink of half of the mass; and the gradient of the sinks within the rule of three."""
    q, k, v = (BF16(x) for x in draw("normal", 0, (1, 4, 64, 32), (1, 4, 256, 32)))
    sinks = torch.full((4,), 6.0, dtype=torch.float64)
    golden = kernels.golden(q, k, v, inputs=BF16, sinks=sinks)
    given = dict(tiling=TILING, precision=Precision.kernel(BF16), algorithm=Algorithm(**how))
    ours = kernels.tiled(q, k, v, sinks=sinks, **given)
    baseline = kernels.reference(q, k, v, sinks=sinks, precision=Precision.materialized(BF16))
    assert deviation(ours, golden, BF16).max <= 2 * deviation(baseline, golden, BF16).max
    without = kernels.golden(q, k, v, inputs=BF16)
    assert 0.3 < (golden.square().mean() / without.square().mean()).sqrt() < 0.7


def test_rescales_begin_at_the_sink():
    q, k, _ = draw("normal", 0, (1, 1, 40, 8), (1, 1, 64, 8))
    given = dict(tiling=TILING, precision=EXACT)
    assert kernels.rescales(q, k, sinks=torch.tensor([100.0]), **given).max() == 0
    low = kernels.rescales(q, k, sinks=torch.tensor([-100.0]), **given)
    assert torch.equal(low, kernels.rescales(q, k, **given) + 1)  # the first tile raises the maximum above the sink


@pytest.mark.parametrize("sinks", [torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), 1.0], ids=str)
def test_other_sinks_are_refused(sinks):
    q, k, v = draw("normal", 0, (1, 2, 4, 8))
    with pytest.raises(ValueError, match=r"^sinks: got .*; .* of shape \(2,\)"):
        kernels.golden(q, k, v, inputs=FP32, sinks=sinks)
    with pytest.raises(ValueError, match=r"^sinks: got a tensor; .*'torch' has none"):
        kernels.flash(q, k, v, sinks=torch.zeros(2))
