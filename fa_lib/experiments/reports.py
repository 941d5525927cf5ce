"""Public reports of attention that differs, each as the tensors that its author had: a call, an output, a belief.

Where the library of then is not at hand, a few lines make the defect; the thread has what was found. What is right to
answer is the maintainers' answer, or our reading where a thread has none.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import E4M3, FP16, TF32


@dataclass(frozen=True)
class Call:
    """The tensors of a report.

    Attributes:
        q: (batch, heads, n_q, head_dim). k, v: (batch, kv_heads, n_kv, head_dim or d_v). o: the output that was
            reported, (batch, heads, n_q, d_v) or in its author's layout.
        believed: the options of the call, as the author took them to be.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    believed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A thread, and what is right to answer.

    Attributes:
        thread: repository and number. asked: what its author saw.
        make: gives its Call. verdict: "rounding", "convention", "precision" or "bug".
        cause: the conventions that the output follows (aspect -> choice), or dict(fmt=a format) of its arithmetic; {}
            where the verdict says all.
    """

    thread: str
    asked: str
    make: Callable[[], Call]
    verdict: str
    cause: dict[str, Any] = field(default_factory=dict)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> list[Tensor]:
    """Three normal tensors of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(dtype) for _ in range(3)]


def _turned(x):
    return x.transpose(1, 2)


def _bf16():
    return drawn(1, 8, 256, 64)


def _fp32(n=256):
    return drawn(1, 8, n, 64, dtype=torch.float32)


def _few_queries(dtype=torch.bfloat16):
    q, k, v = (x.to(dtype) for x in _fp32())
    return q[:, :, :32], k, v


def _visible(n_q, n, share=0.5):
    return torch.rand(n_q, n, generator=torch.Generator().manual_seed(3)) < share


def _softmax_over_dim_0():
    q, k, v = (drawn(4, 4, n, 8, dtype=torch.float32, seed=n)[0] for n in (2, 3, 4))
    return Call(q, k, v[:, :, :3], torch.softmax(q @ k.mT / 8**0.5, 0) @ v[:, :, :3])


def _other_last_stride():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, k.mT.reshape(k.shape), v))


def _no_features():
    v = drawn(1, 16, 16, 1, dtype=torch.float32)[0]
    return Call(v[..., :0], v[..., :0], v, torch.zeros_like(v))


def _less_exact():
    q, k, v = drawn(1, 16, 64, 64, dtype=torch.float32)
    return Call(q, k, v, kernels.unfused(q, k, v, scale=8**-0.5), dict(scale=8**-0.5, mask=torch.zeros(64, 64)))


def _one_head():
    q, k, v = drawn(2, 1, 128, 256, dtype=torch.float32)
    return Call(q, k, v, sdpa(q, k, v))


def _nan_hidden():
    q, k, v = drawn(2, 4, 16, 8, dtype=torch.float32)
    o = sdpa(q, k, v)
    q[0, 0, 5, 0] = math.nan
    return Call(q, k, v, o)


def _block_hidden():
    """exp(-inf + inf) where a block of 512 keys is hidden from a row."""
    q, k, v = drawn(1, 2, 640, 64, dtype=torch.float32)
    mask = torch.full((640, 640), -math.inf).triu(1) + torch.full((640, 640), -math.inf).tril(-10)
    o = sdpa(q, k, v, attn_mask=mask)
    o[:, :, 522:] = math.nan
    return Call(q, k, v, o, dict(mask=mask))


def _split_scale():
    q, k, v = _bf16()
    root = 64**-0.25
    o = torch.softmax((q * root) @ (k * root).mT, -1) @ v
    return Call(q, k, v, o)


def _one_query():
    q, k, v = drawn(1, 1, 1000, 64)
    mask = _visible(1, 1000, 0.58)
    return Call(q[:, :, :1], k, v, sdpa(q[:, :, :1], k, v, attn_mask=mask), dict(mask=mask))


def _large_inputs():
    q, k, v = (10 * x for x in drawn(1, 16, 240, 128))
    return Call(q, k, v, sdpa(q, k, v))


def _future_seen():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, k, v), dict(causal=True))


def _other_polarity():
    q, k, v = _bf16()
    mask = torch.ones(256, 256, dtype=torch.bool).tril()
    return Call(q, k, v, sdpa(q, k, v, attn_mask=~mask.tril(-1)), dict(mask=mask.tril(-1)))


def _top_left():
    q, k, v = _few_queries(torch.float32)
    return Call(q, k, v, sdpa(q, k, v, is_causal=True), dict(causal=True))


def _executed_in_bf16(**options):
    q, k, v = drawn(4, 1, 64, 128, dtype=torch.float32)
    return Call(q, k, v, kernels.flash(*(x.bfloat16() for x in (q, k, v))).float(), options)


def _wrong_product():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, torch.cat([k[..., 1::2], k[..., 0::2]], -1), v))


def _bottom_right():
    q, k, v = drawn(1, 4, 1024, 64, dtype=torch.float16)
    q = q[:, :, :32]
    return Call(q, k, v, kernels.flash(q, k, v, causal=True), dict(mask=torch.ones(32, 1024, dtype=torch.bool).tril()))


def _layout():
    q, k, v = drawn(2, 82, 8, 64, dtype=torch.float32)
    return Call(q, k, v, _turned(sdpa(*map(_turned, (q, k, v)))))


def _sinks_dropped():
    q, k, v = drawn(1, 8, 34, 64)
    return Call(q[:, :, :1], k, v, sdpa(q[:, :, :1], k, v), dict(sinks=torch.linspace(0, 4, 8)))


def _layout_of_jax():
    q, k, v = drawn(1, 4, 32, 64, dtype=torch.float32)
    return Call(q, k, v, _turned(sdpa(*map(_turned, (q, k, v)))))


