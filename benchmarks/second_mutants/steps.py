"""Steps that kernels of the second set share, of both authors."""

import math

import torch
from torch.autograd import Function

from benchmarks.mutants.skeleton import visible

LOG2E, LN2, INF = math.log2(math.e), math.log(2), math.inf


class ByHand(Function):
    """A backward pass that is written out. `ByHand.apply(forward, backward, *tensors)`: forward(*tensors) gives O and
    what is kept for backward(dO, *tensors, O, *kept), which gives a gradient for each tensor."""

    @staticmethod
    def forward(ctx, forward, backward, *tensors):
        o, *kept = forward(*tensors)
        ctx.save_for_backward(*tensors, o, *kept)
        ctx.own = backward
        return o

    @staticmethod
    def backward(ctx, do):
        return None, None, *ctx.own(do, *ctx.saved_tensors)


def by_hand(forward, backward, q, k, v, scale, *masks):
    """The output of a kernel whose backward pass is written out, as of `ByHand`, on the tensors of `load`. Behind its
    tensors each function gets the scale, the inputs' dtype and `hiding` of the masks."""
    *tensors, scale, hide = load(q, k, v, scale, *masks)
    about = scale, q.dtype, hide
    o = ByHand.apply(lambda *x: forward(*x, *about), lambda do, *x: backward(do, *x, *about), *tensors)
    return o.to(q.dtype)


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


def acc_type(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def upcast(q, k, v):
    """q, k, v in the accumulation type, K and V repeated to the heads of Q."""
    acc, group = acc_type(q), q.shape[1] // k.shape[1]
    q, k, v = q.to(acc), k.to(acc), v.to(acc)
    return (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)) if group > 1 else (q, k, v)


def load(q, k, v, scale, *masks):
    """As `upcast`, the scale, and `hiding` of the masks."""
    return *upcast(q, k, v), q.shape[-1] ** -0.5 if scale is None else scale, hiding(q, k, *masks)


def hiding(q, k, causal=False, window=None, mask=None, bias_scale=1.0):
    """hide(s, j0, i0): scores of queries i0.. and keys j0.. with hidden ones at -inf, and an additive mask, times
    bias_scale, added."""
    n_q, n_kv = q.shape[2], k.shape[2]
    seen = visible(n_q, n_kv, causal, window) if causal or window is not None else None

    def hide(s, j0=0, i0=0):
        at = ..., slice(i0, i0 + s.shape[-2]), slice(j0, j0 + s.shape[-1])
        if mask is not None:
            part = mask.expand(*s.shape[:-2], n_q, n_kv)[at]
            s = s.masked_fill(~part, -INF) if part.dtype == torch.bool else s + part.to(s.dtype) * bias_scale
        return s if seen is None else s.masked_fill(~seen[at], -INF)

    return hide


def tiles(n, size):
    return [(j, min(j + size, n)) for j in range(0, n, size)]


def dot(q, k):
    return q @ k.mT


def capped(s, softcap):
    return s if softcap is None else softcap * torch.tanh(s / softcap)


def finite(m):
    return m.masked_fill(m == -INF, 0.0)


def nonzero(l):
    return l.masked_fill(l == 0, 1.0)


def row_max(s):
    return s.detach().amax(-1, keepdim=True)


def as_column(sinks, like):
    """Sinks (heads,) as (1, heads, 1, 1)."""
    return sinks.to(like.dtype).view(1, -1, 1, 1)


def start(q, v):
    shape = q.shape[:-1]
    return q.new_full((*shape, 1), -INF), q.new_zeros((*shape, 1)), q.new_zeros((*shape, v.shape[-1]))


def absorb(m, l, o, s, v, dtype, exp=torch.exp):
    """One step of the FA2 online softmax."""
    new = torch.maximum(m, row_max(s))
    return added(new, l, o, exp(m - finite(new)), exp(s - finite(new)), v, dtype)


