"""Defects of the backward pass, by a second author: numerics."""

from functools import partial

import torch

from benchmarks.second_mutants.by_hand import ByHand
from benchmarks.second_mutants.numerics_steps import (
    LOG2E,
    absorb,
    dot,
    fa2_backward,
    fa2_forward,
    finite,
    hide,
    load,
    nonzero,
    rounded,
    start,
    tiles,
)


def backward_missing_ln2(q, k, v, causal=False, scale=None, window=None):
    """Triton tutorial style: K is pre-scaled by scale * log2(e), and dQ is not multiplied by ln 2."""
    *tensors, scale = load(q, k, v, scale)
    dtype, veil = q.dtype, partial(hide, n_kv=k.shape[2], causal=causal, window=window)

    def forward(q, k, v):
        k2 = k * (scale * LOG2E)
        m, l, o = start(q, v)
        for j0, j1 in tiles(k.shape[2], 128):
            s = veil(dot(q, k2[:, :, j0:j1]), j0)
            m, l, o = absorb(m, l, o, s, v[:, :, j0:j1], dtype, torch.exp2)
        return o / nonzero(l), k2, finite(m) + torch.log2(nonzero(l))

    def backward(do, q, k, v, o, k2, lse2):
        delta = (do * o).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.empty_like(k2), torch.empty_like(v)
        for j0, j1 in tiles(k2.shape[2], 128):
            kj, vj = k2[:, :, j0:j1], v[:, :, j0:j1]
            p = torch.exp2(veil(dot(q, kj), j0) - lse2)
            ds = rounded(p * (dot(do, vj) - delta), dtype)
            dq = dq + ds @ kj
            dk[:, :, j0:j1] = ds.transpose(-1, -2) @ q * scale
            dv[:, :, j0:j1] = rounded(p, dtype).transpose(-1, -2) @ do
        return dq, dk, dv

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def softcap_tanh_saved_in_half(q, k, v, causal=False, scale=None, window=None, softcap=None):
    """The tanh of the soft cap is kept in the inputs' type; the backward takes 1 - t * t of it."""
    *tensors, scale = load(q, k, v, scale)
    dtype = q.dtype

    def forward(q, k, v):
        s, t = dot(q * scale, k), None
        if softcap is not None:
            t = torch.tanh(s / softcap)
            s = softcap * t
            t = t.to(dtype)
        s = hide(s, 0, k.shape[2], causal, window)
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        return rounded(p, dtype) @ v / nonzero(l), p / nonzero(l), t

    def backward(do, q, k, v, o, p, t):
        ds = p * (dot(do, v) - (do * o).sum(-1, keepdim=True))
        if t is not None:
            ds = ds * (1.0 - t.to(ds.dtype) ** 2)
        ds = rounded(ds, dtype)
        dv = rounded(p, dtype).transpose(-1, -2) @ do
        return ds @ k * scale, ds.transpose(-1, -2) @ q * scale, dv

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def backward_lse_in_half(q, k, v, causal=False, scale=None, window=None):
    """FA2 with its own backward; the log-sum-exp is saved for it in the inputs' type."""
    *tensors, scale = load(q, k, v, scale)
    dtype, veil = q.dtype, partial(hide, n_kv=k.shape[2], causal=causal, window=window)

    def forward(q, k, v):
        o, lse = fa2_forward(q * scale, k, v, dtype, veil)
        return o, lse.to(dtype)

    def backward(do, q, k, v, o, lse):
        return fa2_backward(do, q, k, v, o, lse.to(q.dtype), scale, dtype, veil)

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def backward_dq_in_half(q, k, v, causal=False, scale=None, softcap=None):
    """FA2 with its own backward over tiles of keys; dQ is summed in the inputs' type."""
    *tensors, scale = load(q, k, v, scale)
    dtype, veil = q.dtype, partial(hide, n_kv=k.shape[2], causal=causal)

    def forward(q, k, v):
        return fa2_forward(q * scale, k, v, dtype, veil, softcap)

    def backward(do, *kept):
        return fa2_backward(do, *kept, scale, dtype, veil, softcap, 32, lambda dq: rounded(dq, dtype))

    return ByHand.apply(forward, backward, *tensors).to(dtype)
