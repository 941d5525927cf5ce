"""The attention kernels of jax.experimental.pallas.ops, written for TPU and GPU: in Pallas' interpret mode on CPU, and
those for GPUs compiled by Triton on CUDA.

Interpret mode runs a kernel's own operations in their formats, tile by tile, by XLA; a sum inside one product is the
CPU's. Lengths that are no multiple of a tile are padded, and padded keys are hidden by the kernel's own means. FP64
raises NotImplementedError.
"""

from functools import cache, partial
from unittest import mock

from attention_gallery import adapters
from attention_gallery.adapters import accepts, padded, repeated, swapped, through_jax

TILE = 128  # of queries and of keys, in the TPU kernels by default
DECODE_SPLIT = 16  # the fewest keys of one split of the decode kernel


def _segments(q, k):
    """Mark padded rows: None where the keys are whole tiles; else for Q and for K int32 (batch, n with padding), 1 for
    their own rows and 0 for padded ones. They are arguments of a compiled function, so that one function serves all
    lengths of as many tiles."""
    import jax.numpy as jnp

    if k.shape[2] % TILE == 0:
        return None
    own = ((jnp.arange(n + -n % TILE) < n).astype(jnp.int32) for n in (q.shape[2], k.shape[2]))
    return tuple(jnp.broadcast_to(row, (q.shape[0], len(row))) for row in own)


@cache
def _tpu_flash(causal, scale):
    import jax
    from jax.experimental.pallas.ops.tpu import flash_attention as tpu

    def fn(segments, q, k, v):
        ids = segments and tpu.SegmentIds(*segments)
        return tpu.flash_attention(q, k, v, segment_ids=ids, causal=causal, sm_scale=scale)

    return jax.jit(fn)


@accepts("Pallas' TPU flash attention", top_left=True)
def pallas_tpu_flash(q, k, v, causal=False, scale=None):
    """Call jax.experimental.pallas.ops.tpu.flash_attention, with its default tiles; it does not pass `interpret` on."""
    from jax.experimental import pallas

    fn = partial(_tpu_flash(causal, scale), _segments(q, k))
    tensors = [padded(x, TILE) for x in (q, *repeated(q, k, v))]
    with mock.patch.object(pallas, "pallas_call", partial(pallas.pallas_call, interpret=True)):
        return through_jax(fn, *tensors)[:, :, : q.shape[2]]


@cache
def _splash(offset, scale, heads, n_q, n_kv):
    """Compile the function for padded lengths; offset: of the causal mask, or None."""
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = masks.FullMask((n_q, n_kv)) if offset is None else masks.CausalMask((n_q, n_kv), offset=offset)
    kernel = splash.make_splash_mha_single_device(masks.MultiHeadMask([mask] * heads), interpret=True)

    def fn(segments, q, k, v):
        ids = segments and splash.SegmentIds(*segments)
        return jax.vmap(kernel)((q * scale).astype(q.dtype), k, v, ids)

    return jax.jit(fn)


@accepts()
def pallas_splash(q, k, v, causal=False, scale=None):
    """Call splash_attention of jax.experimental.pallas.ops.tpu; it has no scale, so its callers multiply Q, as here."""
    n_q, n_kv, segments = q.shape[2], k.shape[2], _segments(q, k)
    q, k, v = (padded(x, TILE) for x in (q, *repeated(q, k, v)))
    offset = n_kv - n_q if causal else None
    fn = _splash(offset, scale, q.shape[1], q.shape[2], k.shape[2])
    return through_jax(partial(fn, segments), q, k, v)[:, :, :n_q]


@cache
def _gpu_mha(causal, scale, interpret):
    import jax
    from jax.experimental.pallas.ops.gpu.attention import mha

    mha = partial(mha, segment_ids=None, sm_scale=scale, causal=causal, interpret=interpret)
    return jax.jit(lambda q, k, v: swapped(mha(*map(swapped, (q, k, v)))))


@accepts("Pallas' GPU mha", top_left=True)
def pallas_gpu_mha(q, k, v, causal=False, scale=None):
    """Call jax.experimental.pallas.ops.gpu.attention.mha (Pallas Triton), with its default tiles. Refused: a length
    above a tile that is no multiple of it or below it and no power of two, or V of another head_dim."""
    for name, n in (("queries", q.shape[2]), ("keys", k.shape[2])):
        if n > TILE and n % TILE:
            raise NotImplementedError(f"Pallas' GPU mha has no partial tile: {n} {name}; it needs multiples of {TILE}")
        if n & (n - 1) and n < TILE:  # it becomes a block's size; interpret mode takes it, and has NaN for gradients
            raise NotImplementedError(f"Pallas' blocks are powers of two on a GPU; got {n} {name}")
    if q.shape[3] != v.shape[3]:
        raise NotImplementedError(f"Pallas' GPU mha needs one head_dim; q has {q.shape[3]} and v {v.shape[3]}")
    return through_jax(_gpu_mha(causal, scale, q.device.type == "cpu"), q, *repeated(q, k, v))


@cache
def _gpu_decode(scale, k_splits, interpret):
    import jax
    from jax.experimental.pallas.ops.gpu.decode_attention import gqa

    def fn(q, k, v, lengths):  # q (batch, heads, 1, head_dim); lengths (batch,), or None for all keys
        how = dict(kv_seq_len=lengths, sm_scale=scale, k_splits=k_splits, interpret=interpret)
        return gqa(q[:, :, 0], swapped(k), swapped(v), **how)[:, :, None]

    return jax.jit(fn)


def decode_in_splits(k_splits: int):
    """Make the kernel jax.experimental.pallas.ops.gpu.decode_attention.gqa, which divides the keys into `k_splits`
    parts and writes each part's O in the inputs' format before it adds them up; one query in each call."""

    @accepts("Pallas' decode attention", gradients=False, queries=1)
    def decode(q, k, v, causal=False, scale=None):
        n_kv = k.shape[2]
        split = DECODE_SPLIT if n_kv <= TILE * k_splits else TILE
        k, v = (padded(x, split * k_splits) for x in (k, v))
        own = None if k.shape[2] == n_kv else adapters.to_jax(adapters.lengths(len(q), n_kv).to(q.device))
        return through_jax(partial(_gpu_decode(scale, k_splits, q.device.type == "cpu"), lengths=own), q, k, v)

    return decode


pallas_gpu_decode = decode_in_splits(16)  # its default
