"""MLX (Apple) on its CPU backend: mlx.core.fast.scaled_dot_product_attention."""

from typing import Any

import numpy as np
import torch

from attention_gallery.adapters import HALF, accepts, bf16_bits, from_bf16_bits, seen


def _to_mlx(x):
    import mlx.core as mx

    if x.dtype == torch.bfloat16:
        return mx.array(bf16_bits(x)).view(mx.bfloat16)
    return mx.array(x.detach().contiguous().numpy())


@accepts("MLX", (*HALF, torch.float32))
def mlx_sdpa(q, k, v, causal=False, scale: Any = None, mask=None):
    """Call scaled_dot_product_attention on the CPU, where MLX writes S and P out."""
    import mlx.core as mx

    mask = seen(q, k, causal, mask)
    mask = None if mask is None else mx.array(mask.numpy()) if mask.dtype == torch.bool else _to_mlx(mask)
    with mx.stream(mx.cpu):
        o = mx.fast.scaled_dot_product_attention(*map(_to_mlx, (q, k, v)), scale=scale, mask=mask)
        return from_bf16_bits(np.array(o.view(mx.int16))) if o.dtype == mx.bfloat16 else torch.from_numpy(np.array(o))
