"""The catalogue of GPU kernels that run on a CPU in a GPU's arithmetic, each from its project's own archive."""

from dataclasses import replace

from attention_gallery.conch_kernels import CONCH
from attention_gallery.entry import Entry, entries
from attention_gallery.fla_kernels import FLA
from attention_gallery.flag_gems_kernels import FLAG_GEMS
from attention_gallery.flash_attn_4_kernels import FLASH_ATTN_4, NEEDS
from attention_gallery.flash_attn_triton_kernels import FLASH_ATTN_TRITON
from attention_gallery.flashinfer_cuda_kernels import FLASHINFER
from attention_gallery.llama_cuda_kernels import LLAMA_CPP
from attention_gallery.lmdeploy_kernels import LMDEPLOY
from attention_gallery.sglang_kernels import SGLANG
from attention_gallery.vllm_kernels import VLLM
from attention_gallery.xformers_kernels import XFORMERS
from ptx_machine.sources import FLASH_ATTN, Package

GPU = "A100"  # that the rows are judged on, but for kernels that are for other GPUs alone
TRITON, NVCC = ("triton",), ("nvidia-cuda-nvcc", "nvidia-cuda-runtime")


def _modelled(
    project: str,
    module: str,
    needs: tuple[str, ...],
    package: Package | None = None,
    as_used: str = "yes",
    gpu: str = GPU,
    **uses: str,
) -> list[Entry]:
    """Make the entries of one file; uses: key -> use."""
    made = entries(project, module, needs, "modelled", **uses)
    return [replace(entry, gpu=gpu, package=package, as_used=as_used) for entry in made]


def _absent(key: str, project: str, version: str, use: str, why: str) -> Entry:
    """Make the entry of a kernel that cannot run here."""
    return Entry(key, project, "", TRITON, use, f"{project} {version}: {why}", "modelled", GPU)


