"""Defects of the forward pass, by a second author: edges."""

import torch

from benchmarks.second_mutants.edges_steps import (
    INF,
    capped,
    finish,
    finite,
    hide,
    load,
    online,
    rounded,
    state,
    step,
    tiles,
    upcast,
    whole_row,
)


def packed_values(q, k, v, causal=False, scale=None, mask=None):
    """FA1 loop (O divided in every tile); V is read as a packed (batch, kv_heads, n_kv, dim) block."""
    n_q, n_kv = q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if 0 in v.stride():
        v = v.contiguous()
    _, kv, n, dv = v.shape
    v = torch.as_strided(v, v.shape, (kv * n * dv, n * dv, dv, 1), v.storage_offset())
    qf, kf, vf = upcast(q, k, v)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(n_kv, 128):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, None, mask)
        m_new = torch.maximum(m, s.detach().amax(-1, keepdim=True))
        base = finite(m_new)
        p, old = torch.exp(s - base), l * torch.exp(m - base)
        l = old + p.sum(-1, keepdim=True)
        safe = torch.where(l == 0, torch.ones_like(l), l)
        o = o * (old / safe) + (rounded(p, q.dtype) @ vf[:, :, j0:j1]) / safe
        m = m_new
    return o.to(q.dtype)


def capped_scores(q, k, v, causal=False, scale=None, softcap=None, mask=None, window=None):
    """FA2 loop over tiles of 128 keys, with softcap, mask and window."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)

    def scores(j0, j1):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, window, mask)
        return capped(s, softcap)

    return online(scores, qf, vf, q.dtype)


def split_keys_lse(q, k, v, causal=False, scale=None, mask=None, window=None):
    """Split-K: each split writes O and log-sum-exp into zeroed buffers, a second pass merges them."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    outs, lses = [], []
    for j0, j1 in tiles(n_kv, 128):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, window, mask)
        m = s.detach().amax(-1, keepdim=True)
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        some = l > 0
        safe = torch.where(some, l, torch.ones_like(l))
        outs.append(rounded(p, q.dtype) @ vf[:, :, j0:j1] / safe)
        lses.append(torch.where(some, finite(m) + torch.log(safe), torch.zeros_like(l)))
    w = torch.softmax(torch.stack(lses), 0)
    return (w * torch.stack(outs)).sum(0).to(q.dtype)


def max_of_scores(q, k, v, causal=False, scale=None, mask=None, window=None):
    """FA2 loop; the running max is taken when the scores leave the matrix product."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(n_kv, 128):
        s = qf @ kf[:, :, j0:j1].mT * scale
        m_new = torch.maximum(m, s.detach().amax(-1, keepdim=True))
        s = hide(s, 0, j0, n_kv - n_q, causal, window, mask)
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        o = o * alpha + rounded(p, q.dtype) @ vf[:, :, j0:j1]
        l = l * alpha + p.sum(-1, keepdim=True)
        m = m_new
    return finish(o, l, q.dtype)


def skip_small_tiles(q, k, v, causal=False, scale=None, window=None):
    """FA2 loop; a tile of keys whose scores are all far below the running max is not added."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(n_kv, 64):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, window)
        if s.max() < m.max() - 20:
            continue
        o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
    return finish(o, l, q.dtype)


def positions_as_inputs(q, k, v, causal=False, scale=None, window=None):
    """Whole rows; the positions of queries and keys are tensors like the inputs."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    s = qf @ kf.mT * scale
    place = (torch.arange(n_q) + (n_kv - n_q)).to(q.dtype)[:, None]
    key = torch.arange(n_kv).to(q.dtype)[None, :]
    if causal:
        s = s.masked_fill(key > place, -INF)
    if window is not None and window[0] is not None:
        s = s.masked_fill(place - key > window[0], -INF)
    if window is not None and window[1] is not None:
        s = s.masked_fill(key - place > window[1], -INF)
    return whole_row(s, vf, q.dtype)[0].to(q.dtype)


def decode_and_prefill(q, k, v, causal=False, scale=None, mask=None, softcap=None):
    """Two paths: one query is a matrix-vector product over all keys, more queries go through tiles."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    if n_q == 1:
        group = q.shape[1] // k.shape[1]
        s = (q @ k.repeat_interleave(group, 1).mT).to(qf.dtype) * scale
        s = hide(capped(s, softcap), 0, 0, n_kv - 1, causal, None, mask)
        return whole_row(s, vf, q.dtype)[0].to(q.dtype)

    def scores(j0, j1):
        s = capped(qf @ kf[:, :, j0:j1].mT * scale, softcap)
        return hide(s, 0, j0, n_kv - n_q, causal, None, mask)

    return online(scores, qf, vf, q.dtype)