def _bits_multiplied():
    q, k, v = drawn(1, 1, 16, 16)
    bits = q.view(torch.int16).double() @ k.view(torch.int16).double().mT
    return Call(q, k, v, (bits @ v.double()).bfloat16())


def _tf32():
    q, k, v = _fp32()
    rounded_q, rounded_k, rounded_v = (TF32(x.double()).float() for x in (q, k, v))
    return Call(q, k, v, sdpa(rounded_q, rounded_k, rounded_v))


def _last_key_lost():
    q, k, v = drawn(1, 2, 225, 512)
    return Call(q, k, v, sdpa(q, k[:, :, :224], v[:, :, :224]))


def _strides_of_another():
    q, k, v = _bf16()
    return Call(q, k, v, sdpa(q, _turned(k.reshape(1, 256, 8, 64)), v))


def fp8(x: Tensor) -> Tensor:
    """A tensor in E4M3, with one scale a head."""
    scale = x.abs().amax((-1, -2), keepdim=True) / 448
    return E4M3((x / scale).double()).float() * scale


def _eight_bits():
    q, k, v = _fp32()
    return Call(q.bfloat16(), k.bfloat16(), v.bfloat16(), sdpa(fp8(q), fp8(k), fp8(v)).bfloat16())


def _zeros():
    q, k, v = _fp32()
    return Call(q, k, v, torch.zeros_like(v))


def _near_zero():
    q, k, v = _bf16()
    v = v - v.mean(2, keepdim=True)
    return Call(q, k, v, sdpa(q, k, v))


def _fp16_carried():
    q = drawn(1, 4, 64, 64, dtype=torch.float16)[0]
    k, v = (torch.rand(1, 4, 4096, 64, generator=torch.Generator().manual_seed(i)).half() for i in (1, 2))
    precision = replace(Precision.kernel(FP16), accumulator=FP16, row_sum=FP16)
    return Call(q, k, v, kernels.tiled(q, k, v, tiling=Tiling(64, 32), precision=precision))


def _fp16():
    q, k, v = drawn(1, 8, 128, 64, dtype=torch.float16)
    return Call(q, k, v, kernels.as_shipped(q, k, v))


REPORTS = (
    Report("pytorch/pytorch#196468", "compiled differs by 0.35", _softmax_over_dim_0, "bug",
           dict(softmax="over_batch")),
    Report("pytorch/pytorch#187506", "wrong numbers", _other_last_stride, "bug", dict(layout="k_column_major")),
    Report("pytorch/pytorch#184330", "output is 0", _no_features, "bug"),
    Report("pytorch/pytorch#151098", "compiled is less exact than eager", _less_exact, "rounding"),
    Report("pytorch/pytorch#179578", "a fuzzer's alarm, 7e-8", _one_head, "rounding"),
    Report("pytorch/pytorch#141128", "NaN became numbers", _nan_hidden, "bug"),
    Report("pytorch/pytorch#127055", "NaN, though every row sees keys", _block_hidden, "bug"),
    Report("pytorch/pytorch#119188", "the documented code differs", _split_scale, "rounding"),
    Report("pytorch/pytorch#163588", "3.4 % off with a mask", _one_query, "rounding"),
    Report("meta-pytorch/attention-gym#131", "BF16 differs by 0.125", _large_inputs, "rounding"),
    Report("huggingface/transformers#48748", "perplexity too good", _future_seen, "bug", dict(causal="none")),
    Report("rasbt/LLMs-from-scratch#1061", "sees the future", _other_polarity, "convention", dict(mask="inverted")),
    Report("microsoft/onnxruntime#29020", "CPU and CUDA differ", _top_left, "convention", dict(causal="top_left")),
    Report("openvinotoolkit/openvino#35796", "4.3 off FP64", lambda: _executed_in_bf16(softcap=40000.0), "precision",
           dict(fmt="BF16")),
    Report("openvinotoolkit/openvino#38256", "cosine 0.28", _wrong_product, "bug"),
    Report("ml-explore/mlx#2835", "causal differs from torch", _bottom_right, "convention",
           dict(mask="triangle_bottom_right")),
    Report("ml-explore/mlx#3585", "differs by 0.5, \"float order\"", _layout, "convention", dict(layout="all_bshd")),
    Report("ml-explore/mlx#3452", "decode differs with sinks", _sinks_dropped, "bug", dict(sinks="ignored")),
    Report("jax-ml/jax#35916", "silently incorrect", _layout_of_jax, "convention", dict(layout="all_bshd")),
    Report("triton-lang/triton#11584", "values of 1e10", _bits_multiplied, "bug"),
    Report("triton-lang/triton#5895", "interpreter 1e-6, GPU 2e-2", _tf32, "precision", dict(fmt="TF32")),
    Report("pytorch/pytorch#191937", "wrong at lengths of 1 mod 32", _last_key_lost, "bug", dict(keys=(0, 224))),
    Report("FlagOpen/FlagGems#5896", "cosine 0.81", _strides_of_another, "bug", dict(layout="k_reshaped")),
    Report("tenstorrent/tt-metal#51927", "correlation 0.99 says fine", _eight_bits, "precision", dict(fmt="FP8_HEAD")),
    Report("ScalingIntelligence/KernelBench#165", "zeros pass a tolerance of 1e-2", _zeros, "bug"),
    Report("HazyResearch/HipKittens#64", "torch itself fails rtol", _near_zero, "rounding"),
    Report("ggml-org/llama.cpp#24406", "a limit hit by a right FP16 kernel", _fp16, "rounding"),
    Report("ggml-org/llama.cpp, CUDA", "O carried in FP16", _fp16_carried, "precision", dict(fmt="FP16")),
)  # fmt: skip
