"""SGLang's Triton kernels, those of --attention-backend triton: generated tokens, prompts.

Every sequence of a batch is a request, whose keys lie in SGLang's pool of tokens, one token a page. Line numbers: of
SGLang 0.5.23.
"""

from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from attention_gallery.adapters import HALF, accepts, from_tokens, starts, tokens
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

FILES = "sglang.kernels.ops.attention"
SGLANG = pinned("sglang", "0.5.23")
STUBS = {  # of AMD's GPUs and of environment variables, which these calls do not come to on an NVIDIA GPU
    "sglang.srt.environ": dict(envs=SimpleNamespace()),
    "sglang.srt.utils": dict(
        is_cuda=lambda: True, is_hip=lambda: False, is_gfx95_supported=lambda: False,
        is_gfx1250_supported=lambda: False, get_device_core_count=None,
    ),
}  # fmt: skip
MOST_SPLITS = 8  # --triton-attention-num-kv-splits, srt/arg_groups/fields/exec_.py line 413
SEQUENCES = 256  # fewest that the number of splits is chosen for, srt/layers/attention/triton_backend.py line 464
accepted = partial(accepts, "SGLang's cache of keys and values", HALF, gradients=False)


@accepted(queries=1)
def sglang_decode(q, k, v, causal=False, scale=None):
    """Call decode_attention_fwd, once for each query, with the keys that it sees: one kernel over up to 8 parts of
    the keys, whose number get_num_kv_splits_triton chooses, and one that combines them. use_pdl, on Hopper and newer,
    lets the second kernel begin earlier; it changes no number, and is not modelled.

    Where K and V have as many heads as Q, it is another kernel than where they have fewer: it multiplies Q by K in
    their 16 bits and adds in FP32 (decode_attention.py line 352), so that in FP16 products from 65,520 on are infinite.
    """
    (batch, heads, _, d), (kv_heads, n_kv) = q.shape, k.shape[1:3]
    decode = module(SGLANG, f"{FILES}.decode_attention", STUBS)
    keys, values, slots = _pool(k, v)
    queries = q[:, :, 0].contiguous()  # (batch, heads, head_dim)
    o = torch.empty_like(queries)  # (batch, heads, head_dim)
    parts = torch.empty(batch, heads, MOST_SPLITS, d)  # FP32 (batch, heads, splits, head_dim)
    lse = torch.empty(batch, heads, MOST_SPLITS)  # FP32 (batch, heads, splits)
    splits = torch.empty(batch, dtype=torch.int32)  # (batch)
    uneven = torch.zeros(1, dtype=torch.int32)  # (1)
    cores = torch.cuda.get_device_properties(0).multi_processor_count
    module(SGLANG, f"{FILES}.metadata", STUBS).get_num_kv_splits_triton[(1,)](
        splits, torch.full((batch,), n_kv), batch, 1, heads, kv_heads, MOST_SPLITS, cores,
        MAX_NUM_SEQ=max(SEQUENCES, 1 << (batch - 1).bit_length()), uneven_batch_ptr=uneven,
    )  # fmt: skip
    decode.decode_attention_fwd(
        queries, keys, values, o, starts(batch, n_kv), slots.flatten(), parts, lse, splits, MOST_SPLITS, scale, 1.0,
        1.0, uneven_batch=uneven,
    )  # fmt: skip
    return o[:, :, None]


@accepted()
def sglang_extend(q, k, v, causal=False, scale=None):
    """Call extend_attention_fwd: the last n_q keys are those of the queries' own tokens, and the keys before them lie
    in the pool. Refused: more queries than keys."""
    batch, n_q, n_kv = q.shape[0], q.shape[2], k.shape[2]
    if n_q > n_kv:
        raise NotImplementedError(f"SGLang's extend kernel needs a key for each of {n_q} queries; {n_kv} came")
    extend = module(SGLANG, f"{FILES}.extend_attention", STUBS)
    extend.__dict__["CUDA_CAPABILITY"] = torch.cuda.get_device_capability()  # it reads it once, when it is imported
    own = [tokens(x) for x in (q, k[:, :, n_kv - n_q :], v[:, :, n_kv - n_q :])]  # (batch * n_q, heads, head_dim)
    keys, values, slots = _pool(k, v)
    indices = slots[:, : n_kv - n_q].flatten().contiguous()  # int64 (batch * keys before)
    o = torch.empty_like(own[0])
    extend.extend_attention_fwd(
        *own, o, keys, values, starts(batch, n_q, torch.int64), starts(batch, n_kv - n_q), indices, None, causal, None,
        n_q, 1.0, 1.0, scale, extend_seq_lens_cpu=[n_q] * batch,
    )  # fmt: skip
    return from_tokens(o, batch)


def _pool(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Write keys and values into a layer's pool: halves of one tensor, slot 0 for padding
    (srt/mem_cache/memory_pool.py line 2631).

    Returns:
        keys, values: (1 + batch * n_kv, kv_heads, head_dim).
        slots: int64 (batch, n_kv), where each token lies.
    """
    batch, heads, n_kv, d = k.shape
    pool = torch.zeros(2, 1 + batch * n_kv, heads, d, dtype=k.dtype)  # (K and V, slots, kv_heads, head_dim)
    pool[0, 1:], pool[1, 1:] = tokens(k), tokens(v)
    return pool[0], pool[1], 1 + torch.arange(batch * n_kv).view(batch, n_kv)
