"""Steps that kernels of the second set share: the edges author's."""

import math

import torch

INF = float("inf")


LOG2E = math.log2(math.e)


def acc_type(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _Round(torch.autograd.Function):
    """Round to a 16-bit type in the forward pass; the gradient passes unrounded."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g, None


def rounded(x, dtype):
    return x if x.dtype == dtype else _Round.apply(x, dtype)


def upcast(q, k, v):
    """q, k, v in the accumulation type, K and V repeated to the heads of Q."""
    acc, group = acc_type(q), q.shape[1] // k.shape[1]
    qf, kf, vf = q.to(acc), k.to(acc), v.to(acc)
    if group > 1:
        kf, vf = kf.repeat_interleave(group, 1), vf.repeat_interleave(group, 1)
    return qf, kf, vf


def load(q, k, v, scale):
    """As `upcast`, and the scale."""
    return *upcast(q, k, v), q.shape[-1] ** -0.5 if scale is None else scale


def capped(s, softcap):
    return s if softcap is None else softcap * torch.tanh(s / softcap)


def seen(i0, i1, j0, j1, off, causal, window=None):
    """Which of the keys j0..j1 the queries i0..i1 see; None if all."""
    if not causal and window is None:
        return None
    place = torch.arange(i0, i1)[:, None] + off
    key = torch.arange(j0, j1)[None, :]
    ok = key <= place if causal else torch.ones(i1 - i0, j1 - j0, dtype=torch.bool)
    left, right = window if window is not None else (None, None)
    if left is not None:
        ok = ok & (key >= place - left)
    if right is not None:
        ok = ok & (key <= place + right)
    return ok


def hide(s, i0, j0, off, causal, window=None, mask=None):
    """Apply mask, causal and window to the scores s of queries i0.. and keys j0.. ."""
    i1, j1 = i0 + s.shape[-2], j0 + s.shape[-1]
    if mask is not None:
        mask = mask[None] if mask.dim() == 1 else mask
        full = mask.expand(*s.shape[:-2], mask.shape[-2], mask.shape[-1])
        rows = full if full.shape[-2] == 1 else full[..., i0:i1, :]
        part = rows if rows.shape[-1] == 1 else rows[..., j0:j1]
        s = s.masked_fill(~part, -INF) if part.dtype == torch.bool else s + part.to(s.dtype)
    ok = seen(i0, i1, j0, j1, off, causal, window)
    return s if ok is None else s.masked_fill(~ok, -INF)


def state(qf, vf, rows=None):
    b, h, n_q, _ = qf.shape
    shape = (b, h, n_q if rows is None else rows)
    return (qf.new_zeros(*shape, vf.shape[-1]), qf.new_zeros(*shape, 1), qf.new_full((*shape, 1), -INF))


def finite(m):
    return torch.where(m == -INF, torch.zeros_like(m), m)


def step(o, l, m, s, v, dtype):
    """One tile of the online softmax: unnormalised O, row sum, running max."""
    m_new = torch.maximum(m, s.detach().amax(-1, keepdim=True))
    base = finite(m_new)
    p, alpha = torch.exp(s - base), torch.exp(m - base)
    return o * alpha + rounded(p, dtype) @ v, l * alpha + p.sum(-1, keepdim=True), m_new


def finish(o, l, dtype):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(dtype)


def tiles(n, size):
    return [(j, min(j + size, n)) for j in range(0, n, size)]


def online(scores, qf, vf, dtype):
    """FA2's loop over tiles of 128 keys. scores: those of keys j0 to j1."""
    o, l, m = state(qf, vf)
    for j0, j1 in tiles(vf.shape[2], 128):
        o, l, m = step(o, l, m, scores(j0, j1), vf[:, :, j0:j1], dtype)
    return finish(o, l, dtype)


def whole_row(s, vf, dtype):
    """Softmax of whole rows times V; returns O in the accumulation type and the log-sum-exp."""
    m = s.detach().amax(-1, keepdim=True)
    p = torch.exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    o = rounded(p, dtype) @ vf / torch.where(l == 0, torch.ones_like(l), l)
    return o, m + torch.log(l)


def sum_groups(x, kv_heads):
    """Sum a per-query-head gradient of K or V over the heads that share a kv head."""
    b, h, n, d = x.shape
    return x.view(b, kv_heads, h // kv_heads, n, d).sum(2)
