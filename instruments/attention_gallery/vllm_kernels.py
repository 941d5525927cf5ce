"""vLLM's Triton kernels, the backend TRITON_ATTN's: of prompts, generated tokens and encoders.

Every sequence of a batch is a request, whose keys lie in blocks of 16 tokens. Line numbers: of vLLM 0.33.0.
"""

from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from attention_gallery.adapters import HALF, accepts, from_tokens, lengths, page_table, pages, starts, tokens
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

FILES = "vllm.v1.attention.ops"
VLLM = pinned("vllm", "0.33.0")
BLOCK = 16  # tokens of a block, config/cache.py line 185
ALIGNED = 128  # tokens that a row of the table of blocks is a multiple of, v1/worker/block_table.py line 33
SEGMENTS = 16  # parts of the keys, v1/attention/backends/triton_attn.py line 58
SMALLEST_GRID = 128  # blocks of a launch that the 2D kernel is taken from, the same file, line 57
CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))  # batches of CUDA graphs, config/vllm.py line 2579
# an enumeration, of which the file asks for some members, v1/kv_cache_interface.py line 40
QUANTIZATION = IntEnum(
    "KVQuantMode", "NONE FP8_PER_TENSOR INT8_PER_TOKEN_HEAD FP8_PER_TOKEN_HEAD INT4_PER_TOKEN_HEAD", start=0
)
accepted = partial(accepts, "vLLM's cache of keys and values", HALF, gradients=False)


@accepted(tall=False)
def vllm_unified(q, k, v, causal=False, scale: Any = None):
    """Call unified_attention with all queries of a prompt at once, as TritonAttentionImpl.forward does with what
    TritonAttentionMetadataBuilder allocates.

    From 9 queries on that is the 2D kernel. With one query, or up to 8 and a causal mask, vLLM takes the 3D kernel,
    where heads and sequences are few: see `vllm_unified_decode`.
    """
    (batch, heads, n_q, d), (kv_heads, n_kv) = q.shape, k.shape[1:3]
    queries = tokens(q)  # (batch * n_q, heads, head_dim)
    o = torch.empty_like(queries)
    # a layer's cache has K and then V of each token and head (layout LBNHC, v1/attention/backends/utils.py line 229);
    # block 0 is nobody's
    blocks = torch.cat([pages(k, BLOCK), pages(v, BLOCK)], -1)  # (blocks, 16, kv_heads, 2 * head_dim)
    cache = torch.cat([torch.zeros_like(blocks[:1]), blocks])
    table = page_table(k, BLOCK) + 1
    table = torch.nn.functional.pad(table, (0, -table.shape[1] % (ALIGNED // BLOCK)))  # int32 (batch, blocks)
    threshold = min(CAPTURED, key=lambda size: abs(size - SMALLEST_GRID // kv_heads))
    width = 1 << (d - 1).bit_length()
    parts = torch.empty(threshold, heads, SEGMENTS, width)  # FP32 (queries, heads, segments, head_dim, a power of two)
    largest, sums = torch.empty(2, threshold, heads, SEGMENTS)  # FP32 (queries, heads, segments) each
    unscaled = torch.ones(()).expand(batch, kv_heads)  # FP32 (batch, kv_heads)
    module(VLLM, f"{FILES}.triton_unified_attention", _stubs()).unified_attention(
        q=queries, k=cache[..., :d], v=cache[..., d:], out=o, cu_seqlens_q=starts(batch, n_q), max_seqlen_q=n_q,
        seqused_k=lengths(batch, n_kv), max_seqlen_k=n_kv, softmax_scale=scale, causal=causal,
        window_size=(-1, -1), block_table=table, softcap=0,
        q_descale=None, k_descale=unscaled, v_descale=unscaled, seq_threshold_3D=threshold,
        num_par_softmax_segments=SEGMENTS, softmax_segm_output=parts, softmax_segm_max=largest,
        softmax_segm_expsum=sums, kv_quant_mode=QUANTIZATION(0),
    )  # fmt: skip
    return from_tokens(o, batch)


@accepted(queries=1)
def vllm_unified_decode(q, k, v, causal=False, scale=None):
    """Call unified_attention once for each query, with the keys that it sees: the 3D kernel, over up to 16 parts of the
    keys, and reduce_segments, which combines them. vLLM calls it with a causal mask, which hides nothing.

    Where sequences times heads of K are more than some 128, it is the 2D kernel.
    """
    return vllm_unified(q, k, v, True, scale)


@accepts("vLLM's kernel for encoders", HALF, gradients=False, masked=False, square=True)
def vllm_encoder(q, k, v, causal=False, scale: Any = None):
    """Call triton_prefill_attention's context_attention_fwd, which has no cache: encoders, and images."""
    batch, _, n, _ = q.shape
    queries, keys, values = (tokens(x) for x in (q, k, v))  # (batch * n, heads, head_dim)
    o = torch.empty_like(queries)
    module(VLLM, f"{FILES}.triton_prefill_attention", _stubs()).context_attention_fwd(
        q=queries, k=keys, v=values, o=o, b_start_loc=starts(batch, n), b_seq_len=lengths(batch, n), max_input_len=n,
        is_causal=False, softmax_scale=scale, sliding_window_q=-1, sliding_window_k=-1, sinks=None,
    )  # fmt: skip
    return from_tokens(o, batch)


def _stubs() -> dict[str, dict[str, Any]]:
    """Return what the files import of vLLM."""
    import triton

    platform = SimpleNamespace(
        is_rocm=lambda: False,
        is_cuda_alike=lambda: True,
        get_device_capability=lambda: torch.cuda.get_device_capability(),
        has_device_capability=lambda least: torch.cuda.get_device_capability() >= divmod(least, 10),
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_device_capability_family=lambda of: torch.cuda.get_device_capability()[0] == of // 10,
    )
    return {
        "vllm.envs": dict(VLLM_BATCH_INVARIANT=False),
        "vllm.logger": dict(init_logger=lambda name: SimpleNamespace(debug_once=lambda text: None)),
        "vllm.platforms": dict(current_platform=platform),
        "vllm.triton_utils": dict(tl=triton.language, triton=triton),
        "vllm.utils.math_utils": dict(RCP_LN2=1.4426950216),
        "vllm.v1.kv_cache_interface": dict(KVQuantMode=QUANTIZATION),
    }
