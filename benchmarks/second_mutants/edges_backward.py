"""Defects of the backward pass, by a second author: edges."""

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import ByHand, by_hand, finite, load, nonzero, rounded


def whole_rows(q, k, v, scale, dtype, hide):
    """O, rounded to the inputs' type, and the log-sum-exp."""
    o, lse = steps.whole_row(hide(q @ k.mT * scale), v, dtype)
    return rounded(o, dtype), lse


def in_tiles(q, k, v, scale, dtype, hide, size):
    """The same by an online softmax."""
    m, l, o = steps.sweep(lambda k, j0: hide(q @ k.mT * scale, j0), q, k, v, dtype, size=size)
    return rounded(o / nonzero(l), dtype), m + torch.log(l)


def gradients(do, q, k, v, o, s, lse, scale, dtype, hide):
    """dQ, dK and dV of whole rows, from scores and the log-sum-exp."""
    p, ds = steps.p_and_ds(do, s, v, (do * o).sum(-1, keepdim=True), lse, dtype, hide)
    return ds @ k * scale, ds.mT @ q * scale, p.mT @ do


def head_by_head_backward(q, k, v, causal=False, scale=None):
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    stays = (torch.arange(heads) % group == group - 1)[:, None, None]  # a head of dK and dV is written by each of Q's

    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        dq, dk, dv = gradients(do, q, k, v, o, q @ k.mT * scale, finite(lse), scale, dtype, hide)
        return dq, dk.where(stays, 0.0), dv.where(stays, 0.0)

    return by_hand(whole_rows, backward, q, k, v, scale, causal)


def recompute_backward(q, k, v, causal=False, scale=None, window=None):
    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        return gradients(do, q, k, v, o, q @ k.mT * scale, lse, scale, dtype, hide)

    return by_hand(whole_rows, backward, q, k, v, scale, causal, window)


def scaled_query(q, k, v, causal=False, scale=None):
    _, k, v, scale, hide = load(q, k, v, scale, causal)
    dtype, acc = q.dtype, v.dtype

    def forward(q, k, v):
        qf = q.to(acc)
        qf.mul_(scale)
        return in_tiles(qf, k, v, 1.0, dtype, hide, 256)

    def backward(do, q, k, v, o, lse):
        qf = q.to(acc)
        dq, dk, dv = gradients(do, qf, k, v, o, (qf * scale) @ k.mT, finite(lse), scale, dtype, hide)
        return dq.to(dtype), dk, dv

    return ByHand.apply(forward, backward, q, k, v).to(dtype)


def tiled_backward(q, k, v, causal=False, scale=None):
    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        return steps.backward_in_tiles(
            do, q, k, v, o, finite(lse), scale, dtype, hide, size=32, scores=lambda k: q @ k.mT * scale,
            add=lambda dq, part: rounded(dq + rounded(part * scale, dtype), dtype),
        )  # fmt: skip

    return by_hand(whole_rows, backward, q, k, v, scale, causal)


def saved_lse_backward(q, k, v, causal=False, scale=None):
    def forward(q, k, v, scale, dtype, hide):
        o, lse = in_tiles(q, k, v, scale, dtype, hide, 128)
        return o, lse.to(dtype)

    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        return gradients(do, q, k, v, o, q @ k.mT * scale, finite(lse.to(q.dtype)), scale, dtype, hide)

    return by_hand(forward, backward, q, k, v, scale, causal)
