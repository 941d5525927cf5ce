"""Adapters for kernels of other libraries: torch tensors in their layouts, arrays and masks, and in several calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

Kernel = Callable[..., Tensor]  # f(q, k, v, causal=False, scale=None) on (batch, heads, n, head_dim); mask=None
HALF = (torch.bfloat16, torch.float16)


def accepts(
    named: str = "", dtypes: tuple[torch.dtype, ...] = (), widths: tuple[int, ...] = (), *, gradients: bool = True,
    scaled: bool = True, masked: bool = True, top_left: bool = False, square: bool = False, tall: bool = True,
    added: bool = True, queries: int = 0,
) -> Callable[[Kernel], Kernel]:  # fmt: skip
    """Make a decorator for the adapter of a project's kernel, f(q, k, v, causal=False, scale=None, ...) with q, o
    (batch, heads, n_q, head_dim), k and v (batch, kv_heads, n_kv, head_dim): it raises NotImplementedError for what the
    kernel lacks, and f gets the scale as a number.

    Args:
        named: the kernel, as errors name it. dtypes, widths: the dtypes and head_dims that it has; () is all.
        gradients, scaled, masked: whether it has gradients, another scale than the default, a causal mask.
        top_left: whether it aligns its causal mask top-left, so that n_q = n_kv is needed. square: whether that is
            needed in all calls. tall: whether there may be more queries than keys under a causal mask.
        added: whether it takes masks that are added.
        queries: the most of one call, as of `queries_at_a_time`; 0 is all.
    """

    def decorate(fn):
        @wraps(fn)
        def kernel(q, k, v, causal=False, scale=None, **options):
            n_q, n_kv, d, own, mask = q.shape[2], k.shape[2], q.shape[3], q.shape[3] ** -0.5, options.get("mask")
            other_scale = scale is not None and abs(scale / own - 1) > 1e-6
            for is_lacking, words in (
                (not gradients and wants_gradients(q, k, v), "has no gradients"),
                (widths and d not in widths, f"has head_dim {widths} here; got {d}"),
                (other_scale and not scaled, f"scales Q Kᵀ by 1 / sqrt(head_dim) = {own:.4g}; scale = {scale} came"),
                (square and n_q != n_kv, f"takes one length for queries and keys; got {n_q} and {n_kv}"),
                (causal and not masked, "has no causal mask"),
                (causal and top_left and n_q != n_kv, "aligns its causal mask top-left; it needs n_q = n_kv"),
                (causal and not tall and n_q > n_kv, f"has no causal mask for {n_q} queries and {n_kv} keys"),
                (mask is not None and not added and mask.dtype != torch.bool, "takes boolean masks alone"),
            ):
                if is_lacking:
                    raise NotImplementedError(f"{named} {words}")
            if dtypes:
                only_dtypes(q, dtypes, named)
            one_call = partial(fn, **options)
            every_call = queries_at_a_time(one_call, queries) if queries else one_call
            return every_call(q, k, v, causal, softmax_scale(q, scale))

        return kernel

    return decorate


def softmax_scale(q: Tensor, scale: float | None) -> float:
    """Return the factor of Q Kᵀ: `scale`, or 1 / sqrt(head_dim) of q (..., head_dim) where it is None."""
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def only_dtypes(q: Tensor, dtypes: tuple[torch.dtype, ...], project: str) -> None:
    """Raise NotImplementedError for a dtype that a project's kernel does not have; q: of any shape."""
    if q.dtype not in dtypes:
        raise NotImplementedError(f"{project} has {', '.join(map(dtype_name, dtypes))}; q is {dtype_name(q.dtype)}")


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name, as "bfloat16"."""
    return f"{dtype}".removeprefix("torch.")


def wants_gradients(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Say whether a call is one of training: an input requires a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))


def visible(n_q: int, n_kv: int) -> Tensor:
    """Make the causal mask aligned bottom-right, bool (n_q, n_kv): True where query i sees key j <= i + n_kv - n_q."""
    return torch.ones(n_q, n_kv, dtype=torch.bool).tril(n_kv - n_q)


def seen(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Combine a causal mask, aligned bottom-right, and another one, bool or added to the scores (..., n_q, n_kv), or
    None: a mask of one of these kinds, or None. q, k: (batch, heads, n, head_dim)."""
    if not causal:
        return mask
    below = visible(q.shape[2], k.shape[2]).to(q.device)
    if mask is None or mask.dtype == torch.bool:
        return below if mask is None else below & mask
    return mask.masked_fill(~below, -math.inf)


def in_4_dims(mask: Tensor | None) -> Tensor | None:
    """Give a mask (..., n_q, n_kv) all 4 dimensions, (batch, heads, n_q, n_kv), with 1 for the missing ones."""
    return None if mask is None else mask[(None,) * (4 - mask.ndim)]


def swapped(x: Any) -> Any:
    """Turn (batch, heads, n, head_dim) into (batch, n, heads, head_dim), or back; x: a tensor or a JAX array."""
    return x.swapaxes(1, 2)


def packed(x: Tensor) -> Tensor:
    """Turn (batch, heads, n, head_dim) into (batch, n, heads * head_dim), a layout of ONNX Runtime."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def unpacked(x: Tensor, heads: int) -> Tensor:
    """Turn (batch, n, heads * head_dim) into (batch, heads, n, head_dim)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2).contiguous()


