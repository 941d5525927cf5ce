"""Kernels written in Triton, of projects with one or two: those of xformers, flash-linear-attention, FlagGems and
flash-attn-triton from their archives, without what else these projects would import; and SageAttention's."""

import sys
from functools import cache
from types import ModuleType
from typing import Any

import torch

from attention_gallery.adapters import HALF, accepts, repeated, swapped
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module
from ptx_machine.sources import unpacked

FLA = pinned("fla-core", "0.6.0")
FLAG_GEMS = pinned("flag-gems", "5.0.2")
FLAG_GEMS_WIDTHS = (32, 64, 128, 256)  # head_dim; 16, which it has too, is too narrow for the first configuration
FLASH_ATTN_TRITON = pinned("flash-attn-triton", "0.1.1")
FLASH_ATTN_TRITON_WIDTHS = (16, 32, 64, 128, 256)  # head_dim: attention_kernel.py, line 577
BLOCK = 128  # of flash-attn-triton: flash_attn_interface.py, line 12
XFORMERS = pinned("xformers", "0.0.35")
XFORMERS_WIDTHS = (16, 32, 64, 128, 256, 512)  # head_dim: FwOp.shape_not_supported_reasons
CPU = torch.device("cpu")  # where the mask's index tensors of xformers are: it would pin their memory for a GPU
MOST_CAUSAL_QUERIES = 16  # of a sequence, in xformers: FwOp.not_supported_reasons


