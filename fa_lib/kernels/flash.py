"""Real flash-attention kernels, named explicitly: what cannot run says so, and nothing falls back."""

import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fa_lib.kernels.rows import check

BACKENDS = ("torch",)


def flash(q, k, v, *, backend="torch", causal=False, scale=None, mask=None, window=None, softcap=None, dropout_p=0.0):
    """A compiled flash-attention kernel, with its own gradients.

    Args:
        backend: "torch" is scaled_dot_product_attention held to its FLASH_ATTENTION backend: on CPU a compiled
            kernel for BF16, FP16, FP32 and FP64 (ATen, FlashAttentionKernel.cpp), on CUDA FlashAttention-2 for
            BF16 and FP16.
        q: (..., heads, n_q, head_dim). k, v: (..., kv_heads, n_kv, head_dim).
        causal: aligned bottom-right, as in every kernel here (torch's own `is_causal` aligns top-left).
        scale: of Q Kᵀ; None is 1 / sqrt(head_dim).
        mask, window: as `reference`, both as a mask to torch: the CPU kernel only.
        softcap, dropout_p: torch's kernel has neither a softcap nor a dropout with a given mask.

    Returns:
        o: q's shape and dtype.

    Raises:
        ValueError: an argument does not fit, or the backend's name is unknown.
        RuntimeError: the kernel cannot run on these inputs; torch's reasons are in the message.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}; accepted are {', '.join(BACKENDS)}")
    for name, value in (("softcap", softcap), ("dropout_p", dropout_p)):
        if value:
            raise ValueError(f"{name}: got {value!r}; torch's flash kernel has none: use the kernel 'tiled'")
    check(q, k, v, mask=mask, scale=scale, window=window)
    lead, n_q, n_kv = q.shape[:-2], q.shape[-2], k.shape[-2]
    own_causal = causal and n_q == n_kv and mask is None and window is None
    if window is not None or (causal and not own_causal):
        left, right = window or (None, None)
        visible = torch.ones(n_q, n_kv, dtype=torch.bool, device=q.device)
        if causal or right is not None:
            visible = visible.tril(n_kv - n_q + (0 if causal else right))
        if left is not None:
            visible = visible.triu(n_kv - n_q - left)
        if mask is None or mask.dtype == torch.bool:
            mask = visible if mask is None else mask & visible
        else:
            mask = mask.masked_fill(~visible, -torch.inf)
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.to(q.dtype)).expand(*lead, n_q, n_kv)
        mask = mask.reshape(-1, *mask.shape[-3:]) if mask.ndim > 3 else mask.reshape(1, -1, n_q, n_kv)
    four = [x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:]) for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            o = torch.nn.functional.scaled_dot_product_attention(
                *four,
                attn_mask=mask,
                is_causal=own_causal,
                scale=scale,
                enable_gqa=four[0].shape[1] != four[1].shape[1],
            )
        except RuntimeError as error:
            why = " ".join(str(reason.message).split(" (Triggered")[0] for reason in reasons) or error
            raise RuntimeError(f"torch's FLASH_ATTENTION cannot run {q.dtype} on {q.device}: {why}") from error
    return o.reshape(*lead, n_q, v.shape[-1])
