"""Kernels written in Triton, on CUDA alone: xformers' split-K, SageAttention.

q, k, v and o are (batch, heads, n, head_dim); o is in q's dtype.
"""

from torch import Tensor

from attention_gallery.adapters import repeated, softmax_scale, swapped, without_gradients


def xformers_split_k(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call xformers' memory_efficient_attention_forward by triton_splitk.FwOp, which chooses the number of parts.

    With a causal mask all sequences are packed one behind another, as in decoding, with at most 16 queries.

    Raises:
        NotImplementedError: an input requires a gradient, or causal with more queries than keys.
    """
    from xformers.ops import fmha  # pyright: ignore[reportMissingImports]

    without_gradients(q, k, v, "xformers' split-K kernel has no gradients")
    batch, heads, n_q, _ = q.shape
    n_kv, bias = k.shape[2], None
    tensors = [swapped(x).contiguous() for x in (q, *repeated(q, k, v))]
    if causal:
        if n_q > n_kv:
            raise NotImplementedError(f"causal with {n_q} queries and {n_kv} keys: a query would see no key")
        masks = fmha.attn_bias.BlockDiagonalCausalWithOffsetPaddedKeysMask
        bias = masks.from_seqlens(q_seqlen=[n_q] * batch, kv_padding=n_kv, kv_seqlen=[n_kv] * batch, device=q.device)
        tensors = [x.flatten(0, 1)[None] for x in tensors]
    op = fmha.triton_splitk.FwOp
    o = fmha.memory_efficient_attention_forward(*tensors, bias, scale=softmax_scale(q, scale), op=op)
    return swapped(o.reshape(batch, n_q, heads, -1))


def xformers_default(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call xformers.ops.memory_efficient_attention by the operator that xformers chooses."""
    from xformers.ops import fmha  # pyright: ignore[reportMissingImports]

    bias = fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    tensors = (swapped(x) for x in (q, *repeated(q, k, v)))
    return swapped(fmha.memory_efficient_attention(*tensors, bias, scale=softmax_scale(q, scale)))


def sageattention_a100(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call `sageattention` on a CPU, in a GPU's arithmetic."""
    return sageattention(q, k, v, causal, scale)


def sageattention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call sageattention.sageattn of version 1: Q and K in 8 bits, V in FP16. It writes into K, so it gets a copy.

    Without a causal mask up to 63 keys of zeros behind the last one count (attn_qk_int8_per_block.py, line 18).

    Raises:
        NotImplementedError: an input requires a gradient, or causal with n_q unlike n_kv.
    """
    from sageattention import sageattn  # pyright: ignore[reportMissingImports]

    without_gradients(q, k, v, "SageAttention has no gradients")
    if causal and q.shape[2] != k.shape[2]:
        raise NotImplementedError("SageAttention aligns its causal mask top-left; it needs n_q = n_kv")
    k, v = repeated(q, k, v)
    return sageattn(q.contiguous(), k.clone(), v.contiguous(), is_causal=causal, sm_scale=softmax_scale(q, scale))
