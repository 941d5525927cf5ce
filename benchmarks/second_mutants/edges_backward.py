"""Defects of the backward pass, by a second author: edges."""

import torch

from benchmarks.second_mutants.by_hand import ByHand
from benchmarks.second_mutants.edges_steps import (
    acc_type,
    finish,
    finite,
    hide,
    load,
    rounded,
    state,
    step,
    sum_groups,
    tiles,
    upcast,
    whole_row,
)


def scores(q, k, causal, scale, window=None):
    return hide(q @ k.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal, window)


def whole_rows(q, k, v, causal, scale, window=None):
    """O in the inputs' type, and the log-sum-exp."""
    qf, kf, vf = upcast(q, k, v)
    o, lse = whole_row(scores(qf, kf, causal, scale, window), vf, q.dtype)
    return o.to(q.dtype), lse


def in_tiles(qf, q, k, v, causal, scale, size):
    """The same by an online softmax; qf: q in the accumulation type."""
    _, kf, vf = upcast(q, k, v)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(k.shape[2], size):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, k.shape[2] - q.shape[2], causal)
        o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
    return finish(o, l, q.dtype), m + torch.log(l)


def p_and_ds(do, q, k, v, o, s, lse):
    """Both rounded to the inputs' type, and dO in the accumulation type."""
    _, kf, vf = upcast(q, k, v)
    g, p = do.to(kf.dtype), torch.exp(s - lse)
    ds = p * (g @ vf.mT - (g * o.to(g.dtype)).sum(-1, keepdim=True))
    return rounded(p, q.dtype), rounded(ds, q.dtype), g


def gradients(do, q, k, v, o, s, lse, scale):
    """dQ, dK and dV of whole rows, from scores and the log-sum-exp."""
    qf, kf, _ = upcast(q, k, v)
    p, ds, g = p_and_ds(do, q, k, v, o, s, lse)
    dk, dv = sum_groups(ds.mT @ qf * scale, k.shape[1]), sum_groups(p.mT @ g, k.shape[1])
    return (ds @ kf * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def head_by_head_backward(q, k, v, causal=False, scale=None):
    *_, scale = load(q, k, v, scale)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        p, ds, g = p_and_ds(do, q, k, v, o, scores(qf, kf, causal, scale), finite(lse))
        group = q.shape[1] // k.shape[1]
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(q.shape[1]):
            dk[:, h // group] = (ds[:, h].mT @ qf[:, h] * scale).to(k.dtype)
            dv[:, h // group] = (p[:, h].mT @ g[:, h]).to(v.dtype)
        return (ds @ kf * scale).to(q.dtype), dk, dv

    return ByHand.apply(lambda *x: whole_rows(*x, causal, scale), backward, q, k, v)


def recompute_backward(q, k, v, causal=False, scale=None, window=None):
    *_, scale = load(q, k, v, scale)

    def backward(do, q, k, v, o, lse):
        s = scores(*upcast(q, k, v)[:2], causal, scale, window)
        return gradients(do, q, k, v, o, s, lse, scale)

    return ByHand.apply(lambda *x: whole_rows(*x, causal, scale, window), backward, q, k, v)


def scaled_query(q, k, v, causal=False, scale=None):
    *_, scale = load(q, k, v, scale)

    def forward(q, k, v):
        qf = q.to(acc_type(q))
        qf.mul_(scale)
        return in_tiles(qf, q, k, v, causal, 1.0, 256)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        return gradients(do, q, k, v, o, scores(qf * scale, kf, causal, 1.0), finite(lse), scale)

    return ByHand.apply(forward, backward, q, k, v)


def tiled_backward(q, k, v, causal=False, scale=None):
    *_, scale = load(q, k, v, scale)

    def backward(do, q, k, v, o, lse):
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        delta = (g * o.to(qf.dtype)).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), [], []
        for j0, j1 in tiles(k.shape[2], 32):
            kt, vt = kf[:, :, j0:j1], vf[:, :, j0:j1]
            s = hide(qf @ kt.mT * scale, 0, j0, k.shape[2] - q.shape[2], causal)
            p = torch.exp(s - finite(lse))
            ds = rounded(p * (g @ vt.mT - delta), q.dtype)
            dq += (ds @ kt * scale).to(q.dtype)
            dk.append(ds.mT @ qf * scale)
            dv.append(rounded(p, q.dtype).mT @ g)
        dk, dv = sum_groups(torch.cat(dk, 2), k.shape[1]), sum_groups(torch.cat(dv, 2), k.shape[1])
        return dq, dk.to(k.dtype), dv.to(v.dtype)

    return ByHand.apply(lambda *x: whole_rows(*x, causal, scale), backward, q, k, v)


def saved_lse_backward(q, k, v, causal=False, scale=None):
    *_, scale = load(q, k, v, scale)

    def forward(q, k, v):
        o, lse = in_tiles(q.to(acc_type(q)), q, k, v, causal, scale, 128)
        return o, lse.to(q.dtype)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        return gradients(do, q, k, v, o, scores(qf, kf, causal, scale), finite(lse.to(qf.dtype)), scale)

    return ByHand.apply(forward, backward, q, k, v)
