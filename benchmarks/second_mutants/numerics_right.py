"""Right kernels, by a second author: numerics."""

from functools import partial

import torch

from benchmarks.second_mutants.by_hand import ByHand
from benchmarks.second_mutants.numerics_steps import (
    INF,
    LOG2E,
    _Exp2Poly,
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


def right_whole_row(q, k, v, causal=False, scale=None, mask=None, window=None, softcap=None, sinks=None):
    """Blocks of queries, whole rows, P normalised in FP32 and then cast."""
    qf, kf, vf, scale = load(q, k, v, scale)
    n_q, n_kv, blocks = q.shape[2], k.shape[2], []
    for i0, i1 in tiles(n_q, 128):
        s = cap(dot(qf[:, :, i0:i1] * scale, kf), softcap)
        s = hide(s, 0, n_kv, causal, window, mask, 1.0, i0, n_q)
        m = row_max(s)
        if sinks is not None:
            sink = sinks.to(s.dtype).view(1, -1, 1, 1)
            m = torch.maximum(m, sink.detach())
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        if sinks is not None:
            l = l + torch.exp(sink - finite(m))
        blocks.append(rounded(p / nonzero(l), q.dtype) @ vf)
    return torch.cat(blocks, 2).to(q.dtype)


def right_lazy_rescale(q, k, v, causal=False, scale=None, window=None):
    """FA4: O and the row sum rescaled only after a rise of 2 ** 8; cubic 2 ** x for 16-bit inputs."""
    qf, kf, vf, scale = load(q, k, v, scale)
    cubic = (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625)
    power = (lambda x: _Exp2Poly.apply(x, cubic)) if q.dtype.itemsize == 2 else torch.exp2
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * (scale * LOG2E), kf[:, :, j0:j1]), j0, k.shape[2], causal, window)
        new = torch.maximum(m, row_max(s))
        lazy = new - finite(m) <= 8.0
        used = torch.where(lazy & (m > -INF), m, new)
        alpha, p = torch.exp2(m - finite(used)), power(s - finite(used))
        l = l * alpha + p.sum(-1, keepdim=True)
        o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        m = used
    return (o / nonzero(l)).to(q.dtype)


def right_split_kv(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None):
    """Flash decoding: splits in base 2, one merge by the base-2 log-sum-exp, the sink in the merge."""
    qf, kf, vf, scale = load(q, k, v, scale)
    outs, lses = [], []
    for j0, j1 in tiles(k.shape[2], 192):
        s = hide(dot(qf * (scale * LOG2E), kf[:, :, j0:j1]), j0, k.shape[2], causal, window, mask, LOG2E)
        o, lse = piece(s, vf[:, :, j0:j1], q.dtype, torch.exp2, torch.log2)
        outs.append(o)
        lses.append(lse)
    if sinks is not None:
        outs.append(torch.zeros_like(outs[0]))
        lses.append((sinks.to(qf.dtype) * LOG2E).view(1, -1, 1, 1).expand_as(lses[0]))
    return merged(outs, lses, torch.exp2).to(q.dtype)


def right_reverse_backward(q, k, v, causal=False, scale=None, window=None, softcap=None):
    """FA2/FA3: tiles from right to left, a backward by hand with delta from the stored output."""
    *tensors, scale = load(q, k, v, scale)
    dtype, veil = q.dtype, partial(hide, n_kv=k.shape[2], causal=causal, window=window)

    def forward(q, k, v):
        m, l, o = start(q, v)
        for j0, j1 in reversed(tiles(k.shape[2], 128)):
            s = veil(cap(dot(q * scale, k[:, :, j0:j1]), softcap), j0)
            m, l, o = absorb(m, l, o, s, v[:, :, j0:j1], dtype)
        o = o / nonzero(l)
        return o, o.to(dtype), finite(m) + torch.log(nonzero(l))

    def backward(do, q, k, v, _, o, lse):
        delta = (do * o.to(do.dtype)).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        for j0, j1 in reversed(tiles(k.shape[2], 128)):
            kj, vj = k[:, :, j0:j1], v[:, :, j0:j1]
            s = cap(dot(q * scale, kj), softcap)
            p = torch.exp(veil(s, j0) - lse)
            ds = p * (dot(do, vj) - delta)
            if softcap is not None:
                ds = ds * (1.0 - (s / softcap) ** 2)
            ds = rounded(ds, dtype)
            dq += ds @ kj
            dk[:, :, j0:j1] = ds.transpose(-1, -2) @ q * scale
            dv[:, :, j0:j1] = rounded(p, dtype).transpose(-1, -2) @ do
        return dq * scale, dk, dv

    return ByHand.apply(forward, backward, *tensors).to(dtype)


def right_ones_column(q, k, v, causal=False, scale=None, mask=None):
    """FA2 whose row sum is one more column of V, so that it is the sum of the cast P."""
    qf, kf, vf, scale = load(q, k, v, scale)
    vf = torch.cat([vf, vf.new_ones(*vf.shape[:-1], 1)], -1)
    m, _, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(dot(qf * scale, kf[:, :, j0:j1]), j0, k.shape[2], causal, None, mask)
        new = torch.maximum(m, row_max(s))
        o = o * torch.exp(m - finite(new)) + rounded(torch.exp(s - finite(new)), q.dtype) @ vf[:, :, j0:j1]
        m = new
    return (o[..., :-1] / nonzero(o[..., -1:])).to(q.dtype)


def right_two_pass(q, k, v, causal=False, scale=None, mask=None, window=None, softcap=None):
    """Two passes: first every row's log-sum-exp, then sums of exp(S - lse) V, with no rescaling."""
    qf, kf, vf, scale = load(q, k, v, scale)
    n_kv, scored = k.shape[2], []
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(n_kv, 256):
        s = hide(cap(dot(qf * scale, kf[:, :, j0:j1]), softcap), j0, n_kv, causal, window, mask)
        new = torch.maximum(m, row_max(s))
        l = l * torch.exp(m - finite(new)) + torch.exp(s - finite(new)).sum(-1, keepdim=True)
        m = new
        scored.append((s, j0, j1))
    lse = finite(m) + torch.log(nonzero(l))
    for s, j0, j1 in scored:
        o = o + rounded(torch.exp(s - lse), q.dtype) @ vf[:, :, j0:j1]
    return o.to(q.dtype)


def right_smooth_k(q, k, v, causal=False, scale=None, mask=None, window=None):
    """SageAttention's smoothing, without its quantisation: the mean key is taken off all the keys."""
    qf, kf, vf, scale = load(q, k, v, scale)
    kf = kf - kf.mean(2, keepdim=True)
    m, l, o = start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 64):
        s = hide(dot(qf, kf[:, :, j0:j1]) * scale, j0, k.shape[2], causal, window, mask)
        m, l, o = absorb(m, l, o, s, vf[:, :, j0:j1], q.dtype)
    return (o / nonzero(l)).to(q.dtype)
