"""flash-attention-jax (lucidrains), whose tiles are 1,024 queries and 1,024 keys."""

from functools import cache

from attention_gallery.adapters import only_default_scale, repeated, through_jax


@cache
def _flash(causal):
    import flash_attention_jax as flash
    import jax.numpy as jnp

    if causal:
        return flash.causal_flash_attention
    return lambda q, k, v: flash.flash_attention(q, k, v, jnp.ones((k.shape[0], k.shape[2]), bool))


def flash_attention_jax(q, k, v, causal=False, scale=None):
    """Call flash_attention_jax.flash_attention with a mask of keys that hides none, or causal_flash_attention.

    It is wrong where n is no multiple of its tiles: a slice that would pass the end of K begins earlier instead, so
    keys count twice.

    Raises:
        NotImplementedError: causal with more queries than keys, another scale than the default, or FP64.
    """
    if causal and q.shape[2] > k.shape[2]:
        raise NotImplementedError("flash-attention-jax has no causal mask for more queries than keys")
    only_default_scale(q, scale, "flash-attention-jax")
    return through_jax(_flash(causal), q, *repeated(q, k, v))
