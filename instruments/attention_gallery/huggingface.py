"""The attention of transformers and diffusers, as their models call it."""

from types import SimpleNamespace
from typing import Any

import torch

from attention_gallery.adapters import accepts, in_4_dims, repeated, seen, swapped


def _module(q, k) -> Any:
    """Stands for the torch module that calls transformers' attention functions: it has the attributes they read."""
    return SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False, is_causal=False)


@accepts()
def transformers_eager(q, k, v, causal=False, scale: Any = None, mask=None):
    """Call eager_attention_forward of transformers' Llama: softmax in FP32, then P rounded to the inputs' format."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    mask = seen(q, k, causal, mask)
    if mask is not None and mask.dtype == torch.bool:  # as its models write them
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    o, _ = eager_attention_forward(_module(q, k), q, k, v, mask, scaling=scale)
    return swapped(o)


@accepts()
def transformers_sdpa(q, k, v, causal=False, scale=None, mask=None):
    """Call transformers' "sdpa" with a mask in every case, as in a batch of padded texts."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    n_q, n_kv = q.shape[2], k.shape[2]
    mask = seen(q, k, causal, mask)
    mask = torch.ones(n_q, n_kv, dtype=torch.bool) if mask is None else mask
    mask = mask if mask.ndim == 4 else mask.expand(q.shape[0], len(mask) if mask.ndim == 3 else 1, n_q, n_kv)
    o, _ = sdpa_attention_forward(_module(q, k), q, k, v, mask, scaling=scale)
    return swapped(o)


def diffusers_native(q, k, v, causal=False, scale=None, mask=None):
    """Call diffusers' dispatch_attention_fn with its backend "native"; causal with n_q unlike n_kv, or with another
    mask, raises NotImplementedError."""
    from diffusers.models.attention_dispatch import attention_backend, dispatch_attention_fn

    if causal and (q.shape[2] != k.shape[2] or mask is not None):
        raise NotImplementedError(
            "diffusers' causal mask goes with no other, and is aligned top-left; accepted are as many queries as keys"
        )
    options = dict(attn_mask=in_4_dims(mask), is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    with attention_backend("native"):
        return swapped(dispatch_attention_fn(*map(swapped, (q, k, v)), **options))


@accepts("diffusers' AttnProcessor", masked=False)
def diffusers_written_out(q, k, v, causal=False, scale=None):
    """Compute attention as diffusers' AttnProcessor does: Attention.get_attention_scores, then torch.bmm with V."""
    from diffusers.models.attention_processor import Attention

    k, v = repeated(q, k, v)
    module = Attention(query_dim=q.shape[3], heads=1, dim_head=q.shape[3])
    module.scale = scale
    P = module.get_attention_scores(q.flatten(0, 1), k.flatten(0, 1))  # (batch * heads, n_q, n_kv)
    return torch.bmm(P, v.flatten(0, 1)).unflatten(0, q.shape[:2])
