"""Attention in JAX: jax.nn.dot_product_attention, compiled by XLA, or cuDNN's; ringattention (Large World Model), on a
ring of one device; flash-attention-jax (lucidrains), whose tiles are 1,024 queries and 1,024 keys; and tokamax (Google
DeepMind), by the implementation that never holds all of S."""

import importlib.util
from functools import cache, partial
from importlib.metadata import files

import torch

from attention_gallery import adapters
from attention_gallery.adapters import accepts, dtype_name, in_4_dims, repeated, seen, swapped, through_jax

RING_CHUNK = 512  # of queries and of keys, as the README of ringattention calls it


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
    array = None if full is None else adapters.to_jax(full)
    mask_and_bias = (array, None) if mask is None or mask.dtype == torch.bool else (None, array)
    return through_jax(partial(_dot_product(own, scale, implementation), *mask_and_bias), q, k, v)


@accepts()
def jax_dot_product(q, k, v, causal=False, scale=None, mask=None):
    """Call jax.nn.dot_product_attention, implementation "xla": softmax in FP32, then P rounded to the inputs'
    format."""
    if q.device.type == "cpu":
        adapters.only_dtypes(q, (torch.bfloat16, torch.float32), "jax.nn.dot_product_attention on CPU")
    return _call(q, k, v, causal, scale, mask, "xla")


@accepts()
def jax_cudnn(q, k, v, causal=False, scale=None):
    """Call jax.nn.dot_product_attention(implementation="cudnn"), on CUDA alone."""
    return _call(q, k, v, causal, scale, None, "cudnn")


@cache
def _ringattention():
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
    chunks = [RING_CHUNK if n % RING_CHUNK == 0 else n for n in (n_q, n_kv)]
    settings = dict(
        causal_block_size=1 if causal else None, deterministic=True, dropout_rng=None, attn_pdrop=0.0,
        query_chunk_size=chunks[0], key_chunk_size=chunks[1], dtype=dtype, precision=None, prevent_cse=True,
        policy=jax.checkpoint_policies.nothing_saveable,
    )  # fmt: skip
    bias = jnp.zeros((batch, 1, 1, n_kv), dtype)

    def on_one_device(q, k, v):
        return _ringattention().ring_attention(q, k, v, bias, None, None, "sp", float32_logits, settings)

    everywhere = PartitionSpec()
    ring = jax.shard_map(
        on_one_device, mesh=Mesh(jax.devices("cpu")[:1], ("sp",)), in_specs=everywhere, out_specs=everywhere,
        check_vma=False,
    )  # fmt: skip
    return jax.jit(lambda q, k, v: swapped(ring(*map(swapped, (q, k, v)))))


def _ring_kernel(float32_logits):
    @accepts("ringattention", scaled=False, top_left=True)
    def ring(q, k, v, causal=False, scale=None):
        fn = _ring(causal, float32_logits, tuple(q.shape), k.shape[2], dtype_name(q.dtype))
        return through_jax(fn, q, *repeated(q, k, v))

    return ring


ring_fp32_logits = _ring_kernel(True)  # Q and K become FP32 first, and so do all sums that it carries
ring_16_bit_logits = _ring_kernel(False)  # S, P and the sums carried between chunks are in the inputs' format


@cache
def _flash(causal):
    import flash_attention_jax as flash
    import jax.numpy as jnp

    if causal:
        return flash.causal_flash_attention
    return lambda q, k, v: flash.flash_attention(q, k, v, jnp.ones((k.shape[0], k.shape[2]), bool))


@accepts("flash-attention-jax", scaled=False, tall=False)
def flash_attention_jax(q, k, v, causal=False, scale=None):
    """Call flash_attention_jax.flash_attention with a mask of keys that hides none, or causal_flash_attention. It is
    wrong where n is no multiple of its tiles: a slice that would pass the end of K begins earlier instead, so keys
    count twice."""
    return through_jax(_flash(causal), q, *repeated(q, k, v))


@cache
def _chunked(causal, scale, n_q, n_kv):
    import jax
    from absl import flags
    from tokamax import dot_product_attention

    if not flags.FLAGS.is_parsed():  # or tokamax takes the arguments of this process for its own
        flags.FLAGS(["tokamax"])

    own = causal and n_q == n_kv  # is_causal aligns top-left, so other lengths get a mask
    mask = adapters.to_jax(adapters.visible(n_q, n_kv))[None, None] if causal and not own else None

    options = dict(mask=mask, scale=scale, is_causal=own, implementation="xla_chunked")
    return jax.jit(lambda q, k, v: swapped(dot_product_attention(*map(swapped, (q, k, v)), **options)))


@accepts("tokamax on CPU", (torch.bfloat16, torch.float32))
def tokamax_chunked(q, k, v, causal=False, scale=None):
    """Call tokamax.dot_product_attention(implementation="xla_chunked"): tiles of 512 queries and 1,024 keys."""
    return through_jax(_chunked(causal, scale, q.shape[2], k.shape[2]), q, k, v)
