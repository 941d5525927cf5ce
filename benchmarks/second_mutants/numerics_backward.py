"""Defects of the backward pass, by a second author: numerics."""

import torch
from torch.autograd import Function

from benchmarks.mutants.skeleton import Mutant
from benchmarks.second_mutants.numerics_steps import (
    LOG2E,
    cap,
    dot,
    fa2_forward,
    finite,
    hide,
    load,
    nonzero,
    rounded,
    row_max,
    start,
    tiles,
)


class _MissingLn2(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, dtype, veil):
        k2 = k * (scale * LOG2E)
        m, l, o = start(q, v)
        for j0, j1 in tiles(k.shape[2], 128):
            s = veil(dot(q, k2[:, :, j0:j1]), j0)
            new = torch.maximum(m, row_max(s))
            alpha, p = torch.exp2(m - finite(new)), torch.exp2(s - finite(new))
            l = l * alpha + p.sum(-1, keepdim=True)
            o = o * alpha + rounded(p, dtype) @ v[:, :, j0:j1]
            m = new
        o = o / nonzero(l)
        lse2 = finite(m) + torch.log2(nonzero(l))
        ctx.save_for_backward(q, k2, v, o, lse2)
        ctx.rest = scale, dtype, veil
        return o

    @staticmethod
    def backward(ctx, do):
        q, k2, v, o, lse2 = ctx.saved_tensors
        scale, dtype, veil = ctx.rest
        delta = (do * o).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.empty_like(k2), torch.empty_like(v)
        for j0, j1 in tiles(k2.shape[2], 128):
            kj, vj = k2[:, :, j0:j1], v[:, :, j0:j1]
            p = torch.exp2(veil(dot(q, kj), j0) - lse2)
            ds = rounded(p * (dot(do, vj) - delta), dtype)
            dq = dq + ds @ kj
            dk[:, :, j0:j1] = ds.transpose(-1, -2) @ q * scale
            dv[:, :, j0:j1] = rounded(p, dtype).transpose(-1, -2) @ do
        return dq, dk, dv, None, None, None


def backward_missing_ln2(q, k, v, causal=False, scale=None, window=None):
    """Triton tutorial style: K is pre-scaled by scale * log2(e), and dQ is not multiplied by ln 2."""
    qf, kf, vf, scale = load(q, k, v, scale)

    def veil(s, j0):
        return hide(s, j0, k.shape[2], causal, window)

    return _MissingLn2.apply(qf, kf, vf, scale, q.dtype, veil).to(q.dtype)


class _TanhSaved(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, dtype, veil, softcap):
        s = dot(q * scale, k)
        t = None
        if softcap is not None:
            t = torch.tanh(s / softcap)
            s = softcap * t
            t = t.to(dtype)
        s = veil(s, 0)
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        o = rounded(p, dtype) @ v / nonzero(l)
        ctx.save_for_backward(q, k, v, o, p / nonzero(l), t)
        ctx.rest = scale, dtype
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, p, t = ctx.saved_tensors
        scale, dtype = ctx.rest
        ds = p * (dot(do, v) - (do * o).sum(-1, keepdim=True))
        if t is not None:
            ds = ds * (1.0 - t.to(ds.dtype) ** 2)
        ds = rounded(ds, dtype)
        dv = rounded(p, dtype).transpose(-1, -2) @ do
        return ds @ k * scale, ds.transpose(-1, -2) @ q * scale, dv, None, None, None, None


def softcap_tanh_saved_in_half(q, k, v, causal=False, scale=None, window=None, softcap=None):
    """The tanh of the soft cap is kept in the inputs' type; the backward takes 1 - t * t of it."""
    qf, kf, vf, scale = load(q, k, v, scale)

    def veil(s, j0):
        return hide(s, j0, k.shape[2], causal, window)

    return _TanhSaved.apply(qf, kf, vf, scale, q.dtype, veil, softcap).to(q.dtype)


class _LseInHalf(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, dtype, veil):
        o, lse = fa2_forward(q * scale, k, v, dtype, veil)
        ctx.save_for_backward(q, k, v, o, lse.to(dtype))
        ctx.rest = scale, dtype, veil
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        scale, dtype, veil = ctx.rest
        base = finite(lse.to(q.dtype))
        delta = (do * o).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        for j0, j1 in tiles(k.shape[2], 128):
            kj, vj = k[:, :, j0:j1], v[:, :, j0:j1]
            p = torch.exp(veil(dot(q * scale, kj), j0) - base)
            ds = rounded(p * (dot(do, vj) - delta), dtype)
            dq = dq + ds @ kj * scale
            dk[:, :, j0:j1] = ds.transpose(-1, -2) @ q * scale
            dv[:, :, j0:j1] = rounded(p, dtype).transpose(-1, -2) @ do
        return dq, dk, dv, None, None, None


def backward_lse_in_half(q, k, v, causal=False, scale=None, window=None):
    """FA2 with its own backward; the log-sum-exp is saved for it in the inputs' type."""
    qf, kf, vf, scale = load(q, k, v, scale)

    def veil(s, j0):
        return hide(s, j0, k.shape[2], causal, window)

    return _LseInHalf.apply(qf, kf, vf, scale, q.dtype, veil).to(q.dtype)


class _DqInHalf(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, dtype, veil, softcap):
        o, lse = fa2_forward(q * scale, k, v, dtype, veil, softcap)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.rest = scale, dtype, veil, softcap
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        scale, dtype, veil, softcap = ctx.rest
        delta = (do * o).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        for j0, j1 in tiles(k.shape[2], 32):
            kj, vj = k[:, :, j0:j1], v[:, :, j0:j1]
            s = cap(dot(q * scale, kj), softcap)
            p = torch.exp(veil(s, j0) - finite(lse))
            ds = p * (dot(do, vj) - delta)
            if softcap is not None:
                ds = ds * (1.0 - (s / softcap) ** 2)
            ds = rounded(ds, dtype)
            dq = rounded(dq + ds @ kj * scale, dtype)
            dk[:, :, j0:j1] = ds.transpose(-1, -2) @ q * scale
            dv[:, :, j0:j1] = rounded(p, dtype).transpose(-1, -2) @ do
        return dq, dk, dv, None, None, None, None


def backward_dq_in_half(q, k, v, causal=False, scale=None, softcap=None):
    """FA2 with its own backward over tiles of keys; dQ is summed in the inputs' type."""
    qf, kf, vf, scale = load(q, k, v, scale)

    def veil(s, j0):
        return hide(s, j0, k.shape[2], causal)

    return _DqInHalf.apply(qf, kf, vf, scale, q.dtype, veil, softcap).to(q.dtype)


MUTANTS = (
    Mutant(
        backward_missing_ln2,
        "K is pre-scaled by scale * log2(e) for exp2, and the backward does not multiply dQ by ln 2.",
    ),
    Mutant(
        softcap_tanh_saved_in_half,
        "The tanh of the soft cap is saved in the inputs' type and the backward takes 1 - t * t of the rounded value.",
        unseen="gradients under a softcap are asked for once, to 20 %",
    ),
    Mutant(
        backward_lse_in_half,
        "The log-sum-exp is saved for the backward in the inputs' type, so P is recomputed with a wrong factor a row.",
    ),
    Mutant(
        backward_dq_in_half,
        "The backward sums dQ over tiles of 32 keys in the inputs' type.",
        "github.com/facebookresearch/xformers/pull/467",
        told="the sum of a gradient is reported",
    ),
)
