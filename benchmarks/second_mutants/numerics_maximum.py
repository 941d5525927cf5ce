"""Defects of the row maximum, of merges and of factors, by a second author: numerics."""

import torch

from benchmarks.second_mutants.numerics_steps import (
    LOG2E,
    absorb,
    cap,
    dot,
    finite,
    hide,
    load,
    merged,
    nonzero,
    piece,
    rounded,
    row_max,
    start,
    tiles,
)


def splitk_base2_lse(q, k, v, causal=False, scale=None, mask=None, window=None):
    """Split-K; the pieces work in base 2, the merge in base e."""
    qf, kf, vf, scale = load(q, k, v, scale)
    outs, lses = [], []
    for j0, j1 in tiles(k.shape[2], 256):
        s = hide(dot(qf * (scale * LOG2E), kf[:, :, j0:j1]), j0, k.shape[2], causal, window, mask, LOG2E)
        o, lse = piece(s, vf[:, :, j0:j1], q.dtype, torch.exp2, torch.log2)
        outs.append(o)
        lses.append(lse)
    return merged(outs, lses).to(q.dtype)


def bias_without_log2e(q, k, v, causal=False, scale=None, mask=None):
    """FA2 in base 2; the additive mask is not brought to base 2."""
    qf, kf, vf, scale = load(q, k, v, scale)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = dot(qf, kf[:, :, j0:j1]) * (scale * LOG2E)
        s = hide(s, j0, k.shape[2], causal, None, mask)
        m, l, o = absorb(m, l, o, s, vf[:, :, j0:j1], q.dtype, torch.exp2)
    return (o / nonzero(l)).to(q.dtype)


def lazy_rescale_sum(q, k, v, causal=False, scale=None, window=None):
    """FA4-like: small rises of the maximum do not rescale O, but they do rescale the row sum."""
    qf, kf, vf, scale = load(q, k, v, scale)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * (scale * LOG2E), kf[:, :, j0:j1]), j0, k.shape[2], causal, window)
        new = torch.maximum(m, row_max(s))
        alpha = torch.exp2(m - finite(new))
        lazy = alpha >= 2.0**-8
        used = torch.where(lazy, m, new)
        p = torch.exp2(s - finite(used))
        l = l * alpha + p.sum(-1, keepdim=True)
        o = o * torch.where(lazy, 1.0, alpha) + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        m = used
    return (o / nonzero(l)).to(q.dtype)


def sink_on_placeholder_max(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None):
    """The sink joins the row sum after the first tile, over a maximum that may still be a placeholder."""
    qf, kf, vf, scale = load(q, k, v, scale)
    _, l, o = start(qf, vf)
    m = torch.full_like(l, -1e5)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, window, mask)
        new = torch.maximum(m, row_max(s))
        alpha, p = torch.exp(m - new), torch.exp(s - new)
        l = l * alpha + p.sum(-1, keepdim=True)
        if sinks is not None and j0 == 0:
            l = l + torch.exp(sinks.to(l.dtype).view(1, -1, 1, 1) - new)
        o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        m = new
    return (o / nonzero(l)).to(q.dtype)


def sink_in_every_split(q, k, v, causal=False, scale=None, window=None, sinks=None):
    """Split-K; each split adds the sink to its own row sum before the merge."""
    qf, kf, vf, scale = load(q, k, v, scale)
    outs, lses = [], []
    for j0, j1 in tiles(k.shape[2], 256):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, window)
        o, lse = piece(s, vf[:, :, j0:j1], q.dtype)
        if sinks is not None:
            both = torch.logaddexp(lse, sinks.to(lse.dtype).view(1, -1, 1, 1).expand_as(lse))
            o, lse = o * torch.exp(lse - both), both
        outs.append(o)
        lses.append(lse)
    return merged(outs, lses).to(q.dtype)


def fixed_max(q, k, v, causal=False, scale=None, mask=None):
    """FlashDecoding++-like: one constant in the place of every row's maximum, and no fallback."""
    qf, kf, vf, scale = load(q, k, v, scale)
    _, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, None, mask)
        p = torch.exp(s - 6.0)
        l = l + p.sum(-1, keepdim=True)
        o = o + rounded(p, q.dtype) @ vf[:, :, j0:j1]
    return (o / nonzero(l)).to(q.dtype)


def guard_kept_as_max(q, k, v, causal=False, scale=None, window=None):
    """Tiles from right to left; the zero that guards a fully hidden tile stays as the running maximum."""
    qf, kf, vf, scale = load(q, k, v, scale)
    m, l, o = start(qf, vf)
    for j0, j1 in reversed(tiles(k.shape[2], 128)):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, window)
        new = finite(torch.maximum(m, row_max(s)))
        alpha, p = torch.exp(m - new), torch.exp(s - new)
        l = l * alpha + p.sum(-1, keepdim=True)
        o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        m = new
    return (o / nonzero(l)).to(q.dtype)


def merge_plain_exp(q, k, v, causal=False, scale=None, mask=None, softcap=None):
    """Cascade of a prefix and a suffix, merged with exp(lse) and no maximum taken off."""
    qf, kf, vf, scale = load(q, k, v, scale)
    n_kv = k.shape[2]
    cut = n_kv // 2
    total, norm = 0.0, 0.0
    for j0, j1 in ((0, cut), (cut, n_kv)):
        if j1 > j0:
            s = cap(dot(qf * scale, kf[:, :, j0:j1]), softcap)
            o, lse = piece(hide(s, j0, n_kv, causal, None, mask), vf[:, :, j0:j1], q.dtype)
            w = torch.exp(lse)
            total, norm = total + w * o, norm + w
    return (total / nonzero(norm)).to(q.dtype)


def max_before_mask(q, k, v, causal=False, scale=None, mask=None, window=None):
    """FA2; the running maximum is taken over all the scores, the hidden ones too."""
    qf, kf, vf, scale = load(q, k, v, scale)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        raw = dot(qf * scale, kf[:, :, j0:j1])
        s = hide(raw, j0, k.shape[2], causal, window, mask)
        new = torch.maximum(m, torch.maximum(row_max(raw), row_max(s)))
        alpha, p = torch.exp(m - new), torch.exp(s - new)
        l = l * alpha + p.sum(-1, keepdim=True)
        o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        m = new
    return (o / nonzero(l)).to(q.dtype)
