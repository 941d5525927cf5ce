"""Defects of the row maximum, of merges and of factors, by a second author: numerics."""

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import LOG2E, added, capped, dot, finite, load, nonzero, online, rounded, row_max


def splitk_base2_lse(q, k, v, causal=False, scale=None, mask=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask, LOG2E)
    found = steps.pieces(
        lambda k, j0: hide(dot(qf * (scale * LOG2E), k), j0), kf, vf, q.dtype, 256, torch.exp2, torch.log2
    )
    return steps.merged(*found).to(q.dtype)


def bias_without_log2e(q, k, v, causal=False, scale=None, mask=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    return online(lambda k, j0: hide(dot(qf, k) * (scale * LOG2E), j0), qf, kf, vf, q.dtype, steps.in_base_2)


def lazy_rescale_sum(q, k, v, causal=False, scale=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)

    def step(m, l, o, s, v, dtype):
        new = torch.maximum(m, row_max(s))
        alpha = torch.exp2(m - finite(new))
        lazy = alpha >= 2.0**-8
        used = torch.where(lazy, m, new)
        p = torch.exp2(s - finite(used))
        l = l * alpha + p.sum(-1, keepdim=True)
        return used, l, o * torch.where(lazy, 1.0, alpha) + rounded(p, dtype) @ v

    return online(lambda k, j0: hide(dot(qf * (scale * LOG2E), k), j0), qf, kf, vf, q.dtype, step)


def sink_on_placeholder_max(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    _, l, o = steps.start(qf, vf)
    m = torch.full_like(l, -1e5)
    for j0, j1 in steps.tiles(k.shape[2], 128):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0)
        new = torch.maximum(m, row_max(s))
        m, l, o = added(new, l, o, torch.exp(m - new), torch.exp(s - new), vf[:, :, j0:j1], q.dtype)
        if sinks is not None and j0 == 0:
            l = l + torch.exp(steps.as_column(sinks, l) - new)
    return (o / nonzero(l)).to(q.dtype)


def sink_in_every_split(q, k, v, causal=False, scale=None, window=None, sinks=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)
    outs, lses = steps.pieces(lambda k, j0: hide(dot(qf * scale, k), j0), kf, vf, q.dtype, 256)
    if sinks is not None:
        both = [torch.logaddexp(lse, steps.as_column(sinks, lse).expand_as(lse)) for lse in lses]
        outs, lses = [o * torch.exp(lse - each) for o, lse, each in zip(outs, lses, both)], both
    return steps.merged(outs, lses).to(q.dtype)


def fixed_max(q, k, v, causal=False, scale=None, mask=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)

    def step(m, l, o, s, v, dtype):
        return added(m, l, o, 1.0, torch.exp(s - 6.0), v, dtype)

    return online(lambda k, j0: hide(dot(qf * scale, k), j0), qf, kf, vf, q.dtype, step)


def guard_kept_as_max(q, k, v, causal=False, scale=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)

    def step(m, l, o, s, v, dtype):
        new = finite(torch.maximum(m, row_max(s)))
        return added(new, l, o, torch.exp(m - new), torch.exp(s - new), v, dtype)

    return online(lambda k, j0: hide(dot(qf * scale, k), j0), qf, kf, vf, q.dtype, step, order=reversed)


def merge_plain_exp(q, k, v, causal=False, scale=None, mask=None, softcap=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    cut = k.shape[2] // 2
    total, norm = 0.0, 0.0
    for j0, j1 in ((0, cut), (cut, k.shape[2])):
        if j1 > j0:
            s = capped(dot(qf * scale, kf[:, :, j0:j1]), softcap)
            o, lse = steps.piece(hide(s, j0), vf[:, :, j0:j1], q.dtype)
            w = torch.exp(lse)
            total, norm = total + w * o, norm + w
    return (total / nonzero(norm)).to(q.dtype)


def max_before_mask(q, k, v, causal=False, scale=None, mask=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    m, l, o = steps.start(qf, vf)
    for j0, j1 in steps.tiles(k.shape[2], 128):
        raw = dot(qf * scale, kf[:, :, j0:j1])
        s = hide(raw, j0)
        new = torch.maximum(m, torch.maximum(row_max(raw), row_max(s)))
        m, l, o = added(new, l, o, torch.exp(m - new), torch.exp(s - new), vf[:, :, j0:j1], q.dtype)
    return (o / nonzero(l)).to(q.dtype)
