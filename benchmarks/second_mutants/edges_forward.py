"""Defects of the forward pass, by a second author: edges."""

import torch

from benchmarks.second_mutants import steps
from benchmarks.second_mutants.steps import INF, added, capped, finite, load, nonzero, online, rounded, row_max, tiles


def packed_values(q, k, v, causal=False, scale=None, mask=None):
    """FA1 loop (O divided in every tile); V is read as a packed (batch, kv_heads, n_kv, dim) block."""
    if 0 in v.stride():
        v = v.contiguous()
    _, kv, n, dv = v.shape
    v = torch.as_strided(v, v.shape, (kv * n * dv, n * dv, dv, 1), v.storage_offset())
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)

    def step(m, l, o, s, v, dtype):
        new = torch.maximum(m, row_max(s))
        p, old = torch.exp(s - finite(new)), l * torch.exp(m - finite(new))
        l = old + p.sum(-1, keepdim=True)
        safe = nonzero(l)
        return new, l, o * (old / safe) + (rounded(p, dtype) @ v) / safe

    return steps.sweep(lambda k, j0: hide(qf @ k.mT * scale, j0), qf, kf, vf, q.dtype, step)[-1].to(q.dtype)


def capped_scores(q, k, v, causal=False, scale=None, softcap=None, mask=None, window=None):
    """FA2 loop over tiles of 128 keys, with softcap, mask and window."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    return online(lambda k, j0: capped(hide(qf @ k.mT * scale, j0), softcap), qf, kf, vf, q.dtype)


def split_keys_lse(q, k, v, causal=False, scale=None, mask=None, window=None):
    """Split-K: each split writes O and log-sum-exp into zeroed buffers, a second pass merges them."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    outs, lses = steps.pieces(lambda k, j0: hide(qf @ k.mT * scale, j0), kf, vf, q.dtype, 128)
    lses = torch.stack(lses)
    w = torch.softmax(finite(lses), 0)  # of a split without keys: 0
    return (w * torch.stack(outs)).sum(0).to(q.dtype)


def max_of_scores(q, k, v, causal=False, scale=None, mask=None, window=None):
    """FA2 loop; the running max is taken when the scores leave the matrix product."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window, mask)
    m, l, o = steps.start(qf, vf)
    for j0, j1 in tiles(k.shape[2], 128):
        s = qf @ kf[:, :, j0:j1].mT * scale
        new = torch.maximum(m, row_max(s))
        m, l, o = added(new, l, o, torch.exp(m - new), torch.exp(hide(s, j0) - new), vf[:, :, j0:j1], q.dtype)
    return (o / nonzero(l)).to(q.dtype)


def skip_small_tiles(q, k, v, causal=False, scale=None, window=None):
    """FA2 loop; a tile of keys whose scores are all far below the running max is not added."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, window)

    def step(m, l, o, s, v, dtype):
        return (m, l, o) if s.max() < m.max() - 20 else steps.absorb(m, l, o, s, v, dtype)

    return online(lambda k, j0: hide(qf @ k.mT * scale, j0), qf, kf, vf, q.dtype, step, 64)


def positions_as_inputs(q, k, v, causal=False, scale=None, window=None):
    """Whole rows; the positions of queries and keys are tensors like the inputs."""
    n_q, n_kv = q.shape[2], k.shape[2]
    qf, kf, vf, scale, _ = load(q, k, v, scale)
    s = qf @ kf.mT * scale
    place = (torch.arange(n_q) + (n_kv - n_q)).to(q.dtype)[:, None]
    key = torch.arange(n_kv).to(q.dtype)[None, :]
    if causal:
        s = s.masked_fill(key > place, -INF)
    if window is not None and window[0] is not None:
        s = s.masked_fill(place - key > window[0], -INF)
    if window is not None and window[1] is not None:
        s = s.masked_fill(key - place > window[1], -INF)
    return steps.whole_row(s, vf, q.dtype)[0].to(q.dtype)


def decode_and_prefill(q, k, v, causal=False, scale=None, mask=None, softcap=None):
    """Two paths: one query is a matrix-vector product over all keys, more queries go through tiles."""
    qf, kf, vf, scale, hide = load(q, k, v, scale, causal, None, mask)
    if q.shape[2] == 1:
        s = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT).to(qf.dtype) * scale
        return steps.whole_row(hide(capped(s, softcap)), vf, q.dtype)[0].to(q.dtype)
    return online(lambda k, j0: hide(capped(qf @ k.mT * scale, softcap), j0), qf, kf, vf, q.dtype)
