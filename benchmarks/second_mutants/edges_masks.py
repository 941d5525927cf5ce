"""Defects of masks, heads and tiles, by a second author: edges."""

import torch
import torch.nn.functional as F

from benchmarks.second_mutants.edges_steps import (
    INF,
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
    tiles,
    upcast,
    whole_row,
)


def packed_groups(q, k, v, causal=False, scale=None, softcap=None):
    """GQA packed: the query heads of a group become rows beside one another, group-major."""
    b, h, n_q, d = q.shape
    kv, n_kv, acc = k.shape[1], k.shape[2], acc_type(q)
    group, off = h // kv, n_kv - n_q
    scale = d**-0.5 if scale is None else scale
    qp = q.to(acc).reshape(b, kv, group * n_q, d)
    kf, vf = k.to(acc), v.to(acc)
    place = torch.arange(group * n_q)[:, None] // group + off

    def scores(j0, j1):
        s = capped(qp @ kf[:, :, j0:j1].mT * scale, softcap)
        return s.masked_fill(torch.arange(j0, j1)[None, :] > place, -INF) if causal else s

    return online(scores, qp, vf, q.dtype).reshape(b, h, n_q, v.shape[-1])


def power_of_two_head_dim(q, k, v, causal=False, scale=None, window=None):
    """Pads head_dim to a power of two, as a kernel with fixed head sizes does."""
    n_q, n_kv = q.shape[2], k.shape[2]
    pad = (1 << (q.shape[-1] - 1).bit_length()) - q.shape[-1]
    q, k = F.pad(q, (0, pad)), F.pad(k, (0, pad))
    qf, kf, vf, scale = load(q, k, v, scale)

    def scores(j0, j1):
        return hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, window)

    return online(scores, qf, vf, q.dtype)


def split_keys_with_sinks(q, k, v, causal=False, scale=None, sinks=None, mask=None):
    """Split-K: each split of 128 keys gives (max, sum, O), merged at the end."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    parts = []
    for j0, j1 in tiles(n_kv, 128):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, None, mask)
        m = s.detach().amax(-1, keepdim=True)
        if sinks is not None:
            sink = sinks.to(s.dtype).view(1, -1, 1, 1)
            m = torch.maximum(m, sink.detach())
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        if sinks is not None:
            l = l + torch.exp(sink - m)
        parts.append((m, l, rounded(p, q.dtype) @ vf[:, :, j0:j1]))
    top = finite(torch.stack([m for m, _, _ in parts]).amax(0))
    o = sum(torch.exp(m - top) * o for m, _, o in parts)
    l = sum(torch.exp(m - top) * l for m, l, _ in parts)
    return finish(o, l, q.dtype)


def causal_last_tiles(q, k, v, causal=False, scale=None, softcap=None):
    """FA2 loop over query tiles; only the last tiles of keys are masked, the ones before need none."""
    n_q, n_kv, bm, bn = q.shape[2], k.shape[2], 128, 64
    off = n_kv - n_q
    qf, kf, vf, scale = load(q, k, v, scale)
    out = []
    for i0, i1 in tiles(n_q, bm):
        stop = min(n_kv, max(0, i1 + off)) if causal else n_kv
        count = -(-stop // bn)
        masked_tiles = bm // bn
        o, l, m = state(qf, vf, i1 - i0)
        for t in range(count):
            j0, j1 = t * bn, min(t * bn + bn, n_kv)
            s = capped(qf[:, :, i0:i1] @ kf[:, :, j0:j1].mT * scale, softcap)
            if causal and t >= count - masked_tiles:
                s = hide(s, i0, j0, off, True)
            o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
        out.append(finish(o, l, q.dtype))
    return torch.cat(out, 2)


def flat_heads_mask(q, k, v, causal=False, scale=None, mask=None):
    """Batch and heads flattened into one axis, as a grid does it; the mask likewise."""
    b, h, n_q, d = q.shape
    n_kv = k.shape[2]
    scale = d**-0.5 if scale is None else scale
    qf, kf, vf = (x.flatten(0, 1) for x in upcast(q, k, v))
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        mask = mask.flatten(0, 1)
        mask = mask[torch.arange(b * h) % mask.shape[0]]
    s = hide(qf @ kf.mT * scale, 0, 0, n_kv - n_q, causal, None, mask)
    return whole_row(s, vf, q.dtype)[0].to(q.dtype).unflatten(0, (b, h))


def causal_tile_count(q, k, v, causal=False, scale=None):
    """FA2 loop, tiles of 256 queries x 64 keys; under causal the loop over keys stops after the diagonal tile."""
    n_q, n_kv, size = q.shape[2], k.shape[2], 64
    off = n_kv - n_q
    qf, kf, vf, scale = load(q, k, v, scale)
    out = []
    for i0, i1 in tiles(n_q, 256):
        last = i1 - 1 + off if causal else n_kv
        count = min(-(-n_kv // size), max(1, -(-last // size)))
        o, l, m = state(qf, vf, i1 - i0)
        for j0, j1 in tiles(n_kv, size)[:count]:
            s = hide(qf[:, :, i0:i1] @ kf[:, :, j0:j1].mT * scale, i0, j0, off, causal)
            o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
        out.append(finish(o, l, q.dtype))
    return torch.cat(out, 2)


def window_first_tile(q, k, v, causal=False, scale=None, window=None):
    """FA2 loop over query tiles that starts at the first tile of keys inside the window."""
    n_q, n_kv, bm, bn = q.shape[2], k.shape[2], 128, 64
    off = n_kv - n_q
    qf, kf, vf, scale = load(q, k, v, scale)
    out = []
    for i0, i1 in tiles(n_q, bm):
        start = 0
        if window is not None and window[0] is not None:
            start = max(0, i1 - 1 + off - window[0]) // bn
        o, l, m = state(qf, vf, i1 - i0)
        for j0, j1 in tiles(n_kv, bn)[start:]:
            s = hide(qf[:, :, i0:i1] @ kf[:, :, j0:j1].mT * scale, i0, j0, off, causal, window)
            o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
        out.append(finish(o, l, q.dtype))
    return torch.cat(out, 2)


_MASKS = {}


def cached_mask_rows(q, k, v, causal=False, scale=None, window=None):
    """Whole rows; the mask of a shape is built once and kept for later calls."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale = load(q, k, v, scale)
    s = qf @ kf.mT * scale
    if causal or window is not None:
        key = (n_q, n_kv, causal)
        if key not in _MASKS:
            _MASKS[key] = seen(0, n_q, 0, n_kv, n_kv - n_q, causal, window)
        s = s.masked_fill(~_MASKS[key], -INF)
    return whole_row(s, vf, q.dtype)[0].to(q.dtype)
