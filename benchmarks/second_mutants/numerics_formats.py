"""Defects of formats and exponentials, by a second author: numerics."""

import torch
from torch.autograd import Function

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import INF, LOG2E, dot, finite, load, nonzero, online, rounded, row_max


def half_pv_hardcoded(q, k, v, causal=False, scale=None, mask=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    vf = rounded(vf, torch.float16)
    _, l, o = steps.sweep(lambda k, j0: hide(dot(qf * scale, k), j0), qf, kf, vf, torch.float16)
    return (o / nonzero(l)).to(q.dtype)


def exp_with_floor(q, k, v, causal=False, scale=None, mask=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    blocks = []
    for i0, i1 in steps.tiles(q.shape[2], 128):
        s = hide(dot(qf[:, :, i0:i1] * scale, kf), 0, i0)
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
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    flush = _Flush.apply if q.dtype == torch.float16 else lambda x: rounded(x, q.dtype)
    qf, kf, vf = flush(qf), flush(kf), flush(vf)

    def step(m, l, o, s, v, dtype):
        new = torch.maximum(m, row_max(s))
        alpha, p = torch.exp(m - finite(new)), torch.exp(s - finite(new))
        return new, l * alpha + p.sum(-1, keepdim=True), o * alpha + flush(p) @ v

    return online(lambda k, j0: hide(dot(qf, k) * scale, j0), qf, kf, vf, q.dtype, step)


def row_sum_in_half(q, k, v, causal=False, scale=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)

    def step(m, l, o, s, v, dtype):
        new = torch.maximum(m, row_max(s))
        alpha, p = torch.exp(m - finite(new)), torch.exp(s - finite(new))
        l_new = rounded(l * alpha + p.sum(-1, keepdim=True), dtype)
        return new, l_new, (o * (l * alpha) + rounded(p, dtype) @ v) / nonzero(l_new)

    return steps.sweep(lambda k, j0: hide(dot(qf * scale, k), j0), qf, kf, vf, q.dtype, step, 64)[-1].to(q.dtype)


def ring_output_in_half(q, k, v, causal=False, scale=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal)
    lse, _, out = steps.start(qf, vf)
    for o, part in zip(*steps.pieces(lambda k, j0: hide(dot(qf * scale, k), j0), kf, vf, q.dtype, 128)):
        top = finite(torch.maximum(lse, part).detach())
        a, b = torch.exp(lse - top), torch.exp(part - top)
        out = rounded((out * a + rounded(o, q.dtype) * b) / nonzero(a + b), q.dtype)
        lse = steps.log_sum_exp(top, a + b)
    return out.to(q.dtype)


def scale_in_half(q, k, v, causal=False, scale=None, mask=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask, LOG2E)
    factor = float(torch.tensor(scale * LOG2E, dtype=q.dtype))
    return online(lambda k, j0: hide(dot(qf * factor, k), j0), qf, kf, vf, q.dtype, steps.in_base_2)


def exp2_quadratic(q, k, v, causal=False, scale=None, mask=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask, LOG2E)

    def step(m, l, o, s, v, dtype):
        new = torch.maximum(m, row_max(s))
        p = steps.Exp2Poly.apply(s - finite(new), (1.0, 0.6565, 0.3435))
        return steps.added(new, l, o, torch.exp2(m - finite(new)), p, v, dtype)

    def block(i0, i1):
        rows = qf[:, :, i0:i1]
        return online(lambda k, j0: hide(dot(rows * (scale * LOG2E), k), j0, i0), rows, kf, vf, q.dtype, step)

    return torch.cat([block(*each) for each in steps.tiles(q.shape[2], 512)], 2)
