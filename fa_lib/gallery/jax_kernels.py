"""The attention of JAX itself, jax.nn.dot_product_attention: compiled by XLA, or cuDNN's."""

from functools import cache

import torch
from torch import Tensor

from fa_lib.gallery.adapters import only_dtypes, softmax_scale, swapped, through_jax, to_jax, visible


@cache
def _dot_product(causal, scale, n_q, n_kv, implementation, device):
    import jax

    own = causal and n_q == n_kv  # is_causal aligns top-left, so other lengths get a mask
    mask = to_jax(visible(n_q, n_kv).to(device))[None, None] if causal and not own else None

    def fn(q, k, v):
        how = dict(mask=mask, scale=scale, is_causal=own, implementation=implementation)
        return swapped(jax.nn.dot_product_attention(*map(swapped, (q, k, v)), **how))

    return jax.jit(fn)


def jax_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """jax.nn.dot_product_attention, implementation "xla": softmax in FP32, then P rounded to the inputs' format."""
    if q.device.type == "cpu":
        only_dtypes(q, (torch.bfloat16, torch.float32), "jax.nn.dot_product_attention on CPU")
    fn = _dot_product(causal, softmax_scale(q, scale), q.shape[2], k.shape[2], "xla", q.device)
    return through_jax(fn, q, k, v)


def jax_cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """jax.nn.dot_product_attention(implementation="cudnn"), on CUDA alone."""
    fn = _dot_product(causal, softmax_scale(q, scale), q.shape[2], k.shape[2], "cudnn", q.device)
    return through_jax(fn, q, k, v)