_ALL = [
    *_modelled(
        "flash-attn", "flash_attn_cuda", NVCC, FLASH_ATTN,
        fa2_cuda="flash_attn_func; torch's scaled_dot_product_attention has these kernels for 16 bits without a mask",
    ),
    *_modelled(
        "FlashAttention-4", "flash_attn_4", NEEDS, FLASH_ATTN_4, gpu="H100",
        fa4_hopper="flash_attn.cute.flash_attn_func on Hopper, by wgmma and TMA",
    ),
    *_modelled(
        "FlashAttention-4", "flash_attn_4", NEEDS, FLASH_ATTN_4, gpu="B200",
        fa4_blackwell="flash_attn.cute.flash_attn_func on Blackwell, by tcgen05 and TMA",
    ),
    *_modelled(
        "PyTorch", "cutlass_cuda", ("torch", *NVCC),
        cutlass_fmha="scaled_dot_product_attention with a mask, and in FP32 (cutlassF.h, line 27); xFormers' too",
    ),
    *_modelled(
        "PyTorch", "flex_triton", ("torch", "triton"),
        flex_prefill="torch.compile(flex_attention) from 128 queries on (flex_attention.py, line 243)",
        flex_decode="torch.compile(flex_attention) below 128 queries (flex_decoding.py, line 50)",
    ),
    *_modelled(
        "llama.cpp", "llama_cuda", NVCC, LLAMA_CPP,
        llama_cuda_mma="prompts with flash attention (fattn.cu, line 664), where one call does not fill the GPU",
        llama_cuda_mma_crowded="prompts of models with many heads, whose blocks each work on all keys "
        "(fattn-common.cuh, line 1145)",
        llama_cuda_decode="every generated token, by the kernel that fattn.cu chooses: -vec (asked here), "
        "or -mma where heads share keys",
        llama_cuda_q8_0="every generated token with --cache-type-k q8_0 --cache-type-v q8_0",
        llama_cuda_q4_0="every generated token with --cache-type-k q4_0 --cache-type-v q4_0",
    ),
    *_modelled(
        "llama.cpp", "llama_cuda", NVCC, LLAMA_CPP, "for head_dim 40 and 72, and on Volta for few queries",
        llama_cuda_tile="fattn-tile (fattn.cu, line 719)",
    ),
    *_modelled(
        "FlashInfer", "flashinfer_cuda", NVCC, FLASHINFER,
        flashinfer_decode="BatchDecodeWithPagedKVCacheWrapper by its defaults (decode.py, line 1144)",
        flashinfer_prefill="BatchPrefillWithPagedKVCacheWrapper by its defaults (prefill.py, line 2570)",
        flashinfer_cascade="MultiLevelCascadeAttentionWrapper of two levels: a prefix that requests share (cascade.py)",
    ),
    *_modelled(
        "SGLang", "sglang_kernels", TRITON, SGLANG, "with --attention-backend triton",
        sglang_decode="every generated token (triton_backend.py, line 2472), up to 8 parts of the keys",
        sglang_extend="prompts (triton_backend.py, line 1888)",
    ),
    *_modelled(
        "vLLM", "vllm_kernels", TRITON, VLLM, "with --attention-backend TRITON_ATTN",
        vllm_unified="prompts, by unified_attention (triton_attn.py, line 697)",
        vllm_unified_decode="every generated token, by the same function in 16 parts of the keys",
        vllm_encoder="models that only encode (triton_attn.py, line 782)",
    ),
    *_modelled(
        "LMDeploy", "lmdeploy_kernels", TRITON, LMDEPLOY, "yes, without flash-attn 3",
        lmdeploy_prefill="prompts (backends/cuda/attention/default.py, line 350)",
        lmdeploy_decode="every generated token (default.py, line 301)",
        lmdeploy_decode_int8="every generated token with quant_policy 8",
        lmdeploy_decode_int4="every generated token with quant_policy 4",
    ),
    *_modelled(
        "xFormers", "xformers_kernels", TRITON, XFORMERS, "where FwOp is named, and for MQA and GQA in decoding",
        xformers_split_k_a100="memory_efficient_attention_forward(op=triton_splitk.FwOp), as many parts as it chooses",
    ),
    *_modelled(
        "flash-linear-attention", "fla_kernels", TRITON, FLA, "yes, before Hopper",
        fla_parallel="parallel_attn, of its YOCO and forgetting layers (fla/ops/attn/parallel.py, line 780)",
    ),
    *_modelled(
        "Conch", "conch_kernels", TRITON, CONCH,
        conch_paged="conch.ops.attention.paged_attention, every generated token",
        conch_varlen="conch.ops.attention.varlen_attention, prompts",
    ),
    *_modelled(
        "FlagGems", "flag_gems_kernels", TRITON, FLAG_GEMS, "where it is called by its name",
        flag_gems_sdpa="flag_gems.ops.attention.scaled_dot_product_attention (attention.py, line 1053)",
    ),
    *_modelled(
        "flash-attn-triton", "flash_attn_triton_kernels", TRITON, FLASH_ATTN_TRITON, "with a Triton before 3.7",
        flash_attn_triton_package="flash_attn_triton.flash_attn_func, which it installs as flash_attn's",
    ),
    *_modelled(
        "SageAttention", "triton_kernels", ("sageattention", "triton"), None, "yes, version 1",
        sageattention_a100="sageattention.sageattn in place of torch's; Q and K in 8 bits",
    ),
    _absent(
        "flash_attn_3", "FlashAttention-3", "3.0", "flash_attn_interface.flash_attn_func on Hopper",
        "no package of PyPI has its source; FlashAttention-4 has followed it on Hopper",
    ),
    _absent(
        "transformer_engine", "TransformerEngine", "2.20", "te.DotProductAttention with its fused backend",
        "its attention is cuDNN's, machine code without PTX",
    ),
    _absent(
        "cutile", "cuTile", "1.7", "FlashInfer's and others' kernels for Blackwell",
        "its compiler writes machine code for Blackwell, no PTX",
    ),
    _absent(
        "unsloth", "unsloth", "2026.10", "its models",
        "it calls flex_attention, xFormers or torch's kernels",
    ),
    _absent(
        "liger", "Liger", "0.8", "liger_kernel.ops",
        "it has neighbourhood and multi-token attention alone",
    ),
    _absent(
        "tilelang", "TileLang", "0.1.15", "kernels that users write in it",
        "its package has no attention kernel; those of its repository are examples",
    ),
]  # fmt: skip

MODELLED = {entry.key: entry for entry in _ALL}
