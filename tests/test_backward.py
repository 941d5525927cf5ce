"""Gradients, step by step in a low precision; test_kernels.py compares them with autograd's in FP64."""

import math
from functools import partial

import pytest
import torch

from fa_lib import BF16, FP16, FP32, Precision, Tiling, draw, round_to
from fa_lib.kernels import rows, tiled
from fa_lib.kernels.exponentials import fast_exp
from tests.test_kernels import run


@pytest.mark.parametrize("asked", [
    {}, dict(causal=True), dict(window=(9, 4)), dict(causal=True, mask=torch.arange(61) % 5 > 0),
    dict(keep=torch.arange(61) % 3 > 0, dropout_p=0.3, softcap=2.0), dict(sinks=torch.tensor([1.0, -1.0, 0.0, 2.0])),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("precision", [Precision.uniform(BF16), Precision.kernel(FP16)], ids=["BF16", "kernel FP16"])
def test_gradients_do_not_depend_on_the_tiles_worked_on_at_once(asked, precision, monkeypatch):
    q, k, v = draw("normal", 5, (1, 4, 83, 16), (1, 2, 61, 16))
    dO = draw("normal", 6, q.shape)[0]
    call = partial(tiled, tiling=Tiling(8, 16), precision=precision, **asked)
    together = run(call, (q, k, v), dO)
    monkeypatch.setitem(rows.CHUNK, "cpu", 1)  # the fewest: 16 rows, and one tile of keys
    monkeypatch.setattr(rows, "FEWEST", 16)
    for ours, theirs in zip(run(call, (q, k, v), dO), together):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
def test_each_step_rounds_where_it_should(fmt):
    """Two tiles of keys and of queries, every step in the format, written out."""
    q, k, v = (round_to(x, fmt) for x in draw("normal", 3, (8, 4)))
    dO = round_to(draw("normal", 4, (8, 4))[0], fmt)
    p = Precision.uniform(fmt)
    o = tiled(q, k, v, tiling=Tiling(4, 4), precision=p)
    _, dQ, dK, dV = run(tiled, (q, k, v), dO, tiling=Tiling(4, 4), precision=p)
    S = fmt(q @ k.mT * 0.5)
    m, l = S[:, :4].amax(-1, keepdim=True), None
    for j in (0, 4):
        m_new = torch.maximum(m, S[:, j : j + 4].amax(-1, keepdim=True))
        sums = fmt(fmt(torch.exp(fmt(S[:, j : j + 4] - m_new))).sum(-1, keepdim=True))
        l = sums if l is None else fmt(fmt(fmt(torch.exp(fmt(m - m_new))) * l) + sums)
        m = m_new
    P = fmt(torch.exp(fmt(S - fmt(m + fmt(torch.log(l))))))
    dS = fmt(P * fmt(fmt(dO @ v.mT) - fmt((dO * o).sum(-1, keepdim=True))))
    first, second = slice(0, 4), slice(4, 8)
    assert torch.equal(dV, fmt(fmt(P[first].mT @ dO[first]) + P[second].mT @ dO[second]))
    assert torch.equal(dK, fmt(fmt(0.5 * dS[first].mT @ q[first]) + 0.5 * dS[second].mT @ q[second]))
    assert torch.equal(dQ, fmt(fmt(0.5 * dS[:, first] @ k[first]) + 0.5 * dS[:, second] @ k[second]))


def test_fast_exp():
    x = torch.linspace(-80, 0, 100_001, dtype=torch.float64)
    x = FP32(x)
    error = ((fast_exp(x) - x.exp()) / x.exp()).abs().max().item()
    assert 9e-5 < error < 1.1e-4
    assert torch.equal(FP32(fast_exp(x)), fast_exp(x))
    edge = torch.tensor([0.0, -0.0, -90.0, -math.inf, -87.5], dtype=torch.float64)
    assert fast_exp(edge)[2:].tolist() == [0.0, 0.0, 0.0] and abs(fast_exp(edge)[0].item() - 1) < 1.1e-4


def test_gradients_come_in_their_inputs_dtype_and_only_where_asked():
    q, k, v = (x.bfloat16() for x in draw("normal", 10, (1, 1, 8, 4)))
    q.requires_grad_()
    o = tiled(q, k, v, tiling=Tiling(4, 4), precision=Precision.kernel(BF16))
    o.sum().backward()
    assert q.grad.dtype == torch.bfloat16 and k.grad is None
    with torch.no_grad():
        assert not tiled(q, k, v, tiling=Tiling(4, 4), precision=Precision.kernel(BF16)).requires_grad