@accepts("xformers' split-K kernel", HALF, XFORMERS_WIDTHS, gradients=False)
def xformers_split_k_a100(q, k, v, causal=False, scale=None):
    """Call xformers' triton_splitk.FwOp, which chooses the number of parts of the keys, and what adds them up.

    Heads that share K and V are expanded views, as xformers asks for; heads of several groups have 5 dimensions. With a
    causal mask the sequences are packed one behind another in one cache, as in decoding. Refused: another head_dim, or
    causal with more than 16 queries or with more queries than keys."""
    batch, heads, n_q, width = q.shape
    groups, n_kv = k.shape[1], k.shape[2]
    if causal and n_q > min(MOST_CAUSAL_QUERIES, n_kv):
        raise NotImplementedError(
            f"causal, xformers' split-K kernel has up to {MOST_CAUSAL_QUERIES} queries, and no more than keys; "
            f"got {n_q} queries and {n_kv} keys"
        )
    project = {"_is_triton_available": lambda: True, "__path__": [str(unpacked(XFORMERS) / "xformers")]}
    stubs = {"xformers": project, "xformers._cpp_lib": {"_built_with_cuda": True}}
    split, bias = module(XFORMERS, "xformers.ops.fmha.triton_splitk", stubs), None
    tensors = [swapped(x).contiguous() for x in (q, k, v)]  # (batch, n, heads, d)
    if groups < heads:  # (batch, n, groups, heads of a group, d); of one group (batch, n, heads, d)
        tensors[0] = tensors[0].unflatten(2, (groups, -1))
        tensors[1:] = (x.unsqueeze(3).expand(-1, -1, -1, heads // groups, -1) for x in tensors[1:])
        tensors = [x[:, :, 0] for x in tensors] if groups == 1 else tensors
    if causal:
        masks = split.BlockDiagonalCausalWithOffsetPaddedKeysMask
        bias = masks.from_seqlens(q_seqlen=[n_q] * batch, kv_padding=n_kv, kv_seqlen=[n_kv] * batch, device=CPU)
        tensors = [x.flatten(0, 1)[None] for x in tensors]
    inputs = split.Inputs(*tensors, attn_bias=bias, scale=scale)
    inputs.validate_inputs()
    inputs.normalize_bmhk()
    o, _ = split.FwOp.apply(inputs, needs_gradient=False)
    return swapped(o.reshape(batch, n_q, heads, width))


@accepts("flash-linear-attention's parallel_attn", HALF, square=True)
def fla_parallel(q, k, v, causal=False, scale=None):
    """Call fla.ops.attn.parallel_attn, which is causal. It has gradients. Refused: no causal mask with more than one
    query, n_q unlike n_kv, or head_dim over 256."""
    if not causal and q.shape[2] > 1:
        raise NotImplementedError("parallel_attn is causal")
    if q.shape[3] > 256:
        raise NotImplementedError(f"parallel_attn has head_dim up to 256; got {q.shape[3]}")
    stubs = {"fla": {"__version__": FLA.version, "__path__": [str(unpacked(FLA) / "fla")]}}
    parallel = module(FLA, "fla.ops.attn.parallel", stubs)
    parallel.check_shared_mem.cache_clear()  # its answer is that of the GPU of the call before
    return swapped(parallel.parallel_attn(swapped(q), swapped(k), swapped(v), scale=scale))  # (batch, n, heads, d)


@accepts("FlagGems", HALF, FLAG_GEMS_WIDTHS, top_left=True)
def flag_gems_sdpa(q, k, v, causal=False, scale=None):
    """Call flag_gems.ops.attention.scaled_dot_product_attention. Its gradients are those of a causal call whatever
    `causal` is: the kernel has no such argument (attention.py, line 959). It reads dO without a mask (line 428), which
    is a Fault where n_q is no multiple of the block.

    Of its configurations to tune the first runs, which has blocks of 128 queries and 32 keys. Refused: another
    head_dim."""
    fn, tensors = _flag_gems().scaled_dot_product_attention, [x.contiguous() for x in (q, k, v)]
    return fn(*tensors, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@cache
def _flag_gems() -> ModuleType:
    """Import attention.py, once. FlagGems' runtime asks the machine for its vendor when it is imported; what stands
    in for it has the first configuration that it would try on an A100: runtime/backend/_nvidia/tune_configs.yaml,
    lines 1 to 44, of which flash_kernel.py, line 257, keeps some."""
    from triton import Config, autotune  # pyright: ignore[reportMissingImports]

    blocks: dict[str, Any] = {
        "attention": dict(BLOCK_M=128, BLOCK_N=32, PRE_LOAD_V=True),
        "attention_bwd": dict(BLOCK_M1=32, BLOCK_N1=128, BLOCK_M2=128, BLOCK_N2=32),
    }
    tuned = {name: [Config(sizes, num_warps=4, num_stages=2)] for name, sizes in blocks.items()}
    runtime = {"get_tuned_config": tuned.__getitem__, "torch_device_fn": torch.cuda}
    utils = {"libentry": lambda: lambda fn: fn, "libtuner": autotune}  # libentry stores compiled kernels
    flash = dict.fromkeys(("mha_fwd", "mha_varlan_fwd", "mha_varlan_fwd_opt"))
    stubs = {
        "flag_gems.runtime": runtime, "flag_gems.config": {"use_c_extension": False}, "flag_gems.utils": utils,
        "flag_gems.ops.flash_api": flash, "flag_gems.ops.flash_kernel": {"keep": lambda config, must_keep: True},
    }  # fmt: skip
    return module(FLAG_GEMS, "flag_gems.ops.attention", stubs)


@accepts("flash-attn-triton", HALF, FLASH_ATTN_TRITON_WIDTHS, square=True)
def flash_attn_triton_package(q, k, v, causal=False, scale=None):
    """Call flash_attn_triton.flash_attn_func. It has gradients. Refused: n_q unlike n_kv, no causal mask with n no
    multiple of 128, or another head_dim."""
    n = k.shape[2]
    if not causal and n % BLOCK:
        raise NotImplementedError(f"without a causal mask, flash-attn-triton has multiples of {BLOCK} keys; got {n}")
    gone = "triton.tools.experimental_descriptor"  # which flash_attn_interface.py imports, and does not use
    sys.modules.setdefault(gone, ModuleType(gone))
    attention = module(FLASH_ATTN_TRITON, "flash_attn_triton.flash_attn_interface").flash_attn_func
    return swapped(attention(*map(swapped, (q, k, v)), softmax_scale=scale, causal=causal))


@accepts("SageAttention", gradients=False, top_left=True)
def sageattention(q, k, v, causal=False, scale=None):
    """Call sageattention.sageattn of version 1: Q and K in 8 bits, V in FP16. It writes into K, so it gets a copy.

    Without a causal mask up to 63 keys of zeros behind the last one count (attn_qk_int8_per_block.py, line 18).
    """
    from sageattention import sageattn  # pyright: ignore[reportMissingImports]

    k, v = repeated(q, k, v)
    return sageattn(q.contiguous(), k.clone(), v.contiguous(), is_causal=causal, sm_scale=scale)


sageattention_a100 = sageattention  # on a CPU, in a GPU's arithmetic
