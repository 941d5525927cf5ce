"""Right kernels, by a second author: edges."""

import math

import torch
import torch.nn.functional as F

from benchmarks.mutants.skeleton import visible
from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import INF, LOG2E, added, capped, finite, load, nonzero, rounded, row_max


def backward_walk_exp2(q, k, v, causal=False, scale=None, mask=None, window=None, softcap=None):
    n_kv = k.shape[2]
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)

    def block(i0, i1):
        stop = min(n_kv, max(0, i1 + n_kv - q.shape[2])) if causal else n_kv
        rows = qf[:, :, i0:i1]
        return steps.online(
            lambda k, j0: hide(capped(rows @ k.mT * scale, softcap), j0, i0) * LOG2E,
            rows, kf[:, :, :stop], vf, q.dtype, steps.in_base_2, order=reversed,
        )  # fmt: skip

    return torch.cat([block(*each) for each in steps.tiles(q.shape[2], 256)], 2)


def lazy_rescale(q, k, v, causal=False, scale=None, window=None, sinks=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)

    def step(m, l, o, s, v, dtype):
        top = row_max(s)
        new = torch.where(top - m > 8 * math.log(2), top, m)
        return added(new, l, o, torch.exp(m - finite(new)), torch.exp(s - finite(new)), v, dtype)

    m, l, o = steps.sweep(lambda k, j0: hide(qf @ k.mT * scale, j0), qf, kf, vf, q.dtype, step)
    if sinks is not None:
        sink = steps.as_column(sinks, l)
        top = torch.maximum(m, sink.detach())
        o, l = o * torch.exp(m - top), l * torch.exp(m - top) + torch.exp(sink - top)
    return (o / nonzero(l)).to(q.dtype)


def flash_decoding(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None, softcap=None):
    n_kv = k.shape[2]
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    outs, lses = steps.pieces(
        lambda k, j0: hide(capped(qf @ k.mT * scale, softcap), j0), kf, vf, q.dtype, max(64, -(-n_kv // 4))
    )
    total, total_lse = outs[0], lses[0]
    for o, lse in zip(outs[1:], lses[1:]):
        base = finite(torch.maximum(total_lse, lse).detach())
        a, b = torch.exp(total_lse - base), torch.exp(lse - base)
        total, total_lse = (a * total + b * o) / nonzero(a + b), steps.log_sum_exp(base, a + b)
    if sinks is not None:
        total = total * torch.sigmoid(total_lse - steps.as_column(sinks, total))
    return total.to(q.dtype)


def token_major_groups(q, k, v, causal=False, scale=None, softcap=None, window=None):
    b, h, n_q, d = q.shape
    kv, n_kv, acc = k.shape[1], k.shape[2], steps.acc_type(q)
    group, seen = h // kv, visible(n_q, n_kv, causal, window).repeat_interleave(h // kv, 0)
    scale = d**-0.5 if scale is None else scale
    qp = q.to(acc).reshape(b, kv, group, n_q, d).transpose(2, 3).reshape(b, kv, n_q * group, d)

    def scores(k, j0):
        s = capped(qp @ k.mT * scale, softcap)
        return s.masked_fill(~seen[:, j0 : j0 + k.shape[2]], -INF)

    o = steps.online(scores, qp, k.to(acc), v.to(acc), q.dtype)
    return o.reshape(b, kv, n_q, group, -1).transpose(2, 3).reshape(b, h, n_q, -1)


def hand_written_backward(q, k, v, causal=False, scale=None, window=None, softcap=None):
    def forward(q, k, v, scale, dtype, hide):
        m, l, o = steps.sweep(lambda k, j0: hide(capped(q @ k.mT * scale, softcap), j0), q, k, v, dtype)
        return rounded(o / nonzero(l), dtype), m + torch.log(l)

    def backward(do, q, k, v, o, lse, scale, dtype, hide):
        about = dict(softcap=softcap, scores=lambda k: q @ k.mT * scale)
        return steps.backward_in_tiles(do, q, k, v, o, finite(lse), scale, dtype, hide, **about)

    return steps.by_hand(forward, backward, q, k, v, scale, causal, window)


def two_passes(q, k, v, causal=False, scale=None, mask=None, softcap=None):
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)

    def scores(k, j0):
        return hide(capped(qf @ k.mT * scale, softcap), j0)

    with torch.no_grad():
        tops = [row_max(scores(kf[:, :, j0:j1], j0)) for j0, j1 in steps.tiles(k.shape[2], 256)]
    m = torch.stack(tops).amax(0)

    def step(_, l, o, s, v, dtype):
        return added(m, l, o, 1.0, torch.exp(s - finite(m)), v, dtype)

    return steps.online(scores, qf, kf, vf, q.dtype, step, 256)


def keys_as_rows(q, k, v, causal=False, scale=None, mask=None, window=None):
    b, h, n_q, _ = q.shape
    n_kv = k.shape[2]
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    kf, vf = (F.pad(x, (0, 0, 0, -n_kv % 128)) for x in (kf, vf))
    low = torch.finfo(qf.dtype).min
    o, l, m = qf.new_zeros(b, h, v.shape[-1], n_q), qf.new_zeros(b, h, 1, n_q), qf.new_full((b, h, 1, n_q), low)
    for j0 in range(0, n_kv, 128):
        real = min(128, n_kv - j0)
        st = kf[:, :, j0 : j0 + 128] @ qf.mT * scale
        s = hide(st.mT[..., :real], j0).mT
        s = F.pad(s, (0, 0, 0, 128 - real), value=-INF)
        dead = s == -INF
        s = s.masked_fill(dead, low)
        m_new = torch.maximum(m, s.detach().amax(-2, keepdim=True))
        p, alpha = torch.exp(s - m_new).masked_fill(dead, 0.0), torch.exp(m - m_new)
        o = o * alpha + vf[:, :, j0 : j0 + 128].mT @ rounded(p, q.dtype)
        l, m = l * alpha + p.sum(-2, keepdim=True), m_new
    return (o / nonzero(l)).to(q.dtype).mT
