"""Public reports of attention that differs: what was asked, and what is right to answer. That is the answer of the
maintainers, or our reading where a thread has none. A function makes the tensors of each thread: where the library of
then is not at hand, a few lines make the defect; the thread has what was found.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attention_check.conventions.reading import CapturedCall
from attention_check.explain.explain import explain_call
from attention_check.explain.verdict import Explanation
from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import E4M3, FP16, FP64, TF32


@dataclass(frozen=True)
class Report:
    """A thread, and what is right to answer.

    Attributes:
        thread: repository and number. asked: what its author saw.
        make: gives its call, with the options that its author believed. verdict: "rounding", "convention", "precision"
            or "bug".
        cause: the conventions that the output follows (aspect -> choice), dict(fmt=a format) of its arithmetic, or
            dict(change=what a gradient is); {} where the verdict says all.
    """

    thread: str
    asked: str
    make: Callable[[], CapturedCall]
    verdict: str
    cause: dict[str, Any] = field(default_factory=dict)


REPORTS: list[Report] = []


def report(
    thread: str, asked: str, verdict: str, **cause: Any
) -> Callable[[Callable[[], CapturedCall]], Callable[[], CapturedCall]]:
    """Make a decorator that enters a function, which makes a call, into REPORTS; the arguments are a Report's."""

    def entered(make):
        REPORTS.append(Report(thread, asked, make, verdict, cause))
        return make

    return entered


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


def fp8(x: Tensor) -> Tensor:
    """A tensor in E4M3, with one scale a head."""
    scale = x.abs().amax((-1, -2), keepdim=True) / 448
    return E4M3((x / scale).double()).float() * scale


