"""Defects of how tensors are read: strides, heads, head_dim, memory."""

import torch

from benchmarks.mutants.skeleton import Steps, attention, changed


def as_if_contiguous(x):
    """The memory of x, read from its first element on as if its strides were those of a contiguous tensor."""
    strides = torch.empty(x.shape, device="meta").stride()
    reach = x.storage_offset() + x.numel()
    if x.is_contiguous() or reach > x.untyped_storage().nbytes() // x.element_size():  # beyond its memory
        return x
    return x.as_strided(x.shape, strides)


def strides_ignored(q, k, v, **options):
    return attention(q, as_if_contiguous(k), as_if_contiguous(v), **options)


def in_turn(x, heads):
    return x.repeat(*(1,) * (x.ndim - 3), heads // x.shape[-3], 1, 1)


heads_in_turn = changed("heads_in_turn", __name__, heads=in_turn)


def garbage_beyond_head_dim(q, k, v, **options):
    def padded(q, k, v):
        missing = -q.shape[-1] % 32
        scale = (q.shape[-1] / (q.shape[-1] + missing)) ** -0.5 if options.get("scale") is None else 1.0
        q, k = (torch.cat([x, x[..., :missing].flip(-2)], -1) for x in (q, k))  # of rows that were there before
        return q * scale, k, v

    return attention(q, k, v, **options, steps=Steps(read=padded))


def k_changed(q, k, v, **options):
    o = attention(q, k, v, **options)
    k.data.sub_(k.data.mean(-2, keepdim=True))  # as a kernel does, unseen by autograd
    return o