def tokens(x: Tensor) -> Tensor:
    """Lay all tokens one behind another: (batch, heads, n, head_dim) to (batch * n, heads, head_dim)."""
    return swapped(x).flatten(0, 1).contiguous()


def from_tokens(x: Tensor, batch: int) -> Tensor:
    """Turn (batch * n, heads, head_dim) into (batch, heads, n, head_dim)."""
    return swapped(x.unflatten(0, (batch, -1)))


def starts(batch: int, length: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return where each of `batch` sequences of this length begins, and the end, (batch + 1)."""
    return torch.arange(batch + 1, dtype=dtype) * length


def lengths(batch: int, length: int) -> Tensor:
    """Return the length of each of `batch` sequences, int32 (batch)."""
    return torch.full((batch,), length, dtype=torch.int32)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each head of k and v (batch, kv_heads, n_kv, head_dim) for the heads of q (batch, heads, n_q, head_dim)
    that share it, for libraries without GQA: (batch, heads, n_kv, head_dim) each."""
    times = q.shape[1] // k.shape[1]
    return (k, v) if times == 1 else (k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def padded(x: Tensor, multiple: int, value: float = 0) -> Tensor:
    """Append rows of a value to x (batch, heads, n, head_dim), until n is a multiple. The caller hides padded keys."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[2] % multiple), value=value)


def pages(x: Tensor, size: int, value: float = 0) -> Tensor:
    """Lay x (batch, heads, n, head_dim) out in pages of `size` keys, one sequence behind another, (pages, size, heads,
    head_dim); value: of places without a key."""
    return swapped(padded(x, size, value)).unflatten(1, (-1, size)).flatten(0, 1).contiguous()


def page_table(x: Tensor, size: int) -> Tensor:
    """Return the pages of each sequence of x, as of `pages`: int32 (batch, pages of a sequence)."""
    count = -(-x.shape[2] // size)
    return torch.arange(len(x) * count, dtype=torch.int32).view(len(x), count)


def queries_at_a_time(fn: Kernel, count: int = 1) -> Kernel:
    """Make the kernel that calls `fn`, of q, k, v and o (batch, heads, n, head_dim), with at most `count` queries at a
    time: 1 as in decoding, a few as in speculative decoding. With causal=True each call gets only the keys that its
    last query sees, as a KV cache holds them."""

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        outputs = []
        for rows, keys in calls_of(q.shape[2], k.shape[2], count, causal):
            mask = causal and rows.stop - rows.start > 1
            outputs.append(fn(q[:, :, rows], k[:, :, :keys], v[:, :, :keys], causal=mask, scale=scale))
        return torch.cat(outputs, 2)

    return call


def calls_of(n_q: int, n_kv: int, count: int, causal: bool) -> Iterator[tuple[slice, int]]:
    """Cut a call into calls of at most `count` queries, and yield of each the slice of its queries and the number of
    keys, those that the last of them sees. Where a query would see no key, it raises NotImplementedError."""
    for first in range(0, n_q, count):
        stop = min(first + count, n_q)
        keys = n_kv - n_q + stop if causal else n_kv
        if keys < stop - first:
            raise NotImplementedError(f"causal with {n_q} queries and {n_kv} keys: a query would see no key")
        yield slice(first, stop), keys


def bf16_bits(x: Tensor) -> np.ndarray:
    """Return a BF16 tensor's bits as an int16 array of its shape, since numpy has no BF16."""
    return x.detach().contiguous().view(torch.int16).numpy()


def from_bf16_bits(bits: np.ndarray) -> Tensor:
    """Copy an array of 16-bit items, the bits of BF16 values, into a BF16 tensor of its shape."""
    return torch.from_numpy(np.array(bits).view(np.int16)).view(torch.bfloat16)


def to_jax(x: Tensor) -> Any:
    """Copy a tensor into a JAX array of its shape and dtype, by DLPack: JAX takes its arrays to be immutable."""
    import jax  # pyright: ignore[reportMissingImports]

    return jax.dlpack.from_dlpack(x.detach().clone(memory_format=torch.contiguous_format))


def from_jax(x: Any) -> Tensor:
    """Copy a JAX array into a tensor of its shape, by DLPack."""
    return torch.from_dlpack(x.block_until_ready()).clone()


def through_jax(fn: Callable, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call fn(q, k, v) -> o, a function of JAX arrays, with torch tensors q, k, v and o (batch, heads, n, head_dim); o
    has q's dtype, and its gradients are jax.vjp's. FP64, which JAX has only after
    jax.config.update("jax_enable_x64", True), raises NotImplementedError."""
    only_dtypes(q, (torch.bfloat16, torch.float16, torch.float32), "JAX with its default settings")
    if wants_gradients(q, k, v):
        return _ThroughJax.apply(fn, q, k, v)
    return from_jax(fn(*map(to_jax, (q, k, v)))).to(q.dtype)


class _ThroughJax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, q, k, v):
        import jax  # pyright: ignore[reportMissingImports]

        o, ctx.vjp = jax.vjp(fn, *map(to_jax, (q, k, v)))
        ctx.o = o.dtype
        return from_jax(o).to(q.dtype)

    @staticmethod
    def backward(ctx, dO):
        return None, *map(from_jax, ctx.vjp(to_jax(dO).astype(ctx.o)))
