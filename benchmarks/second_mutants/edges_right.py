"""Right kernels, by a second author: edges."""

import math

import torch
import torch.nn.functional as F

from benchmarks.second_mutants.by_hand import ByHand
from benchmarks.second_mutants.edges_steps import (
    INF,
    LOG2E,
    acc_type,
    capped,
    finish,
    finite,
    hide,
    load,
    online,
    rounded,
    seen,
    state,
    step,
    sum_groups,
    tiles,
    upcast,
)


def backward_walk_exp2(q, k, v, causal=False, scale=None, mask=None, window=None, softcap=None):
    """FA2 style: query tiles, key tiles from last to first, exp2 with log2(e) in the FP32 scale."""
    n_q, n_kv = q.shape[2], k.shape[2]
    off = n_kv - n_q
    qf, kf, vf, scale = load(q, k, v, scale)
    out = []
    for i0, i1 in tiles(n_q, 256):
        stop = min(n_kv, max(0, i1 + off)) if causal else n_kv
        o, l, m = state(qf, vf, i1 - i0)
        for j0, j1 in reversed(tiles(stop, 128)):
            s = capped(qf[:, :, i0:i1] @ kf[:, :, j0:j1].mT * scale, softcap)
            s = hide(s, i0, j0, off, causal, window, mask) * LOG2E
            m_new = torch.maximum(m, s.detach().amax(-1, keepdim=True))
            base = finite(m_new)
            p, alpha = torch.exp2(s - base), torch.exp2(m - base)
            o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
            l, m = l * alpha + p.sum(-1, keepdim=True), m_new
        out.append(finish(o, l, q.dtype))
    return torch.cat(out, 2)


