"""The attention that Keras computes itself: MultiHeadAttention's, where it has dropout or its scores are asked for.
Elsewhere Keras calls its backend's: scaled_dot_product_attention of torch, dot_product_attention of JAX."""

import os
from functools import cache

from attention_gallery.adapters import accepts, dtype_name, in_4_dims, repeated, seen, swapped


@cache
def _layer(head_dim, dtype):
    os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it once, where it is imported
    from keras import backend
    from keras.layers import MultiHeadAttention

    if backend.backend() != "torch":
        raise NotImplementedError(f"Keras is judged on its torch backend; KERAS_BACKEND is {backend.backend()}")
    layer = MultiHeadAttention(num_heads=1, key_dim=head_dim, dtype=dtype)
    layer.build((None, None, 1), (None, None, 1))  # of the projections, which are not called
    return layer


@accepts("Keras", scaled=False, added=False)
def keras_written_out(q, k, v, causal=False, scale=None, mask=None):
    """Call MultiHeadAttention on the torch backend, between its projections, with return_attention_scores=True.
    Another backend of Keras raises NotImplementedError."""
    layer, mask = _layer(q.shape[3], dtype_name(q.dtype)), seen(q, k, causal, mask)
    tensors = map(swapped, (q, *repeated(q, k, v)))
    o, _ = layer._compute_attention(*tensors, attention_mask=in_4_dims(mask), return_attention_scores=True)
    return swapped(o)
