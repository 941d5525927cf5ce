"""ringattention (Large World Model), its JAX implementation, on a ring of one device.

Another scale than the default, FP64, and causal with n_q unlike n_kv raise NotImplementedError.
"""

import importlib.util
from functools import cache
from importlib.metadata import files

from attention_gallery.adapters import only_default_scale, repeated, swapped, through_jax

CHUNK = 512  # of queries and of keys, as the README of ringattention calls it


@cache
def _module():
    """Import ringattention_jax.py alone: the package's __init__ asks for jax.lib.xla_bridge, which JAX removed."""
    (path,) = (file.locate() for file in files("ringattention") or () if file.name == "ringattention_jax.py")
    spec = importlib.util.spec_from_file_location("ringattention_jax", path)
    assert spec is not None and spec.loader is not None  # of a file that is there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _ring(causal, float32_logits, shape, n_kv, dtype):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec

    batch, _, n_q, _ = shape
    chunks = [CHUNK if n % CHUNK == 0 else n for n in (n_q, n_kv)]
    settings = dict(
        causal_block_size=1 if causal else None, deterministic=True, dropout_rng=None, attn_pdrop=0.0,
        query_chunk_size=chunks[0], key_chunk_size=chunks[1], dtype=dtype, precision=None, prevent_cse=True,
        policy=jax.checkpoint_policies.nothing_saveable,
    )  # fmt: skip
    bias = jnp.zeros((batch, 1, 1, n_kv), dtype)

    def on_one_device(q, k, v):
        return _module().ring_attention(q, k, v, bias, None, None, "sp", float32_logits, settings)

    everywhere = PartitionSpec()
    ring = jax.shard_map(
        on_one_device, mesh=Mesh(jax.devices("cpu")[:1], ("sp",)), in_specs=everywhere, out_specs=everywhere,
        check_vma=False,
    )  # fmt: skip
    return jax.jit(lambda q, k, v: swapped(ring(*map(swapped, (q, k, v)))))


def _call(q, k, v, causal, scale, float32_logits):
    if causal and q.shape[2] != k.shape[2]:
        raise NotImplementedError("ringattention aligns its causal mask top-left; it needs as many queries as keys")
    only_default_scale(q, scale, "ringattention")
    dtype = f"{q.dtype}".removeprefix("torch.")
    k, v = repeated(q, k, v)
    return through_jax(_ring(causal, float32_logits, tuple(q.shape), k.shape[2], dtype), q, k, v)


def ring_fp32_logits(q, k, v, causal=False, scale=None):
    """Call ringattention with float32_logits=True: Q and K become FP32 first, and so do all sums that it carries."""
    return _call(q, k, v, causal, scale, True)


def ring_16_bit_logits(q, k, v, causal=False, scale=None):
    """Call ringattention with float32_logits=False: S, P and the sums carried between chunks are in the inputs'
    format."""
    return _call(q, k, v, causal, scale, False)
