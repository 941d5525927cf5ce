"""Defects of the forward pass, by a second author: edges."""

import torch

from benchmarks.mutants.skeleton import Mutant
from benchmarks.second_mutants.edges_steps import (
    INF,
    capped,
    finish,
    finite,
    hide,
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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(n_kv, 128):
        s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, n_kv - n_q, causal, window, mask)
        s = capped(s, softcap)
        o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
    return finish(o, l, q.dtype)


def split_keys_lse(q, k, v, causal=False, scale=None, mask=None, window=None):
    """Split-K: each split writes O and log-sum-exp into zeroed buffers, a second pass merges them."""
    n_q, n_kv = q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    qf, kf, vf = upcast(q, k, v)
    if n_q == 1:
        group = q.shape[1] // k.shape[1]
        s = (q @ k.repeat_interleave(group, 1).mT).to(qf.dtype) * scale
        s = hide(capped(s, softcap), 0, 0, n_kv - 1, causal, None, mask)
        return whole_row(s, vf, q.dtype)[0].to(q.dtype)
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(n_kv, 128):
        s = capped(qf @ kf[:, :, j0:j1].mT * scale, softcap)
        s = hide(s, 0, j0, n_kv - n_q, causal, None, mask)
        o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
    return finish(o, l, q.dtype)


MUTANTS = (
    Mutant(
        packed_values,
        "V is read with the strides of a packed tensor, whatever its real strides are.",
        "github.com/ROCm/pytorch/issues/3230",
    ),
    Mutant(
        capped_scores,
        "The softcap is applied after mask, causal and window, so that hidden keys get the finite score -softcap.",
        "github.com/onnx/onnx/issues/7865",
    ),
    Mutant(
        split_keys_lse, "A split in which a row sees no key leaves 0 instead of -inf as its log-sum-exp in the buffer."
    ),
    Mutant(max_of_scores, "The row max is taken before mask, causal and window, so that a hidden key sets it."),
    Mutant(
        skip_small_tiles,
        "The test that skips a tile compares the max over the whole batch, all heads and rows, instead of "
        "every row with its own running max.",
        "github.com/HKUSTDial/flash-sparse-attention/issues/313",
    ),
    Mutant(
        positions_as_inputs,
        "The positions that causal and window compare are held in the inputs' dtype, which rounds them above "
        "256 (BF16) or 2048 (FP16).",
    ),
    Mutant(
        decode_and_prefill,
        "The path for one query leaves Q K^T rounded to the inputs' dtype before scale and softmax.",
        "github.com/ggml-org/llama.cpp/pull/10232",
        unseen="Baseline rounds its scores, too",
    ),
)
