"""Defects of formats and exponentials, by a second author: numerics."""

import torch
from torch.autograd import Function

from benchmarks.second_mutants.numerics_steps import (
    INF,
    LOG2E,
    _Exp2Poly,
    absorb,
    dot,
    finite,
    hide,
    load,
    nonzero,
    piece,
    rounded,
    row_max,
    start,
    tiles,
)


def half_pv_hardcoded(q, k, v, causal=False, scale=None, mask=None):
    """Early Triton style; P and V go to FP16 for the second product, whatever the inputs are."""
    qf, kf, vf, scale = load(q, k, v, scale)
    vf = rounded(vf, torch.float16)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, None, mask)
        m, l, o = absorb(m, l, o, s, vf[:, :, j0:j1], torch.float16)
    return (o / nonzero(l)).to(q.dtype)


def exp_with_floor(q, k, v, causal=False, scale=None, mask=None, window=None):
    """Whole-row softmax with an exponential that never goes below the smallest normal FP16."""
    qf, kf, vf, scale = load(q, k, v, scale)
    n_q, n_kv, blocks = q.shape[2], k.shape[2], []
    for i0, i1 in tiles(n_q, 128):
        s = dot(qf[:, :, i0:i1] * scale, kf)
        s = hide(s, 0, n_kv, causal, window, mask, 1.0, i0, n_q)
        m = row_max(s)
        p = torch.exp(s - finite(m)).clamp(min=2.0**-14)
        r = (1.0 / p.sum(-1, keepdim=True)).masked_fill(m == -INF, 0.0)
        blocks.append(rounded(p * r, q.dtype) @ vf)
    return torch.cat(blocks, 2).to(q.dtype)


class _Flush(Function):
    """Round to FP16 with subnormal numbers taken as zero; the gradient passes."""

    @staticmethod
    def forward(ctx, x):
        x = x.to(torch.float16).to(x.dtype)
        return x.masked_fill_(x.abs() < 2.0**-14, 0.0)

    @staticmethod
    def backward(ctx, g):
        return g


def subnormals_flushed(q, k, v, causal=False, scale=None, mask=None):
    """FA2 on a matrix unit that takes subnormal FP16 operands as zero."""
    qf, kf, vf, scale = load(q, k, v, scale)
    flush = _Flush.apply if q.dtype == torch.float16 else lambda x: rounded(x, q.dtype)
    qf, kf, vf = flush(qf), flush(kf), flush(vf)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf, kf[:, :, j0:j1]) * scale, j0, k.shape[2], causal, None, mask)
        m, l, o = absorb(m, l, o, s, vf[:, :, j0:j1], q.dtype, cast=lambda p, _: flush(p))
    return (o / nonzero(l)).to(q.dtype)


def row_sum_in_half(q, k, v, causal=False, scale=None, window=None):
    """FA1 (O is divided after each tile); the running row sum is kept in the inputs' type."""
    qf, kf, vf, scale = load(q, k, v, scale)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 64):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, window)
        new = torch.maximum(m, row_max(s))
        alpha, p = torch.exp(m - finite(new)), torch.exp(s - finite(new))
        l_new = rounded(l * alpha + p.sum(-1, keepdim=True), q.dtype)
        o = (o * (l * alpha) + rounded(p, q.dtype) @ vf[:, :, j0:j1]) / nonzero(l_new)
        m, l = new, l_new
    return o.to(q.dtype)


def ring_output_in_half(q, k, v, causal=False, scale=None):
    """Ring attention; the output is stored in the inputs' type after each hop."""
    qf, kf, vf, scale = load(q, k, v, scale)
    out = qf.new_zeros(*q.shape[:-1], v.shape[-1])
    lse = qf.new_full((*q.shape[:-1], 1), -INF)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal)
        o, part = piece(s, vf[:, :, j0:j1], q.dtype)
        top = finite(torch.maximum(lse, part).detach())
        a, b = torch.exp(lse - top), torch.exp(part - top)
        out = rounded((out * a + rounded(o, q.dtype) * b) / nonzero(a + b), q.dtype)
        lse = (top + torch.log(nonzero(a + b))).masked_fill(a + b == 0, -INF)
    return out.to(q.dtype)


def scale_in_half(q, k, v, causal=False, scale=None, mask=None, window=None):
    """FA2 in base 2; the factor scale * log2(e) is rounded to the inputs' type."""
    qf, kf, vf, scale = load(q, k, v, scale)
    factor = float(torch.tensor(scale * LOG2E, dtype=q.dtype))
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * factor, kf[:, :, j0:j1]), j0, k.shape[2], causal, window, mask, LOG2E)
        m, l, o = absorb(m, l, o, s, vf[:, :, j0:j1], q.dtype, torch.exp2)
    return (o / nonzero(l)).to(q.dtype)


def exp2_quadratic(q, k, v, causal=False, scale=None, mask=None):
    """CPU style (blocks of queries, tiles of keys); 2 ** x by a polynomial of degree two."""
    qf, kf, vf, scale = load(q, k, v, scale)
    n_q, n_kv, blocks = q.shape[2], k.shape[2], []
    for i0, i1 in tiles(n_q, 512):
        m, l, o = start(qf[:, :, i0:i1], vf)
        for j0, j1 in tiles(n_kv, 128):
            s = dot(qf[:, :, i0:i1] * (scale * LOG2E), kf[:, :, j0:j1])
            s = hide(s, j0, n_kv, causal, None, mask, LOG2E, i0, n_q)
            new = torch.maximum(m, row_max(s))
            alpha = torch.exp2(m - finite(new))
            p = _Exp2Poly.apply(s - finite(new), (1.0, 0.6565, 0.3435))
            l = l * alpha + p.sum(-1, keepdim=True)
            o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
            m = new
        blocks.append(o / nonzero(l))
    return torch.cat(blocks, 2).to(q.dtype)
