"""Defects of the backward pass, by a second author: edges."""

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import ByHand, finite, load, nonzero, rounded, sum_groups, upcast


def whole_rows(q, k, v, scale, hide):
    """O in the inputs' type, and the log-sum-exp."""
    qf, kf, vf = upcast(q, k, v)
    o, lse = steps.whole_row(hide(qf @ kf.mT * scale), vf, q.dtype)
    return o.to(q.dtype), lse


def in_tiles(qf, q, k, v, scale, hide, size):
    """The same by an online softmax; qf: q in the accumulation type."""
    _, kf, vf = upcast(q, k, v)
    m, l, o = steps.sweep(lambda k, j0: hide(qf @ k.mT * scale, j0), qf, kf, vf, q.dtype, size=size)
    return (o / nonzero(l)).to(q.dtype), m + torch.log(l)


def p_and_ds(do, q, k, v, o, s, lse, hide):
    """Both rounded to the inputs' type, and dO in the accumulation type."""
    _, _, vf = upcast(q, k, v)
    g = do.to(vf.dtype)
    delta = (g * o.to(g.dtype)).sum(-1, keepdim=True)
    return *steps.p_and_ds(g, s, vf, delta, lse, q.dtype, hide), g


def gradients(do, q, k, v, o, s, lse, scale, hide):
    """dQ, dK and dV of whole rows, from scores and the log-sum-exp."""
    qf, kf, _ = upcast(q, k, v)
    p, ds, g = p_and_ds(do, q, k, v, o, s, lse, hide)
    dk, dv = sum_groups(ds.mT @ qf * scale, k.shape[1]), sum_groups(p.mT @ g, k.shape[1])
    return (ds @ kf * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def head_by_head_backward(q, k, v, causal=False, scale=None):
    *_, scale, hide = load(q, k, v, scale, causal)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        p, ds, g = p_and_ds(do, q, k, v, o, qf @ kf.mT * scale, finite(lse), hide)
        group = q.shape[1] // k.shape[1]
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(q.shape[1]):
            dk[:, h // group] = (ds[:, h].mT @ qf[:, h] * scale).to(k.dtype)
            dv[:, h // group] = (p[:, h].mT @ g[:, h]).to(v.dtype)
        return (ds @ kf * scale).to(q.dtype), dk, dv

    return ByHand.apply(lambda *x: whole_rows(*x, scale, hide), backward, q, k, v)


def recompute_backward(q, k, v, causal=False, scale=None, window=None):
    *_, scale, hide = load(q, k, v, scale, causal, window)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        return gradients(do, q, k, v, o, qf @ kf.mT * scale, lse, scale, hide)

    return ByHand.apply(lambda *x: whole_rows(*x, scale, hide), backward, q, k, v)


def scaled_query(q, k, v, causal=False, scale=None):
    *_, scale, hide = load(q, k, v, scale, causal)

    def forward(q, k, v):
        qf = q.to(steps.acc_type(q))
        qf.mul_(scale)
        return in_tiles(qf, q, k, v, 1.0, hide, 256)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        return gradients(do, q, k, v, o, (qf * scale) @ kf.mT, finite(lse), scale, hide)

    return ByHand.apply(forward, backward, q, k, v)


def tiled_backward(q, k, v, causal=False, scale=None):
    *_, scale, hide = load(q, k, v, scale, causal)

    def backward(do, q, k, v, o, lse):
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        dq, dk, dv = steps.backward_in_tiles(
            g, qf, kf, vf, o.to(qf.dtype), finite(lse), scale, q.dtype, hide, size=32,
            scores=lambda k: qf @ k.mT * scale,
            add=lambda dq, part: rounded(dq + rounded(part * scale, q.dtype), q.dtype),
        )  # fmt: skip
        return dq.to(q.dtype), sum_groups(dk, k.shape[1]).to(k.dtype), sum_groups(dv, k.shape[1]).to(v.dtype)

    return ByHand.apply(lambda *x: whole_rows(*x, scale, hide), backward, q, k, v)


def saved_lse_backward(q, k, v, causal=False, scale=None):
    *_, scale, hide = load(q, k, v, scale, causal)

    def forward(q, k, v):
        o, lse = in_tiles(q.to(steps.acc_type(q)), q, k, v, scale, hide, 128)
        return o, lse.to(q.dtype)

    def backward(do, q, k, v, o, lse):
        qf, kf, _ = upcast(q, k, v)
        return gradients(do, q, k, v, o, qf @ kf.mT * scale, finite(lse.to(qf.dtype)), scale, hide)

    return ByHand.apply(forward, backward, q, k, v)
