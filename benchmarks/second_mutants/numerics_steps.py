"""Steps that kernels of the second set share: the numerics author's."""

import torch
from torch.autograd import Function

LOG2E = 1.4426950408889634


LN2 = 0.6931471805599453


INF = float("inf")


class _Round(Function):
    """Round to a storage type and come back; the gradient passes."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g, None


def rounded(x, dtype):
    return x if x.dtype == dtype else _Round.apply(x, dtype)


def load(q, k, v, scale):
    """Inputs in the accumulation type, one key/value head for each query head, and the scale."""
    acc = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = k.to(acc), v.to(acc)
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return q.to(acc), k, v, scale


def tiles(n, size):
    return [(j, min(j + size, n)) for j in range(0, n, size)]


def dot(q, k):
    return q @ k.transpose(-1, -2)


def hide(s, j0, n_kv, causal=False, window=None, mask=None, bias_scale=1.0, i0=0, n_q=None):
    """Scores of keys j0.. with the hidden ones at -inf (and an additive mask added)."""
    rows, width = s.shape[-2], s.shape[-1]
    n_q = rows if n_q is None else n_q
    first, last = i0 + n_kv - n_q, i0 + rows - 1 + n_kv - n_q
    keep = None
    if mask is not None:
        part = mask.expand(s.shape[0], s.shape[1], n_q, n_kv)[:, :, i0 : i0 + rows, j0 : j0 + width]
        if part.dtype == torch.bool:
            keep = part
        else:
            s = s + part.to(s.dtype) * bias_scale
    left, right = window if window is not None else (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    own = torch.arange(first, last + 1).unsqueeze(1)
    col = torch.arange(j0, j0 + width)
    if right is not None and j0 + width - 1 > first + right:
        near = col <= own + right
        keep = near if keep is None else keep & near
    if left is not None and j0 < last - left:
        near = col >= own - left
        keep = near if keep is None else keep & near
    return s if keep is None else s.masked_fill(~keep, -INF)


def cap(s, softcap):
    return s if softcap is None else softcap * torch.tanh(s / softcap)


def finite(m):
    return m.masked_fill(m == -INF, 0.0)


def nonzero(l):
    return l.masked_fill(l == 0, 1.0)


def row_max(s):
    return s.detach().amax(-1, keepdim=True)


def start(q, v):
    shape = q.shape[:-1]
    return q.new_full((*shape, 1), -INF), q.new_zeros((*shape, 1)), q.new_zeros((*shape, v.shape[-1]))


def absorb(m, l, o, s, v, dtype, exp=torch.exp, cast=rounded):
    """One step of the FA2 online softmax."""
    new = torch.maximum(m, row_max(s))
    base = finite(new)
    alpha, p = exp(m - base), exp(s - base)
    return new, l * alpha + p.sum(-1, keepdim=True), o * alpha + cast(p, dtype) @ v


def piece(s, v, dtype, exp=torch.exp, log=torch.log):
    """Normalised output and log-sum-exp of one piece of the keys."""
    m = row_max(s)
    p = exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    lse = (finite(m) + log(nonzero(l))).masked_fill(l == 0, -INF)
    return rounded(p, dtype) @ v / nonzero(l), lse


def merged(outs, lses, exp=torch.exp):
    """The output of pieces."""
    lse = torch.stack(lses)
    w = exp(lse - finite(lse.detach().amax(0)))
    return (w * torch.stack(outs)).sum(0) / nonzero(w.sum(0))


def fa2_forward(q, k, v, dtype, veil, softcap=None, size=128):
    """Output and natural log-sum-exp, for the kernels with a backward of their own."""
    m, l, o = start(q, v)
    for j0, j1 in tiles(k.shape[2], size):
        s = veil(cap(dot(q, k[:, :, j0:j1]), softcap), j0)
        m, l, o = absorb(m, l, o, s, v[:, :, j0:j1], dtype)
    lse = (finite(m) + torch.log(nonzero(l))).masked_fill(l == 0, -INF)
    return o / nonzero(l), lse


def fa2_backward(do, q, k, v, o, lse, scale, dtype, veil, softcap=None, size=128, summed=lambda dq: dq):
    """dQ, dK and dV over tiles of keys. summed: dQ as it is kept from tile to tile."""
    delta = (do * o).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for j0, j1 in tiles(k.shape[2], size):
        kj, vj = k[:, :, j0:j1], v[:, :, j0:j1]
        s = cap(dot(q * scale, kj), softcap)
        p = torch.exp(veil(s, j0) - finite(lse))
        ds = p * (dot(do, vj) - delta)
        if softcap is not None:
            ds = ds * (1.0 - (s / softcap) ** 2)
        ds = rounded(ds, dtype)
        dq = summed(dq + ds @ kj * scale)
        dk[:, :, j0:j1] = ds.transpose(-1, -2) @ q * scale
        dv[:, :, j0:j1] = rounded(p, dtype).transpose(-1, -2) @ do
    return dq, dk, dv


class _Exp2Poly(Function):
    """2 ** x for x <= 0: the whole part by the exponent, the rest by a polynomial."""

    @staticmethod
    def forward(ctx, x, coefficients):
        x = x.clamp(min=-2000.0)
        whole = torch.floor(x)
        f = x.sub_(whole)
        y = torch.full_like(f, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            y = y.mul_(f).add_(c)
        y = y.mul_(torch.exp2(whole))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * LN2, None
