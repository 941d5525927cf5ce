"""tokamax (Google DeepMind): tokamax.dot_product_attention by the implementation that never holds all of S."""

from functools import cache

import torch

from attention_gallery.adapters import accepts, swapped, through_jax, to_jax, visible


@cache
def _chunked(causal, scale, n_q, n_kv):
    import jax
    from absl import flags
    from tokamax import dot_product_attention

    if not flags.FLAGS.is_parsed():  # or tokamax takes the arguments of this process for its own
        flags.FLAGS(["tokamax"])

    own = causal and n_q == n_kv  # is_causal aligns top-left, so other lengths get a mask
    mask = to_jax(visible(n_q, n_kv))[None, None] if causal and not own else None

    def fn(q, k, v):
        o = dot_product_attention(
            *map(swapped, (q, k, v)), mask=mask, scale=scale, is_causal=own, implementation="xla_chunked"
        )
        return swapped(o)

    return jax.jit(fn)


@accepts((torch.bfloat16, torch.float32), "tokamax on CPU")
def tokamax_chunked(q, k, v, causal=False, scale=None):
    """Call tokamax.dot_product_attention(implementation="xla_chunked"): tiles of 512 queries and 1,024 keys."""
    return through_jax(_chunked(causal, scale, q.shape[2], k.shape[2]), q, k, v)