def lazy_rescale(q, k, v, causal=False, scale=None, window=None, sinks=None):
    """FA4 style: the subtracted max moves only when it would grow by more than a factor of 2^8."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(n_kv, 128):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, window)
        top = s.detach().amax(-1, keepdim=True)
        m_new = torch.where(top - m > 8 * math.log(2), top, m)
        base = finite(m_new)
        p, alpha = torch.exp(s - base), torch.exp(m - base)
        o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        l, m = l * alpha + p.sum(-1, keepdim=True), m_new
    if sinks is not None:
        sink = sinks.to(l.dtype).view(1, -1, 1, 1)
        top = torch.maximum(m, sink.detach())
        o, l = o * torch.exp(m - top), l * torch.exp(m - top) + torch.exp(sink - top)
    return finish(o, l, q.dtype)


def flash_decoding(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None, softcap=None):
    """Split-K: normalised partial O and log-sum-exp per split, merged in pairs; the sink joins once."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    total, total_lse = None, None
    for j0, j1 in tiles(n_kv, max(64, -(-n_kv // 4))):
        s = capped(qf @ kf[:, :, j0:j1].mT * scale, softcap)
        s = hide(s, 0, j0, n_kv - n_q, causal, window, mask)
        m = s.detach().amax(-1, keepdim=True)
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        safe = torch.where(l > 0, l, torch.ones_like(l))
        o = rounded(p, q.dtype) @ vf[:, :, j0:j1] / safe
        lse = torch.where(l > 0, finite(m) + torch.log(safe), torch.full_like(l, -INF))
        if total is None:
            total, total_lse = o, lse
            continue
        base = finite(torch.maximum(total_lse, lse).detach())
        a, b = torch.exp(total_lse - base), torch.exp(lse - base)
        w = torch.where(a + b > 0, a + b, torch.ones_like(a))
        total = (a * total + b * o) / w
        total_lse = torch.where(a + b > 0, base + torch.log(w), torch.full_like(w, -INF))
    if sinks is not None:
        total = total * torch.sigmoid(total_lse - sinks.to(total.dtype).view(1, -1, 1, 1))
    return total.to(q.dtype)


def token_major_groups(q, k, v, causal=False, scale=None, softcap=None, window=None):
    """PackGQA style: the heads of a group are neighbouring rows, so K and V are never repeated."""
    b, h, n_q, d = q.shape
    kv, n_kv, acc = k.shape[1], k.shape[2], acc_type(q)
    group, off = h // kv, n_kv - n_q
    scale = d**-0.5 if scale is None else scale
    qp = q.to(acc).reshape(b, kv, group, n_q, d).transpose(2, 3).reshape(b, kv, n_q * group, d)
    kf, vf = k.to(acc), v.to(acc)

    def scores(j0, j1):
        s = capped(qp @ kf[:, :, j0:j1].mT * scale, softcap)
        ok = seen(0, n_q, j0, j1, off, causal, window)
        return s if ok is None else s.masked_fill(~ok.repeat_interleave(group, 0), -INF)

    o = online(scores, qp, vf, q.dtype)
    return o.reshape(b, kv, n_q, group, -1).transpose(2, 3).reshape(b, h, n_q, -1)


def hand_written_backward(q, k, v, causal=False, scale=None, window=None, softcap=None):
    *_, scale = load(q, k, v, scale)

    def forward(q, k, v):
        qf, kf, vf = upcast(q, k, v)
        off = k.shape[2] - q.shape[2]
        o, l, m = state(qf, vf)
        for j0, j1 in tiles(k.shape[2], 128):
            s = capped(qf @ kf[:, :, j0:j1].mT * scale, softcap)
            o, l, m = step(o, l, m, hide(s, 0, j0, off, causal, window), vf[:, :, j0:j1], q.dtype)
        return finish(o, l, q.dtype), m + torch.log(l)

    def backward(do, q, k, v, o, lse):
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        delta = (g * o.to(qf.dtype)).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(qf), [], []
        for j0, j1 in tiles(k.shape[2], 128):
            kt, vt = kf[:, :, j0:j1], vf[:, :, j0:j1]
            s = capped(qf @ kt.mT * scale, softcap)
            p = torch.exp(hide(s, 0, j0, k.shape[2] - q.shape[2], causal, window) - finite(lse))
            ds = p * (g @ vt.mT - delta)
            if softcap is not None:
                ds = ds * (1 - (s / softcap) ** 2)
            p, ds = rounded(p, q.dtype), rounded(ds, q.dtype)
            dq += ds @ kt
            dk.append(ds.mT @ qf * scale)
            dv.append(p.mT @ g)
        dk, dv = sum_groups(torch.cat(dk, 2), k.shape[1]), sum_groups(torch.cat(dv, 2), k.shape[1])
        return (dq * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    return ByHand.apply(forward, backward, q, k, v)


def two_passes(q, k, v, causal=False, scale=None, mask=None, softcap=None):
    """First pass: only the max of each row; second pass: exp, sum and P V, with no rescaling."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)

    def scores(j0, j1):
        s = capped(qf @ kf[:, :, j0:j1].mT * scale, softcap)
        return hide(s, 0, j0, n_kv - n_q, causal, None, mask)

    with torch.no_grad():
        m = torch.stack([scores(j0, j1).amax(-1, keepdim=True) for j0, j1 in tiles(n_kv, 256)]).amax(0)
    o, l, _ = state(qf, vf)
    for j0, j1 in tiles(n_kv, 256):
        p = torch.exp(scores(j0, j1) - finite(m))
        o, l = o + rounded(p, q.dtype) @ vf[:, :, j0:j1], l + p.sum(-1, keepdim=True)
    return finish(o, l, q.dtype)


def keys_as_rows(q, k, v, causal=False, scale=None, mask=None, window=None):
    """S^T = K Q^T on key tiles padded to 128, a finite sentinel for unseen keys, P zeroed there."""
    b, h, n_q, d = q.shape
    n_kv = k.shape[2]
    scale = d**-0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
    pad = -n_kv % 128
    kf, vf = F.pad(kf, (0, 0, 0, pad)), F.pad(vf, (0, 0, 0, pad))
    o = qf.new_zeros(b, h, v.shape[-1], n_q)
    low = torch.finfo(qf.dtype).min
    l, m = qf.new_zeros(b, h, 1, n_q), qf.new_full((b, h, 1, n_q), low)
    for j0 in range(0, n_kv, 128):
        real = min(128, n_kv - j0)
        st = kf[:, :, j0 : j0 + 128] @ qf.mT * scale
        s = hide(st.mT[..., :real], 0, j0, n_kv - n_q, causal, window, mask).mT
        s = F.pad(s, (0, 0, 0, 128 - real), value=-INF)
        dead = s == -INF
        s = s.masked_fill(dead, low)
        m_new = torch.maximum(m, s.detach().amax(-2, keepdim=True))
        p, alpha = torch.exp(s - m_new).masked_fill(dead, 0.0), torch.exp(m - m_new)
        o = o * alpha + vf[:, :, j0 : j0 + 128].mT @ rounded(p, q.dtype)
        l, m = l * alpha + p.sum(-2, keepdim=True), m_new
    return finish(o, l, q.dtype).mT
