"""MLX (Apple) on its CPU backend: mlx.core.fast.scaled_dot_product_attention.

q, k, v and o are (batch, heads, n, head_dim); o is in q's dtype.
"""

import numpy as np
import torch
from torch import Tensor

from attention_gallery.adapters import bf16_bits, from_bf16_bits, from_numpy, only_dtypes, seen, softmax_scale


def _to_mlx(x):
    import mlx.core as mx

    if x.dtype == torch.bfloat16:
        return mx.array(bf16_bits(x)).view(mx.bfloat16)
    return mx.array(x.detach().contiguous().numpy())


def mlx_sdpa(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Call scaled_dot_product_attention on the CPU, where MLX writes S and P out.

    Raises:
        NotImplementedError: FP64.
    """
    import mlx.core as mx

    only_dtypes(q, (torch.bfloat16, torch.float16, torch.float32), "MLX")
    mask = seen(q, k, causal, mask)
    mask = None if mask is None else mx.array(mask.numpy()) if mask.dtype == torch.bool else _to_mlx(mask)
    with mx.stream(mx.cpu):
        o = mx.fast.scaled_dot_product_attention(*map(_to_mlx, (q, k, v)), scale=softmax_scale(q, scale), mask=mask)
        return from_bf16_bits(np.array(o.view(mx.int16))) if o.dtype == mx.bfloat16 else from_numpy(np.array(o))
