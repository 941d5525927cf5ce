"""What a kernel of another library needs to be called with torch tensors: layouts, arrays, masks, several calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

Kernel = Callable[..., Tensor]  # f(q, k, v, causal=False, scale=None) on (batch, heads, n, head_dim); mask=None


def softmax_scale(q: Tensor, scale: float | None) -> float:
    """The factor of Q Kᵀ: `scale`, or 1 / sqrt(head_dim) where it is None."""
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def only_default_scale(q: Tensor, scale: float | None, project: str) -> None:
    """For a kernel that has no argument for the scale.

    Raises:
        NotImplementedError: scale is not 1 / sqrt(head_dim).
    """
    own = q.shape[-1] ** -0.5
    if scale is not None and abs(scale / own - 1) > 1e-6:
        raise NotImplementedError(f"{project} scales Q Kᵀ by 1 / sqrt(head_dim) = {own:.4g}; scale = {scale:.4g} came")


def only_dtypes(q: Tensor, dtypes: tuple[torch.dtype, ...], project: str) -> None:
    """For a kernel that does not have every dtype.

    Raises:
        NotImplementedError: q's dtype is none of `dtypes`.
    """
    if q.dtype not in dtypes:
        has = ", ".join(f"{dtype}".removeprefix("torch.") for dtype in dtypes)
        raise NotImplementedError(f"{project} has {has}; q is {q.dtype}".replace("torch.", ""))


def visible(n_q: int, n_kv: int) -> Tensor:
    """The causal mask aligned bottom-right, boolean (n_q, n_kv): True where query i sees key j <= i + n_kv - n_q."""
    return torch.ones(n_q, n_kv, dtype=torch.bool).tril(n_kv - n_q)


def seen(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """A causal mask and another one as one: boolean, or to be added to the scores; None where there is none."""
    if not causal:
        return mask
    below = visible(q.shape[2], k.shape[2]).to(q.device)
    if mask is None or mask.dtype == torch.bool:
        return below if mask is None else below & mask
    return mask.masked_fill(~below, -math.inf)


def in_4_dims(mask: Tensor | None) -> Tensor | None:
    """A mask (batch, heads, queries, keys), ones where it had no dimension."""
    return None if mask is None else mask[(None,) * (4 - mask.ndim)]


def swapped(x: Any) -> Any:
    """(batch, heads, n, head_dim) as (batch, n, heads, head_dim), and back: a tensor, or an array with `swapaxes`."""
    return x.swapaxes(1, 2)


def packed(x: Tensor) -> Tensor:
    """(batch, heads, n, head_dim) as (batch, n, heads * head_dim), a layout of ONNX Runtime."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def unpacked(x: Tensor, heads: int) -> Tensor:
    """(batch, n, heads * head_dim) as (batch, heads, n, head_dim)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2).contiguous()


def repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """K and V with each head repeated for the heads of Q that share it, for libraries without GQA."""
    times = q.shape[1] // k.shape[1]
    return (k, v) if times == 1 else (k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def padded(x: Tensor, multiple: int) -> Tensor:
    """x (batch, heads, n, head_dim) with rows of zeros after its n, up to a multiple. The caller hides padded keys."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[2] % multiple))


def queries_at_a_time(fn: Kernel, count: int) -> Kernel:
    """The kernel that asks `fn` for `count` queries in each call: 1 as in decoding, a few as in speculative decoding.

    With causal=True a call gets the keys that its last query sees, and no more, as a KV cache holds them.
    """

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        outputs = []
        for some, keys in calls_of(q.shape[2], k.shape[2], count, causal):
            mask, own = causal and some.stop - some.start > 1, slice(keys)
            outputs.append(fn(q[:, :, some], k[:, :, own], v[:, :, own], causal=mask, scale=scale))
        return torch.cat(outputs, 2)

    return call


def calls_of(n_q: int, n_kv: int, count: int, causal: bool) -> Iterator[tuple[slice, int]]:
    """The queries of each call of at most `count`, and the number of keys that it gets: those that its last query sees.

    Raises:
        NotImplementedError: a query would see no key.
    """
    for first in range(0, n_q, count):
        stop = min(first + count, n_q)
        keys = n_kv - n_q + stop if causal else n_kv
        if keys < stop - first:
            raise NotImplementedError(f"causal with {n_q} queries and {n_kv} keys: a query would see no key")
        yield slice(first, stop), keys


def bf16_bits(x: Tensor) -> np.ndarray:
    """A BF16 tensor's bits as an array of 16-bit whole numbers, since numpy has no BF16."""
    return x.detach().contiguous().view(torch.int16).numpy()


def from_bf16_bits(bits: np.ndarray) -> Tensor:
    """The BF16 tensor of an array of 16-bit items that hold its bits; a copy."""
    return torch.from_numpy(np.array(bits).view(np.int16)).view(torch.bfloat16)


def to_numpy(x: Tensor) -> np.ndarray:
    """A tensor as an array of its dtype; BF16 is ml_dtypes.bfloat16."""
    if x.dtype != torch.bfloat16:
        return x.detach().contiguous().numpy()
    import ml_dtypes  # pyright: ignore[reportMissingImports]

    return bf16_bits(x).view(ml_dtypes.bfloat16)


def from_numpy(x: np.ndarray) -> Tensor:
    """The tensor of an array, ml_dtypes.bfloat16 included; a copy, so that the library's memory may go."""
    return from_bf16_bits(x) if x.dtype.name == "bfloat16" else torch.from_numpy(np.array(x))


def to_jax(x: Tensor) -> Any:
    """A tensor as a JAX array of its dtype, by DLPack, of a copy: JAX takes its arrays to be immutable."""
    import jax  # pyright: ignore[reportMissingImports]

    return jax.dlpack.from_dlpack(x.detach().clone(memory_format=torch.contiguous_format))


def from_jax(x: Any) -> Tensor:
    """The tensor of a JAX array, by DLPack; a copy."""
    return torch.from_dlpack(x.block_until_ready()).clone()


def through_jax(fn: Callable, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """fn(q, k, v), a function of JAX arrays, called with torch tensors, in q's dtype. Its gradients are jax.vjp's.

    Raises:
        NotImplementedError: FP64, which JAX has only after jax.config.update("jax_enable_x64", True).
    """
    only_dtypes(q, (torch.bfloat16, torch.float16, torch.float32), "JAX with its default settings")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
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