def added(m, l, o, alpha, p, v, dtype):
    """The maximum; row sum and O, both times alpha, with those of P."""
    return m, l * alpha + p.sum(-1, keepdim=True), o * alpha + rounded(p, dtype) @ v


def sweep(scores, q, k, v, dtype, step=absorb, size=128, order=iter):
    """m, l and O after a loop over tiles of keys. scores: f(K of a tile, its first key). step: as `absorb`."""
    m, l, o = start(q, v)
    for j0, j1 in order(tiles(k.shape[2], size)):
        m, l, o = step(m, l, o, scores(k[:, :, j0:j1], j0), v[:, :, j0:j1], dtype)
    return m, l, o


def online(scores, q, k, v, dtype, *how, **named):
    """The output of `sweep`."""
    _, l, o = sweep(scores, q, k, v, dtype, *how, **named)
    return (o / nonzero(l)).to(dtype)


def in_base_2(m, l, o, s, v, dtype):
    """`absorb` of scores that have log2(e) in their scale."""
    return absorb(m, l, o, s, v, dtype, torch.exp2)


def log_sum_exp(m, l, log=torch.log):
    return (finite(m) + log(nonzero(l))).masked_fill(l == 0, -INF)


def piece(s, v, dtype, exp=torch.exp, log=torch.log):
    """Normalised output and log-sum-exp of one piece of the keys."""
    m = row_max(s)
    p = exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    return rounded(p, dtype) @ v / nonzero(l), log_sum_exp(m, l, log)


def pieces(scores, k, v, dtype, size, *base):
    """Lists of outputs and log-sum-exps of the pieces of all keys."""
    found = [piece(scores(k[:, :, j0:j1], j0), v[:, :, j0:j1], dtype, *base) for j0, j1 in tiles(k.shape[2], size)]
    return [o for o, _ in found], [lse for _, lse in found]


def merged(outs, lses, exp=torch.exp):
    """The output of pieces."""
    lse = torch.stack(lses)
    w = exp(lse - finite(lse.detach().amax(0)))
    return (w * torch.stack(outs)).sum(0) / nonzero(w.sum(0))


def whole_row(s, v, dtype):
    """Softmax of whole rows times V; O in the accumulation type, and the log-sum-exp."""
    m = row_max(s)
    p = torch.exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    return rounded(p, dtype) @ v / nonzero(l), m + torch.log(l)


def p_and_ds(do, s, v, delta, lse, dtype, hide, softcap=None, exp=torch.exp):
    """P and dS, rounded. s: scores before `hide`."""
    s = capped(s, softcap)
    p = exp(hide(s) - lse)
    ds = p * (dot(do, v) - delta)
    if softcap is not None:
        ds = ds * (1 - (s / softcap) ** 2)
    return rounded(p, dtype), rounded(ds, dtype)


def backward_in_tiles(
    do, q, k, v, o, lse, scale, dtype, hide, softcap=None, size=128, order=iter, scores=None, exp=torch.exp, add=None
):
    """dQ, dK and dV over tiles of keys.

    Args:
        scores: f(K of a tile); else scale * Q times K. add: f(dQ, dS K of a tile), dQ as it is kept from tile to tile;
            else dQ is their sum times scale.
    """
    delta = (do * o).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for j0, j1 in order(tiles(k.shape[2], size)):
        kj, vj = k[:, :, j0:j1], v[:, :, j0:j1]
        s = scores(kj) if scores else dot(q * scale, kj)
        p, ds = p_and_ds(do, s, vj, delta, lse, dtype, lambda s, j0=j0: hide(s, j0), softcap, exp)
        dq = add(dq, ds @ kj) if add else dq + ds @ kj
        dk[:, :, j0:j1] = ds.mT @ q * scale
        dv[:, :, j0:j1] = p.mT @ do
    return dq if add else dq * scale, dk, dv


class Exp2Poly(Function):
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
