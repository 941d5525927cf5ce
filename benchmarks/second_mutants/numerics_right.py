"""Right kernels, by a second author: numerics."""

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import INF, LOG2E, added, capped, dot, finite, load, nonzero, rounded, row_max


def right_whole_row(q, k, v, causal=False, scale=None, mask=None, window=None, softcap=None, sinks=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    blocks = []
    for i0, i1 in steps.tiles(q.shape[2], 128):
        s = hide(capped(dot(qf[:, :, i0:i1] * scale, kf), softcap), 0, i0)
        m = row_max(s)
        if sinks is not None:
            sink = steps.as_column(sinks, s)
            m = torch.maximum(m, sink.detach())
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        if sinks is not None:
            l = l + torch.exp(sink - finite(m))
        blocks.append(rounded(p / nonzero(l), q.dtype) @ vf)
    return torch.cat(blocks, 2).to(q.dtype)


def right_lazy_rescale(q, k, v, causal=False, scale=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)
    cubic = (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625)
    power = (lambda x: steps.Exp2Poly.apply(x, cubic)) if q.dtype.itemsize == 2 else torch.exp2

    def step(m, l, o, s, v, dtype):
        new = torch.maximum(m, row_max(s))
        lazy = new - finite(m) <= 8.0
        used = torch.where(lazy & (m > -INF), m, new)
        return added(used, l, o, torch.exp2(m - finite(used)), power(s - finite(used)), v, dtype)

    return steps.online(lambda k, j0: hide(dot(qf * (scale * LOG2E), k), j0), qf, kf, vf, q.dtype, step)


def right_split_kv(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask, LOG2E)
    outs, lses = steps.pieces(
        lambda k, j0: hide(dot(qf * (scale * LOG2E), k), j0), kf, vf, q.dtype, 192, torch.exp2, torch.log2
    )
    if sinks is not None:
        outs.append(torch.zeros_like(outs[0]))
        lses.append((sinks.to(qf.dtype) * LOG2E).view(1, -1, 1, 1).expand_as(lses[0]))
    return steps.merged(outs, lses, torch.exp2).to(q.dtype)


def right_reverse_backward(q, k, v, causal=False, scale=None, window=None, softcap=None):
    def forward(q, k, v, scale, dtype, hide):
        m, l, o = steps.sweep(
            lambda k, j0: hide(capped(dot(q * scale, k), softcap), j0), q, k, v, dtype, order=reversed
        )
        o = o / nonzero(l)
        return o, o.to(dtype), finite(m) + torch.log(nonzero(l))

    def backward(do, q, k, v, _, o, lse, scale, dtype, hide):
        return steps.backward_in_tiles(do, q, k, v, o.to(do.dtype), lse, scale, dtype, hide, softcap, order=reversed)

    return steps.by_hand(forward, backward, q, k, v, scale, causal, window)


def right_ones_column(q, k, v, causal=False, scale=None, mask=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    vf = torch.cat([vf, vf.new_ones(*vf.shape[:-1], 1)], -1)
    _, _, o = steps.sweep(lambda k, j0: hide(dot(qf * scale, k), j0), qf, kf, vf, q.dtype)
    return (o[..., :-1] / nonzero(o[..., -1:])).to(q.dtype)


def right_two_pass(q, k, v, causal=False, scale=None, mask=None, window=None, softcap=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    scored = []
    m, l, o = steps.start(qf, vf)
    for j0, j1 in steps.tiles(k.shape[2], 256):
        s = hide(capped(dot(qf * scale, kf[:, :, j0:j1]), softcap), j0)
        new = torch.maximum(m, row_max(s))
        l = l * torch.exp(m - finite(new)) + torch.exp(s - finite(new)).sum(-1, keepdim=True)
        m = new
        scored.append((s, j0, j1))
    lse = finite(m) + torch.log(nonzero(l))
    for s, j0, j1 in scored:
        o = o + rounded(torch.exp(s - lse), q.dtype) @ vf[:, :, j0:j1]
    return o.to(q.dtype)


def right_smooth_k(q, k, v, causal=False, scale=None, mask=None, window=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    kf = kf - kf.mean(2, keepdim=True)
    return steps.online(lambda k, j0: hide(dot(qf, k) * scale, j0), qf, kf, vf, q.dtype, size=64)
