"""The attention that Keras computes itself: MultiHeadAttention's, where it has dropout or its scores are asked for.
Elsewhere Keras calls its backend's: scaled_dot_product_attention of torch, dot_product_attention of JAX."""

import os
from functools import cache

import torch

from attention_gallery.adapters import in_4_dims, only_default_scale, repeated, seen, swapped


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


def keras_written_out(q, k, v, causal=False, scale=None, mask=None):
    """Call MultiHeadAttention on the torch backend, between its projections, with return_attention_scores=True. Another
    scale than the default, a mask that is added and another backend of Keras raise NotImplementedError."""
    only_default_scale(q, scale, "Keras")
    layer = _layer(q.shape[3], f"{q.dtype}".removeprefix("torch."))
    mask = seen(q, k, causal, mask)
    if mask is not None and mask.dtype != torch.bool:
        raise NotImplementedError(f"Keras takes a boolean mask alone; this one is {mask.dtype}".replace("torch.", ""))
    tensors = map(swapped, (q, *repeated(q, k, v)))
    o, _ = layer._compute_attention(*tensors, attention_mask=in_4_dims(mask), return_attention_scores=True)
    return swapped(o)
