"""The attention of JAX itself, compiled by XLA for the CPU: jax.nn.dot_product_attention."""

from functools import cache

import torch
from torch import Tensor

from fa_lib.gallery.adapters import only_dtypes, softmax_scale, swapped, through_jax, to_jax, visible


@cache
def _dot_product(causal, scale, n_q, n_kv):
    import jax

    own = causal and n_q == n_kv  # is_causal aligns top-left, so other lengths get a mask
    mask = to_jax(visible(n_q, n_kv))[None, None] if causal and not own else None

    def fn(q, k, v):
        o = jax.nn.dot_product_attention(*map(swapped, (q, k, v)), mask=mask, scale=scale, is_causal=own)
        return swapped(o)

    return jax.jit(fn)


def jax_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """jax.nn.dot_product_attention, implementation "xla": softmax in FP32, then P rounded to the inputs' format."""
    only_dtypes(q, (torch.bfloat16, torch.float32), "jax.nn.dot_product_attention on CPU")
    return through_jax(_dot_product(causal, softmax_scale(q, scale), q.shape[2], k.shape[2]), q, k, v)