def int8(x: Tensor) -> Tensor:
    """A tensor (..., n, d) in integers to 127, times a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


@report("pytorch/pytorch#196468", "compiled differs by 0.35", "bug", softmax="over_batch")
def softmax_over_dim_0():
    q, k, v = (drawn(4, 4, n, 8, dtype=torch.float32, seed=n)[0] for n in (2, 3, 4))
    return CapturedCall(q, k, v[:, :, :3], torch.softmax(q @ k.mT / 8**0.5, 0) @ v[:, :, :3])


@report("pytorch/pytorch#187506", "wrong numbers", "bug", layout="k_column_major")
def other_last_stride():
    q, k, v = _bf16()
    return CapturedCall(q, k, v, sdpa(q, k.mT.reshape(k.shape), v))


@report("pytorch/pytorch#184330", "output is 0", "bug")
def no_features():
    v = drawn(1, 16, 16, 1, dtype=torch.float32)[0]
    return CapturedCall(v[..., :0], v[..., :0], v, torch.zeros_like(v))


@report("pytorch/pytorch#151098", "compiled is less exact than eager", "rounding")
def less_exact():
    q, k, v = drawn(1, 16, 64, 64, dtype=torch.float32)
    return CapturedCall(q, k, v, kernels.unfused(q, k, v, scale=8**-0.5), dict(scale=8**-0.5, mask=torch.zeros(64, 64)))


@report("pytorch/pytorch#179578", "a fuzzer's alarm, 7e-8", "rounding")
def one_head():
    q, k, v = drawn(2, 1, 128, 256, dtype=torch.float32)
    return CapturedCall(q, k, v, sdpa(q, k, v))


@report("pytorch/pytorch#141128", "NaN became numbers", "bug")
def nan_hidden():
    q, k, v = drawn(2, 4, 16, 8, dtype=torch.float32)
    o = sdpa(q, k, v)
    q[0, 0, 5, 0] = math.nan
    return CapturedCall(q, k, v, o)


@report("pytorch/pytorch#127055", "NaN, though every row sees keys", "bug")
def block_hidden():
    """exp(-inf + inf) where a block of 512 keys is hidden from a row."""
    q, k, v = drawn(1, 2, 640, 64, dtype=torch.float32)
    mask = torch.full((640, 640), -math.inf).triu(1) + torch.full((640, 640), -math.inf).tril(-10)
    o = sdpa(q, k, v, attn_mask=mask)
    o[:, :, 522:] = math.nan
    return CapturedCall(q, k, v, o, dict(mask=mask))


@report("pytorch/pytorch#133671", "gradients differ", "bug", change="dO_in_memory_order")
def gradients_of_another_order():
    q, k, v = drawn(2, 2, 49, 32, dtype=torch.float32)
    dO = torch.arange(q.numel(), dtype=torch.float32).reshape(q.shape) / q.numel()
    for each in (q, k, v):
        each.requires_grad_()
    o = sdpa(q, k, v)
    in_memory = dO.reshape(2, 49, 2, 32).transpose(1, 2)  # the same numbers, filled in as they lie in memory
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), in_memory)
    return CapturedCall(q.detach(), k.detach(), v.detach(), o.detach(), others=dict(dO=dO, dq=dq, dk=dk, dv=dv))


@report("pytorch/pytorch#148153", "16 apart after 1 / attention", "rounding")
def inverted_after():
    q, k, v = (side.unflatten(-1, (8, 64)).transpose(1, 2) for side in drawn(10, 1, 512, dtype=torch.float32))
    return CapturedCall(q, k, v, kernels.unfused(q, k, v))  # 1 / o is 16 apart where o is near 0; o itself is right


@report("pytorch/pytorch#119188", "the documented code differs", "rounding")
def split_scale():
    q, k, v = _bf16()
    root = 64**-0.25
    o = torch.softmax((q * root) @ (k * root).mT, -1) @ v
    return CapturedCall(q, k, v, o)


@report("pytorch/pytorch#163588", "3.4 % off with a mask", "rounding")
def one_query():
    q, k, v = drawn(1, 1, 1000, 64)
    mask = _visible(1, 1000, 0.58)
    return CapturedCall(q[:, :, :1], k, v, sdpa(q[:, :, :1], k, v, attn_mask=mask), dict(mask=mask))


@report("meta-pytorch/attention-gym#131", "BF16 differs by 0.125", "rounding")
def large_inputs():
    q, k, v = (10 * x for x in drawn(1, 16, 240, 128))
    return CapturedCall(q, k, v, sdpa(q, k, v))


@report("huggingface/transformers#48748", "perplexity too good", "bug", causal="none")
def future_seen():
    q, k, v = _bf16()
    return CapturedCall(q, k, v, sdpa(q, k, v), dict(causal=True))


@report("rasbt/LLMs-from-scratch#1061", "sees the future", "convention", mask="inverted")
def other_polarity():
    q, k, v = _bf16()
    mask = torch.ones(256, 256, dtype=torch.bool).tril()
    return CapturedCall(q, k, v, sdpa(q, k, v, attn_mask=~mask.tril(-1)), dict(mask=mask.tril(-1)))


@report("microsoft/onnxruntime#29020", "CPU and CUDA differ", "convention", causal="top_left")
def top_left():
    q, k, v = _few_queries(torch.float32)
    return CapturedCall(q, k, v, sdpa(q, k, v, is_causal=True), dict(causal=True))


@report("openvinotoolkit/openvino#35796", "4.3 off FP64", "precision", fmt="BF16")
def executed_in_bf16():
    q, k, v = drawn(4, 1, 64, 128, dtype=torch.float32)
    return CapturedCall(q, k, v, kernels.flash(*(x.bfloat16() for x in (q, k, v))).float(), dict(softcap=40000.0))


@report("openvinotoolkit/openvino#38256", "cosine 0.28", "bug")
def wrong_product():
    q, k, v = _bf16()
    return CapturedCall(q, k, v, sdpa(q, torch.cat([k[..., 1::2], k[..., 0::2]], -1), v))


@report("ml-explore/mlx#2835", "causal differs from torch", "convention", mask="triangle_bottom_right")
def bottom_right():
    q, k, v = drawn(1, 4, 1024, 64, dtype=torch.float16)
    q = q[:, :, :32]
    return CapturedCall(
        q, k, v, kernels.flash(q, k, v, causal=True), dict(mask=torch.ones(32, 1024, dtype=torch.bool).tril())
    )


@report("ml-explore/mlx#3585", 'differs by 0.5, "float order"', "convention", layout="all_bshd")
def layout():
    q, k, v = drawn(2, 82, 8, 64, dtype=torch.float32)
    return CapturedCall(q, k, v, _turned(sdpa(*map(_turned, (q, k, v)))))


@report("ml-explore/mlx#3452", "decode differs with sinks", "bug", sinks="ignored")
def sinks_dropped():
    q, k, v = drawn(1, 8, 34, 64)
    return CapturedCall(q[:, :, :1], k, v, sdpa(q[:, :, :1], k, v), dict(sinks=torch.linspace(0, 4, 8)))


@report("jax-ml/jax#35916", "silently incorrect", "convention", layout="all_bshd")
def layout_of_jax():
    q, k, v = drawn(1, 4, 32, 64, dtype=torch.float32)
    return CapturedCall(q, k, v, _turned(sdpa(*map(_turned, (q, k, v)))))


@report("triton-lang/triton#11584", "values of 1e10", "bug")
def bits_multiplied():
    q, k, v = drawn(1, 1, 16, 16)
    bits = q.view(torch.int16).double() @ k.view(torch.int16).double().mT
    return CapturedCall(q, k, v, (bits @ v.double()).bfloat16())


@report("triton-lang/triton#5895", "interpreter 1e-6, GPU 2e-2", "precision", fmt="TF32")
def tf32():
    q, k, v = _fp32()
    rounded_q, rounded_k, rounded_v = (TF32(x.double()).float() for x in (q, k, v))
    return CapturedCall(q, k, v, sdpa(rounded_q, rounded_k, rounded_v))


@report("thu-ml/SageAttention#340", "causal is off by 2.7", "precision", fmt="INT8_SMOOTH")
def int8_products():
    """q k^T in integers, with a scale for each row, after K's mean is taken off: SageAttention's step."""
    q, k, v = drawn(2, 4, 512, 128, dtype=torch.float16)
    q8, k8 = (int8(x) for x in (q.double(), k.double() - k.double().mean(2, keepdim=True)))
    return CapturedCall(q, k, v, kernels.golden(q8, k8, v.double(), inputs=FP64, causal=True).half(), dict(causal=True))


@report("pytorch/pytorch#191937", "wrong at lengths of 1 mod 32", "bug", keys=(0, 224))
def last_key_lost():
    q, k, v = drawn(1, 2, 225, 512)
    return CapturedCall(q, k, v, sdpa(q, k[:, :, :224], v[:, :, :224]))


@report("FlagOpen/FlagGems#5896", "cosine 0.81", "bug", layout="k_reshaped")
def strides_of_another():
    q, k, v = _bf16()
    return CapturedCall(q, k, v, sdpa(q, _turned(k.reshape(1, 256, 8, 64)), v))


@report("tenstorrent/tt-metal#51927", "correlation 0.99 says fine", "precision", fmt="FP8_HEAD")
def eight_bits():
    q, k, v = _fp32()
    return CapturedCall(q.bfloat16(), k.bfloat16(), v.bfloat16(), sdpa(fp8(q), fp8(k), fp8(v)).bfloat16())


@report("ScalingIntelligence/KernelBench#165", "zeros pass a tolerance of 1e-2", "bug")
def zeros():
    q, k, v = _fp32()
    return CapturedCall(q, k, v, torch.zeros_like(v))


@report("HazyResearch/HipKittens#64", "torch itself fails rtol", "rounding")
def near_zero():
    q, k, v = _bf16()
    v = v - v.mean(2, keepdim=True)
    return CapturedCall(q, k, v, sdpa(q, k, v))


@report("ggml-org/llama.cpp#24406", "a limit hit by a right FP16 kernel", "rounding")
def fp16():
    q, k, v = drawn(1, 8, 128, 64, dtype=torch.float16)
    return CapturedCall(q, k, v, kernels.as_shipped(q, k, v))


@report("ggml-org/llama.cpp, CUDA", "O carried in FP16", "precision", fmt="FP16")
def fp16_carried():
    q = drawn(1, 4, 64, 64, dtype=torch.float16)[0]
    k, v = (torch.rand(1, 4, 4096, 64, generator=torch.Generator().manual_seed(i)).half() for i in (1, 2))
    precision = replace(Precision.kernel(FP16), accumulator=FP16, row_sum=FP16)
    return CapturedCall(q, k, v, kernels.tiled(q, k, v, tiling=Tiling(64, 32), precision=precision))


BY_THREAD = {each.thread: each for each in REPORTS}


def explained(thread: str, o: Tensor | None = None) -> Explanation:
    """The Explanation of a report's output, or of another one for its call, of the same shape.

    Raises:
        ValueError: there is no such thread.
    """
    call = lookup("thread", thread, BY_THREAD).make()
    call = call if o is None else replace(call, o=o)
    return explain_call(call)


def is_cause(due: Report, found: Explanation) -> bool:
    """Whether the cause that is named is the report's."""
    if "fmt" in due.cause:
        return found.arithmetic is not None and found.arithmetic.fmt == due.cause["fmt"]
    if "change" in due.cause:
        return due.cause["change"] in {each.change for each in found.others}
    return found.dialect == due.cause


def report_row(thread: str) -> dict[str, Any]:
    """A cell: what `explain` makes of a report.

    Returns:
        verdict (the worst of the output and what came with it); due (the right one); believed, residual: root mean
        square of the error over that of the output, as the author read the tensors and as they are read in the end,
        None where the shapes do not fit; bound: the largest error over its bound, None where it has none; conventions
        ("mask_inverted, ..."); fmt of the arithmetic, or "".
    """
    found, due = explained(thread), lookup("thread", thread, BY_THREAD)
    return dict(
        verdict=str(found.worst), due=due.verdict, believed=found.believed, residual=found.residual,
        bound=found.times_bound, conventions=", ".join(each.key for each in found.conventions),
        fmt=found.arithmetic.fmt if found.arithmetic else "",
    )  # fmt: skip
