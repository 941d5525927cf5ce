"""Defects of the backward pass, by a second author: edges."""

import torch

from benchmarks.mutants.skeleton import Mutant
from benchmarks.second_mutants.edges_steps import (
    acc_type,
    finish,
    finite,
    hide,
    rounded,
    state,
    step,
    sum_groups,
    tiles,
    upcast,
    whole_row,
)


class _GroupScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        qf, kf, vf = upcast(q, k, v)
        s = hide(qf @ kf.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal)
        o, lse = whole_row(s, vf, q.dtype)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.args = causal, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        causal, scale = ctx.args
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        s = hide(qf @ kf.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal)
        p = torch.exp(s - finite(lse))
        ds = p * (g @ vf.mT - (g * o.to(qf.dtype)).sum(-1, keepdim=True))
        p, ds = rounded(p, q.dtype), rounded(ds, q.dtype)
        group = q.shape[1] // k.shape[1]
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(q.shape[1]):
            dk[:, h // group] = (ds[:, h].mT @ qf[:, h] * scale).to(k.dtype)
            dv[:, h // group] = (p[:, h].mT @ g[:, h]).to(v.dtype)
        return (ds @ kf * scale).to(q.dtype), dk, dv, None, None


def head_by_head_backward(q, k, v, causal=False, scale=None):
    return _GroupScatter.apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)


class _RecomputedP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale, window):
        qf, kf, vf = upcast(q, k, v)
        s = hide(qf @ kf.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal, window)
        o, lse = whole_row(s, vf, q.dtype)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.args = causal, scale, window
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        causal, scale, window = ctx.args
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        s = hide(qf @ kf.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal, window)
        p = torch.exp(s - lse)
        ds = p * (g @ vf.mT - (g * o.to(qf.dtype)).sum(-1, keepdim=True))
        p, ds = rounded(p, q.dtype), rounded(ds, q.dtype)
        dk, dv = sum_groups(ds.mT @ qf * scale, k.shape[1]), sum_groups(p.mT @ g, k.shape[1])
        return (ds @ kf * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def recompute_backward(q, k, v, causal=False, scale=None, window=None):
    return _RecomputedP.apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale, window)


class _ScaledQuery(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        acc = acc_type(q)
        qf = q.to(acc)
        qf.mul_(scale)
        _, kf, vf = upcast(q, k, v)
        off = k.shape[2] - q.shape[2]
        o, l, m = state(qf, vf)
        for j0, j1 in tiles(k.shape[2], 256):
            s = hide(qf @ kf[:, :, j0:j1].mT, 0, j0, off, causal)
            o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
        o = finish(o, l, q.dtype)
        ctx.save_for_backward(q, k, v, o, m + torch.log(l))
        ctx.args = causal, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        causal, scale = ctx.args
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        s = hide(qf * scale @ kf.mT, 0, 0, k.shape[2] - q.shape[2], causal)
        p = torch.exp(s - finite(lse))
        ds = p * (g @ vf.mT - (g * o.to(qf.dtype)).sum(-1, keepdim=True))
        p, ds = rounded(p, q.dtype), rounded(ds, q.dtype)
        dk, dv = sum_groups(ds.mT @ qf * scale, k.shape[1]), sum_groups(p.mT @ g, k.shape[1])
        return (ds @ kf * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def scaled_query(q, k, v, causal=False, scale=None):
    return _ScaledQuery.apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)


class _TiledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        qf, kf, vf = upcast(q, k, v)
        s = hide(qf @ kf.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal)
        o, lse = whole_row(s, vf, q.dtype)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.args = causal, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        causal, scale = ctx.args
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        delta = (g * o.to(qf.dtype)).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), [], []
        for j0, j1 in tiles(k.shape[2], 32):
            kt, vt = kf[:, :, j0:j1], vf[:, :, j0:j1]
            s = hide(qf @ kt.mT * scale, 0, j0, k.shape[2] - q.shape[2], causal)
            p = torch.exp(s - finite(lse))
            ds = rounded(p * (g @ vt.mT - delta), q.dtype)
            dq += (ds @ kt * scale).to(q.dtype)
            dk.append(ds.mT @ qf * scale)
            dv.append(rounded(p, q.dtype).mT @ g)
        dk, dv = sum_groups(torch.cat(dk, 2), k.shape[1]), sum_groups(torch.cat(dv, 2), k.shape[1])
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None


def tiled_backward(q, k, v, causal=False, scale=None):
    return _TiledGradient.apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)


class _SavedLse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        qf, kf, vf = upcast(q, k, v)
        off = k.shape[2] - q.shape[2]
        o, l, m = state(qf, vf)
        for j0, j1 in tiles(k.shape[2], 128):
            s = hide(qf @ kf[:, :, j0:j1].mT * scale, 0, j0, off, causal)
            o, l, m = step(o, l, m, s, vf[:, :, j0:j1], q.dtype)
        o, lse = finish(o, l, q.dtype), torch.empty(*q.shape[:3], 1, dtype=q.dtype)
        lse.copy_(m + torch.log(l))
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.args = causal, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        causal, scale = ctx.args
        qf, kf, vf = upcast(q, k, v)
        g = do.to(qf.dtype)
        s = hide(qf @ kf.mT * scale, 0, 0, k.shape[2] - q.shape[2], causal)
        p = torch.exp(s - finite(lse.to(qf.dtype)))
        ds = p * (g @ vf.mT - (g * o.to(qf.dtype)).sum(-1, keepdim=True))
        p, ds = rounded(p, q.dtype), rounded(ds, q.dtype)
        dk, dv = sum_groups(ds.mT @ qf * scale, k.shape[1]), sum_groups(p.mT @ g, k.shape[1])
        return (ds @ kf * scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def saved_lse_backward(q, k, v, causal=False, scale=None):
    return _SavedLse.apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)


MUTANTS = (
    Mutant(
        head_by_head_backward,
        "The backward pass writes the dK and dV of each query head over those of the group's heads before "
        "instead of adding.",
    ),
    Mutant(recompute_backward, "The backward pass computes exp(-inf - -inf) for rows that see no key."),
    Mutant(
        scaled_query,
        "q.to(float32) is multiplied by the scale in place, which for FP32 (FP64) inputs changes the caller's q.",
    ),
    Mutant(
        tiled_backward,
        "dQ is accumulated over the key tiles (32 keys) in the inputs' dtype.",
        "github.com/facebookresearch/xformers/pull/467",
        told="the sum of a gradient is reported",
    ),
    Mutant(
        saved_lse_backward,
        "The log-sum-exp saved for the backward pass is held in the inputs' dtype.",
        "github.com/DeepLink-org/DeepLinkExt/pull/22",
    ),
)
