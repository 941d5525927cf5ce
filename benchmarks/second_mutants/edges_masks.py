"""Defects of masks, heads and tiles, by a second author: edges."""

import torch
import torch.nn.functional as F

from benchmarks.mutants.skeleton import visible
from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import INF, absorb, capped, finite, load, nonzero, online, rounded, row_max, tiles


def packed_groups(q, k, v, causal=False, scale=None, softcap=None):
    """GQA packed: the query heads of a group become rows beside one another, group-major."""
    b, h, n_q, d = q.shape
    kv, n_kv, acc = k.shape[1], k.shape[2], steps.acc_type(q)
    group, off = h // kv, n_kv - n_q
    scale = d**-0.5 if scale is None else scale
    qp = q.to(acc).reshape(b, kv, group * n_q, d)
    place = torch.arange(group * n_q)[:, None] // group + off

    def scores(k, j0):
        s = capped(qp @ k.mT * scale, softcap)
        return s.masked_fill(torch.arange(j0, j0 + k.shape[2])[None, :] > place, -INF) if causal else s

    return online(scores, qp, k.to(acc), v.to(acc), q.dtype).reshape(b, h, n_q, v.shape[-1])


def power_of_two_head_dim(q, k, v, causal=False, scale=None, window=None):
    """Pads head_dim to a power of two, as a kernel with fixed head sizes does."""
    pad = (1 << (q.shape[-1] - 1).bit_length()) - q.shape[-1]
    q, k = F.pad(q, (0, pad)), F.pad(k, (0, pad))
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)
    return online(lambda k, j0: hide(qf @ k.mT * scale, j0), qf, kf, vf, q.dtype)


def split_keys_with_sinks(q, k, v, causal=False, scale=None, sinks=None, mask=None):
    """Split-K: each split of 128 keys gives (max, sum, O), merged at the end."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    parts = []
    for j0, j1 in tiles(k.shape[2], 128):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, j0)
        m = row_max(s)
        if sinks is not None:
            sink = steps.as_column(sinks, s)
            m = torch.maximum(m, sink.detach())
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        if sinks is not None:
            l = l + torch.exp(sink - m)
        parts.append((m, l, rounded(p, q.dtype) @ vf[:, :, j0:j1]))
    top = finite(torch.stack([m for m, _, _ in parts]).amax(0))
    o = sum(torch.exp(m - top) * o for m, _, o in parts)
    l = sum(torch.exp(m - top) * l for m, l, _ in parts)
    return (o / nonzero(l)).to(q.dtype)


def in_query_tiles(q, k, v, scale, size, chosen, *masks, masked=0, softcap=None):
    """FA2 loop over tiles of queries. chosen: f(i1) gives the tiles of keys of those that end before query i1; masked:
    how many of them, the last, are masked; 0: all."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, *masks)
    out = []
    for i0, i1 in tiles(q.shape[2], size):
        m, l, o = steps.start(qf[:, :, i0:i1], vf)
        chosen_tiles = chosen(i1)
        for j0, j1 in chosen_tiles:
            s = capped(qf[:, :, i0:i1] @ kf[:, :, j0:j1].mT * scale, softcap)
            s = hide(s, j0, i0) if (j0, j1) in chosen_tiles[-masked:] else s
            m, l, o = absorb(m, l, o, s, vf[:, :, j0:j1], q.dtype)
        out.append((o / nonzero(l)).to(q.dtype))
    return torch.cat(out, 2)


def causal_last_tiles(q, k, v, causal=False, scale=None, softcap=None):
    """FA2 loop over query tiles; only the last tiles of keys are masked, the ones before need none."""
    n_kv = k.shape[2]

    def chosen(i1):
        stop = min(n_kv, max(0, i1 + n_kv - q.shape[2])) if causal else n_kv
        return tiles(n_kv, 64)[: -(-stop // 64)]

    return in_query_tiles(q, k, v, scale, 128, chosen, causal, masked=2, softcap=softcap)


def flat_heads_mask(q, k, v, causal=False, scale=None, mask=None):
    """Batch and heads flattened into one axis, as a grid does it; the mask likewise."""
    b, h, _, d = q.shape
    scale = d**-0.5 if scale is None else scale
    qf, kf, vf = (x.flatten(0, 1) for x in steps.upcast(q, k, v))
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        mask = mask.flatten(0, 1)
        mask = mask[torch.arange(b * h) % mask.shape[0]]
    s = steps.hiding(q, k, causal, None, mask)(qf @ kf.mT * scale)
    return steps.whole_row(s, vf, q.dtype)[0].to(q.dtype).unflatten(0, (b, h))


def causal_tile_count(q, k, v, causal=False, scale=None):
    """FA2 loop, tiles of 256 queries x 64 keys; under causal the loop over keys stops after the diagonal tile."""
    n_kv = k.shape[2]

    def chosen(i1):
        last = i1 - 1 + n_kv - q.shape[2] if causal else n_kv
        count = min(-(-n_kv // 64), max(1, -(-last // 64)))
        return tiles(n_kv, 64)[:count]

    return in_query_tiles(q, k, v, scale, 256, chosen, causal)


def window_first_tile(q, k, v, causal=False, scale=None, window=None):
    """FA2 loop over query tiles that starts at the first tile of keys inside the window."""
    n_kv = k.shape[2]

    def chosen(i1):
        start = 0
        if window is not None and window[0] is not None:
            start = max(0, i1 - 1 + n_kv - q.shape[2] - window[0]) // 64
        return tiles(n_kv, 64)[start:]

    return in_query_tiles(q, k, v, scale, 128, chosen, causal, window)


_MASKS = {}


def cached_mask_rows(q, k, v, causal=False, scale=None, window=None):
    """Whole rows; the mask of a shape is built once and kept for later calls."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale, _ = load(q, k, v, scale)
    s = qf @ kf.mT * scale
    if causal or window is not None:
        key = (n_q, n_kv, causal)
        if key not in _MASKS:
            _MASKS[key] = visible(n_q, n_kv, causal, window)
        s = s.masked_fill(~_MASKS[key], -INF)
    return steps.whole_row(s, vf, q.dtype)[0].to(q.dtype)
