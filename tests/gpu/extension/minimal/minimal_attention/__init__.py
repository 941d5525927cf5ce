"""Two attention kernels of an extension that a setup.py builds, as torch's operators."""

import torch

from minimal_attention import _C  # noqa: F401  its operators


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, initial):
        o, total, top = torch.ops.minimal.forward(q, k, v, scale, initial)
        ctx.save_for_backward(q, k, v, o, total, top)
        ctx.scale = scale
        return o

    @staticmethod
    def backward(ctx, gradient):
        return *torch.ops.minimal.backward(gradient.contiguous(), *ctx.saved_tensors, ctx.scale), None, None


def attention(q, k, v, *, scale=None, initial=True):
    """FP32, of head_dim 32 or 64, with gradients. initial: whether l and m begin with 0 and -inf; else nobody writes
    them."""
    return _Attention.apply(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, initial)


def half_attention(q, k, v, *, scale=None):
    """FP16 on tensor cores by wmma, of head_dim 64 and lengths that are multiples of 16."""
    return torch.ops.minimal.half_forward(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale)
