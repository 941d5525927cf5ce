"""The attention of JAX itself, jax.nn.dot_product_attention: compiled by XLA, or cuDNN's."""

from functools import cache, partial

import torch

from attention_gallery.adapters import accepts, in_4_dims, only_dtypes, seen, swapped, through_jax, to_jax


@cache
def _dot_product(own, scale, implementation):
    """Compile the function. own: whether it is causal by the library's own mask, which is aligned top-left."""
    import jax

    def fn(mask, bias, q, k, v):
        how = dict(mask=mask, bias=bias, scale=scale, is_causal=own, implementation=implementation)
        return swapped(jax.nn.dot_product_attention(*map(swapped, (q, k, v)), **how))

    return jax.jit(fn)


def _call(q, k, v, causal, scale, mask, implementation):
    own = causal and mask is None and q.shape[2] == k.shape[2]
    mask = None if own else seen(q, k, causal, mask)
    full = in_4_dims(mask)  # (batch, heads, n_q, n_kv), each of the first two also 1
    array = None if full is None else to_jax(full)
    mask_and_bias = (array, None) if mask is None or mask.dtype == torch.bool else (None, array)
    return through_jax(partial(_dot_product(own, scale, implementation), *mask_and_bias), q, k, v)


@accepts()
def jax_dot_product(q, k, v, causal=False, scale=None, mask=None):
    """Call jax.nn.dot_product_attention, implementation "xla": softmax in FP32, then P rounded to the inputs'
    format."""
    if q.device.type == "cpu":
        only_dtypes(q, (torch.bfloat16, torch.float32), "jax.nn.dot_product_attention on CPU")
    return _call(q, k, v, causal, scale, mask, "xla")


@accepts()
def jax_cudnn(q, k, v, causal=False, scale=None):
    """Call jax.nn.dot_product_attention(implementation="cudnn"), on CUDA alone."""
    return _call(q, k, v, causal, scale, None, "cudnn")
