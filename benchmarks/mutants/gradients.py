"""Defects of the backward pass; outputs are right."""

import torch

from benchmarks.mutants.calls import order_by_chance
from benchmarks.mutants.skeleton import attention, changed, repeated


class Altered(torch.autograd.Function):
    """x, whose gradient is changed by a function."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return ctx.change(dx), None


def dv_wrong_at_96(q, k, v, **options):
    def shifted(dv):
        return dv.roll(1, -1) if dv.shape[-1] == 96 else dv

    return attention(q, k, Altered.apply(v, shifted), **options)


def dk_not_scaled(q, k, v, **options):
    factor = q.shape[-1] ** 0.5 if options.get("scale") is None else 1 / options["scale"]
    return attention(q, Altered.apply(k, lambda dk: dk * factor), v, **options)


class Swapped(torch.autograd.Function):
    """K and V, each with the other's gradient where they have one shape."""

    @staticmethod
    def forward(ctx, k, v):
        ctx.same = k.shape == v.shape
        return k.view_as(k), v.view_as(v)

    @staticmethod
    def backward(ctx, dk, dv):
        return (dv, dk) if ctx.same else (dk, dv)


def dk_and_dv_swapped(q, k, v, **options):
    return attention(q, *Swapped.apply(k, v), **options)


def one_of_group(x, heads):
    group = heads // x.shape[-3]
    last = torch.arange(heads) % group == group - 1  # the last to write, where all should be added
    return Altered.apply(repeated(x, heads), lambda dx: dx * last[:, None, None])


shared_heads_lost = changed("shared_heads_lost", __name__, heads=one_of_group)


def constant(O, l):
    return O / l.detach().where(l > 0, 1)  # dS = P dP, without the row's delta


delta_forgotten = changed("delta_forgotten", __name__, divide=constant)


class ByChance(torch.autograd.Function):
    """Attention whose gradients are those of tiles added up in an order of chance."""

    @staticmethod
    def forward(ctx, q, k, v, options):
        ctx.given, ctx.options = (q, k, v), options
        return attention(q, k, v, **options)

    @staticmethod
    def backward(ctx, dO):
        with torch.enable_grad():
            given = [x.detach().requires_grad_() for x in ctx.given]
            grads = torch.autograd.grad(order_by_chance(*given, **ctx.options), given, dO)
        return *grads, None


def dq_by_chance(q, k, v, **options):
    return ByChance.apply(q, k, v, options)
