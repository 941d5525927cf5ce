"""Defects of the backward pass, by a second author: numerics."""

from functools import partial

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import backward_in_tiles, by_hand, capped, dot, finite, nonzero, rounded


def backward_missing_ln2(q, k, v, causal=False, scale=None, window=None):
    def forward(q, k, v, scale, dtype, hide):
        k2 = k * (scale * steps.LOG2E)
        m, l, o = steps.sweep(lambda k, j0: hide(dot(q, k), j0), q, k2, v, dtype, steps.in_base_2)
        return o / nonzero(l), k2, finite(m) + torch.log2(nonzero(l))

    def backward(do, q, k, v, o, k2, lse2, scale, dtype, hide):
        about = dict(scores=lambda k: dot(q, k), exp=torch.exp2, add=torch.add)
        return backward_in_tiles(do, q, k2, v, o, lse2, scale, dtype, hide, **about)

    return by_hand(forward, backward, q, k, v, scale, causal, window)


def softcap_tanh_saved_in_half(q, k, v, causal=False, scale=None, window=None, softcap=None):
    def forward(q, k, v, scale, dtype, hide):
        s, t = dot(q * scale, k), None
        if softcap is not None:
            t = torch.tanh(s / softcap)
            s = softcap * t
            t = t.to(dtype)
        s = hide(s)
        p = torch.exp(s - finite(steps.row_max(s)))
        l = p.sum(-1, keepdim=True)
        return rounded(p, dtype) @ v / nonzero(l), p / nonzero(l), t

    def backward(do, q, k, v, o, p, t, scale, dtype, hide):
        ds = p * (dot(do, v) - (do * o).sum(-1, keepdim=True))
        if t is not None:
            ds = ds * (1.0 - t.to(ds.dtype) ** 2)
        ds = rounded(ds, dtype)
        return ds @ k * scale, ds.mT @ q * scale, rounded(p, dtype).mT @ do

    return by_hand(forward, backward, q, k, v, scale, causal, window)


def fa2(q, k, v, scale, dtype, hide, softcap=None):
    """Output and log-sum-exp."""
    m, l, o = steps.sweep(lambda k, j0: hide(capped(dot(q * scale, k), softcap), j0), q, k, v, dtype)
    return o / nonzero(l), steps.log_sum_exp(m, l)


def backward_lse_in_half(q, k, v, causal=False, scale=None, window=None):
    def forward(q, k, v, scale, dtype, hide):
        o, lse = fa2(q, k, v, scale, dtype, hide)
        return o, lse.to(dtype)

    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        lse = finite(lse.to(q.dtype))
        return backward_in_tiles(do, q, k, v, o, lse, scale, dtype, hide, add=lambda dq, part: dq + part * scale)

    return by_hand(forward, backward, q, k, v, scale, causal, window)


def backward_dq_in_half(q, k, v, causal=False, scale=None, softcap=None):
    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        about = dict(size=32, add=lambda dq, part: rounded(dq + part * scale, dtype))
        return backward_in_tiles(do, q, k, v, o, finite(lse), scale, dtype, hide, softcap, **about)

    return by_hand(partial(fa2, softcap=softcap), backward, q, k, v, scale, causal)
