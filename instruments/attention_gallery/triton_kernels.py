"""Kernels written in Triton, on CUDA alone: xformers' split-K, SageAttention."""

from attention_gallery.adapters import accepts, repeated, swapped


@accepts(no_gradients="xformers' split-K kernel has no gradients", tall=False)
def xformers_split_k(q, k, v, causal=False, scale=None):
    """Call xformers' memory_efficient_attention_forward by triton_splitk.FwOp, which chooses the number of parts.

    With a causal mask all sequences are packed one behind another, as in decoding, with at most 16 queries."""
    from xformers.ops import fmha  # pyright: ignore[reportMissingImports]

    batch, heads, n_q, _ = q.shape
    n_kv, bias = k.shape[2], None
    tensors = [swapped(x).contiguous() for x in (q, *repeated(q, k, v))]
    if causal:
        masks = fmha.attn_bias.BlockDiagonalCausalWithOffsetPaddedKeysMask
        bias = masks.from_seqlens(q_seqlen=[n_q] * batch, kv_padding=n_kv, kv_seqlen=[n_kv] * batch, device=q.device)
        tensors = [x.flatten(0, 1)[None] for x in tensors]
    o = fmha.memory_efficient_attention_forward(*tensors, bias, scale=scale, op=fmha.triton_splitk.FwOp)
    return swapped(o.reshape(batch, n_q, heads, -1))


@accepts()
def xformers_default(q, k, v, causal=False, scale=None):
    """Call xformers.ops.memory_efficient_attention by the operator that xformers chooses."""
    from xformers.ops import fmha  # pyright: ignore[reportMissingImports]

    bias = fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    tensors = (swapped(x) for x in (q, *repeated(q, k, v)))
    return swapped(fmha.memory_efficient_attention(*tensors, bias, scale=scale))


@accepts(no_gradients="SageAttention has no gradients", top_left="SageAttention")
def sageattention(q, k, v, causal=False, scale=None):
    """Call sageattention.sageattn of version 1: Q and K in 8 bits, V in FP16. It writes into K, so it gets a copy.

    Without a causal mask up to 63 keys of zeros behind the last one count (attn_qk_int8_per_block.py, line 18).
    """
    from sageattention import sageattn  # pyright: ignore[reportMissingImports]

    k, v = repeated(q, k, v)
    return sageattn(q.contiguous(), k.clone(), v.contiguous(), is_causal=causal, sm_scale=scale)


sageattention_a100 = sageattention  # on a CPU, in a GPU's arithmetic
