"""Defects of the backward pass, by a second author: numerics."""

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import ByHand, backward_in_tiles, capped, dot, finite, load, nonzero, rounded


def backward_missing_ln2(q, k, v, causal=False, scale=None, window=None):
    *tensors, scale, hide = load(q, k, v, scale, causal, window)
    dtype = q.dtype

    def forward(q, k, v):
        k2 = k * (scale * steps.LOG2E)
        m, l, o = steps.sweep(lambda k, j0: hide(dot(q, k), j0), q, k2, v, dtype, steps.in_base_2)
        return o / nonzero(l), k2, finite(m) + torch.log2(nonzero(l))

    def backward(do, q, k, v, o, k2, lse2):
        about = dict(scores=lambda k: dot(q, k), exp=torch.exp2, add=torch.add)
        return backward_in_tiles(do, q, k2, v, o, lse2, scale, dtype, hide, **about)

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def softcap_tanh_saved_in_half(q, k, v, causal=False, scale=None, window=None, softcap=None):
    *tensors, scale, hide = load(q, k, v, scale, causal, window)
    dtype = q.dtype

    def forward(q, k, v):
        s, t = dot(q * scale, k), None
        if softcap is not None:
            t = torch.tanh(s / softcap)
            s = softcap * t
            t = t.to(dtype)
        s = hide(s)
        p = torch.exp(s - finite(steps.row_max(s)))
        l = p.sum(-1, keepdim=True)
        return rounded(p, dtype) @ v / nonzero(l), p / nonzero(l), t

    def backward(do, q, k, v, o, p, t):
        ds = p * (dot(do, v) - (do * o).sum(-1, keepdim=True))
        if t is not None:
            ds = ds * (1.0 - t.to(ds.dtype) ** 2)
        ds = rounded(ds, dtype)
        return ds @ k * scale, ds.mT @ q * scale, rounded(p, dtype).mT @ do

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def fa2(q, k, v, scale, dtype, hide, softcap=None):
    """Output and log-sum-exp."""
    m, l, o = steps.sweep(lambda k, j0: hide(capped(dot(q * scale, k), softcap), j0), q, k, v, dtype)
    return o / nonzero(l), steps.log_sum_exp(m, l)


def backward_lse_in_half(q, k, v, causal=False, scale=None, window=None):
    *tensors, scale, hide = load(q, k, v, scale, causal, window)
    dtype = q.dtype

    def forward(q, k, v):
        o, lse = fa2(q, k, v, scale, dtype, hide)
        return o, lse.to(dtype)

    def backward(do, q, k, v, o, lse):
        lse = finite(lse.to(q.dtype))
        return backward_in_tiles(do, q, k, v, o, lse, scale, dtype, hide, add=lambda dq, part: dq + part * scale)

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def backward_dq_in_half(q, k, v, causal=False, scale=None, softcap=None):
    *tensors, scale, hide = load(q, k, v, scale, causal)
    dtype = q.dtype

    def backward(do, q, k, v, o, lse):
        about = dict(size=32, add=lambda dq, part: rounded(dq + part * scale, dtype))
        return backward_in_tiles(do, q, k, v, o, finite(lse), scale, dtype, hide, softcap, **about)

    return ByHand.apply(lambda *x: fa2(*x, scale, dtype, hide, softcap), backward, *tensors).to(dtype)
