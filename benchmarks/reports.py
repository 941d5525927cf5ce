"""How good is `fa-lib explain` on other people's reports of attention that differs: what was asked, what is right to
answer (the answer of the maintainers, or our reading where a thread has none), and what `explain` answers. `make
reports` writes data/reports.csv, and the score into docs/reports.md.

A function makes the tensors of each thread: where the library of then is not at hand, a few lines make the defect; the
thread has what was found.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attention_check.conventions.reading import CapturedCall
from attention_check.explain.explain import explain_call
from attention_check.explain.explain_words import groups
from attention_check.explain.verdict import Explanation, Verdict
from benchmarks.other_judges import close
from fa_lib import kernels
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED, baseline_for
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import E4M3, FP16, FP64, TF32, Format

PAGE, TABLE = ROOT / "docs" / "reports.md", ROOT / "data" / "reports.csv"
OF_THEN = ROOT / "data" / "old_libraries.safetensors"  # recorded by benchmarks/old_wheels of commit b9d9d80b
MARKS = "<!-- begin: make reports -->", "<!-- end: make reports -->"
SHOWN = ("thread", "seen", "made_by", "right", "explain", "assert_close", "rule")  # in docs/reports.md
TEXT = """\
**Verdict right: {verdicts} of {count}. Cause right, if there is one to name: {causes} of {named}. A next step is
named in {steps}.** It took {seconds:.0f} s of CPU time. `torch.testing.assert_close` with its defaults, and the rule
(at most twice Baseline's largest error), give only two answers. Read as "nothing to fix" or not, assert_close is
right in {close}, the rule in {rule} of {count}."""


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


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> list[Tensor]:
    """Three normal tensors of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(dtype) for _ in range(3)]


def ran(tensors: Iterable[Tensor], o: Tensor | Callable[..., Tensor] = sdpa, **options: Any) -> CapturedCall:
    """The call of q, k and v. o: the output, or what gives it, f(q, k, v); options: those its author believed in."""
    q, k, v = tensors
    return CapturedCall(q, k, v, o(q, k, v) if callable(o) else o, options)


def _turned(x):
    return x.transpose(1, 2)


def _as_bshd(q, k, v):
    return _turned(sdpa(*map(_turned, (q, k, v))))


def _bf16():
    return drawn(1, 8, 256, 64)


def _fp32():
    return drawn(1, 8, 256, 64, dtype=torch.float32)


def _fp16(*shape):
    return drawn(*shape, dtype=torch.float16)


def fp8(x: Tensor) -> Tensor:
    """A tensor in E4M3, with one scale a head."""
    scale = x.abs().amax((-1, -2), keepdim=True) / 448
    return E4M3((x / scale).double()).float() * scale


def int8(x: Tensor) -> Tensor:
    """A tensor (..., n, d) in integers to 127, times a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def softmax_over_dim_0():
    q, k, v = (drawn(4, 4, n, 8, dtype=torch.float32, seed=n)[0] for n in (2, 3, 4))
    return ran((q, k, v[:, :, :3]), torch.softmax(q @ k.mT / 8**0.5, 0) @ v[:, :, :3])


def no_features():
    v = drawn(1, 16, 16, 1, dtype=torch.float32)[0]
    return ran((v[..., :0], v[..., :0], v), torch.zeros_like(v))


def less_exact():
    options = dict(scale=8**-0.5)
    exact = partial(kernels.unfused, **options)
    return ran(drawn(1, 16, 64, 64, dtype=torch.float32), exact, **options, mask=torch.zeros(64, 64))


def nan_hidden():
    q, k, v = drawn(2, 4, 16, 8, dtype=torch.float32)
    o = sdpa(q, k, v)
    q[0, 0, 5, 0] = math.nan
    return ran((q, k, v), o)


def block_hidden():
    """exp(-inf + inf) where a block of 512 keys is hidden from a row."""
    q, k, v = drawn(1, 2, 640, 64, dtype=torch.float32)
    mask = torch.full((640, 640), -math.inf).triu(1) + torch.full((640, 640), -math.inf).tril(-10)
    o = sdpa(q, k, v, attn_mask=mask)
    o[:, :, 522:] = math.nan
    return ran((q, k, v), o, mask=mask)


def gradients_of_another_order():
    q, k, v = (x.requires_grad_() for x in drawn(2, 2, 49, 32, dtype=torch.float32))
    dO = torch.arange(q.numel(), dtype=torch.float32).reshape(q.shape) / q.numel()
    o = sdpa(q, k, v)
    in_memory = dO.reshape(2, 49, 2, 32).transpose(1, 2)  # the same numbers, filled in as they lie in memory
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), in_memory)
    return replace(ran((x.detach() for x in (q, k, v)), o.detach()), others=dict(dO=dO, dq=dq, dk=dk, dv=dv))


def split_scale():
    root = 64**-0.25
    return ran(_bf16(), lambda q, k, v: torch.softmax((q * root) @ (k * root).mT, -1) @ v)


def one_query():
    q, k, v = drawn(1, 1, 1000, 64)
    mask = torch.rand(1, 1000, generator=torch.Generator().manual_seed(3)) < 0.58
    return ran((q[:, :, :1], k, v), partial(sdpa, attn_mask=mask), mask=mask)


def other_polarity():
    mask = torch.ones(256, 256, dtype=torch.bool).tril()
    return ran(_bf16(), partial(sdpa, attn_mask=~mask.tril(-1)), mask=mask.tril(-1))


def top_left():
    q, k, v = _fp32()
    return ran((q[:, :, :32], k, v), partial(sdpa, is_causal=True), causal=True)


def bottom_right():
    q, k, v = _fp16(1, 4, 1024, 64)
    mask = torch.ones(32, 1024, dtype=torch.bool).tril()
    return ran((q[:, :, :32], k, v), partial(kernels.flash, causal=True), mask=mask)


def sinks_dropped():
    q, k, v = drawn(1, 8, 34, 64)
    return ran((q[:, :, :1], k, v), sinks=torch.linspace(0, 4, 8))


def bits_multiplied():
    q, k, v = drawn(1, 1, 16, 16)
    bits = q.view(torch.int16).double() @ k.view(torch.int16).double().mT
    return ran((q, k, v), (bits @ v.double()).bfloat16())


def int8_products():
    """q k^T in integers, with a scale for each row, after K's mean is taken off: SageAttention's step."""
    q, k, v = _fp16(2, 4, 512, 128)
    q8, k8 = (int8(x) for x in (q.double(), k.double() - k.double().mean(2, keepdim=True)))
    return ran((q, k, v), kernels.golden(q8, k8, v.double(), inputs=FP64, causal=True).half(), causal=True)


def eight_bits():
    q, k, v = _fp32()
    return ran((x.bfloat16() for x in (q, k, v)), sdpa(fp8(q), fp8(k), fp8(v)).bfloat16())


def near_zero():
    q, k, v = _bf16()
    return ran((q, k, v - v.mean(2, keepdim=True)))


def fp16_carried():
    q = _fp16(1, 4, 64, 64)[0]
    k, v = (torch.rand(1, 4, 4096, 64, generator=torch.Generator().manual_seed(i)).half() for i in (1, 2))
    precision = replace(Precision.kernel(FP16), accumulator=FP16, row_sum=FP16)
    return ran((q, k, v), partial(kernels.tiled, tiling=Tiling(64, 32), precision=precision))


REPORTS = [
    Report("pytorch/pytorch#196468", "compiled differs by 0.35", softmax_over_dim_0, "bug", dict(softmax="over_batch")),
    Report("pytorch/pytorch#187506", "wrong numbers", lambda: ran(
        _bf16(), lambda q, k, v: sdpa(q, k.mT.reshape(k.shape), v)), "bug", dict(layout="k_column_major")),
    Report("pytorch/pytorch#184330", "output is 0", no_features, "bug"),
    Report("pytorch/pytorch#151098", "compiled is less exact than eager", less_exact, "rounding"),
    Report("pytorch/pytorch#179578", "a fuzzer's alarm, 7e-8", lambda: ran(
        drawn(2, 1, 128, 256, dtype=torch.float32)), "rounding"),
    Report("pytorch/pytorch#141128", "NaN became numbers", nan_hidden, "bug"),
    Report("pytorch/pytorch#127055", "NaN, though every row sees keys", block_hidden, "bug"),
    Report("pytorch/pytorch#133671", "gradients differ", gradients_of_another_order, "bug",
           dict(change="dO_in_memory_order")),
    # 1 / o is 16 apart where o is near 0; o itself is right
    Report("pytorch/pytorch#148153", "16 apart after 1 / attention", lambda: ran(
        (_turned(side.unflatten(-1, (8, 64))) for side in drawn(10, 1, 512, dtype=torch.float32)), kernels.unfused,
    ), "rounding"),
    Report("pytorch/pytorch#119188", "the documented code differs", split_scale, "rounding"),
    Report("pytorch/pytorch#163588", "3.4 % off with a mask", one_query, "rounding"),
    Report("meta-pytorch/attention-gym#131", "BF16 differs by 0.125", lambda: ran(
        10 * x for x in drawn(1, 16, 240, 128)), "rounding"),
    Report("huggingface/transformers#48748", "perplexity too good", lambda: ran(_bf16(), causal=True), "bug",
           dict(causal="none")),
    Report("rasbt/LLMs-from-scratch#1061", "sees the future", other_polarity, "convention", dict(mask="inverted")),
    Report("microsoft/onnxruntime#29020", "CPU and CUDA differ", top_left, "convention", dict(causal="top_left")),
    Report("openvinotoolkit/openvino#35796", "4.3 off FP64", lambda: ran(
        drawn(4, 1, 64, 128, dtype=torch.float32),
        lambda *tensors: kernels.flash(*(x.bfloat16() for x in tensors)).float(), softcap=40000.0,
    ), "precision", dict(fmt="BF16")),
    Report("openvinotoolkit/openvino#38256", "cosine 0.28", lambda: ran(
        _bf16(), lambda q, k, v: sdpa(q, torch.cat([k[..., 1::2], k[..., 0::2]], -1), v)), "bug"),
    Report("ml-explore/mlx#2835", "causal differs from torch", bottom_right, "convention",
           dict(mask="triangle_bottom_right")),
    Report("ml-explore/mlx#3585", 'differs by 0.5, "float order"', lambda: ran(
        drawn(2, 82, 8, 64, dtype=torch.float32), _as_bshd), "convention", dict(layout="all_bshd")),
    Report("ml-explore/mlx#3452", "decode differs with sinks", sinks_dropped, "bug", dict(sinks="ignored")),
    Report("jax-ml/jax#35916", "silently incorrect", lambda: ran(
        drawn(1, 4, 32, 64, dtype=torch.float32), _as_bshd), "convention", dict(layout="all_bshd")),
    Report("triton-lang/triton#11584", "values of 1e10", bits_multiplied, "bug"),
    Report("triton-lang/triton#5895", "interpreter 1e-6, GPU 2e-2", lambda: ran(
        _fp32(), lambda *tensors: sdpa(*(TF32(x.double()).float() for x in tensors))), "precision", dict(fmt="TF32")),
    Report("thu-ml/SageAttention#340", "causal is off by 2.7", int8_products, "precision", dict(fmt="INT8_SMOOTH")),
    Report("pytorch/pytorch#191937", "wrong at lengths of 1 mod 32", lambda: ran(
        drawn(1, 2, 225, 512), lambda q, k, v: sdpa(q, k[:, :, :224], v[:, :, :224])), "bug", dict(keys=(0, 224))),
    Report("FlagOpen/FlagGems#5896", "cosine 0.81", lambda: ran(
        _bf16(), lambda q, k, v: sdpa(q, _turned(k.reshape(1, 256, 8, 64)), v)), "bug", dict(layout="k_reshaped")),
    Report("tenstorrent/tt-metal#51927", "correlation 0.99 says fine", eight_bits, "precision", dict(fmt="FP8_HEAD")),
    Report("ScalingIntelligence/KernelBench#165", "zeros pass a tolerance of 1e-2", lambda: ran(
        _fp32(), lambda q, k, v: torch.zeros_like(v)), "bug"),
    Report("HazyResearch/HipKittens#64", "torch itself fails rtol", near_zero, "rounding"),
    Report("ggml-org/llama.cpp#24406", "a limit hit by a right FP16 kernel", lambda: ran(
        _fp16(1, 8, 128, 64), kernels.as_shipped), "rounding"),
    Report("ggml-org/llama.cpp, CUDA", "O carried in FP16", fp16_carried, "precision", dict(fmt="FP16")),
]  # fmt: skip


def is_cause(due: Report, found: Explanation) -> bool:
    """Whether the cause that is named is the report's."""
    if "fmt" in due.cause:
        return found.arithmetic is not None and found.arithmetic.fmt == due.cause["fmt"]
    if "change" in due.cause:
        return due.cause["change"] in {each.change for each in found.others}
    return found.dialect == due.cause


def by_rule(call: CapturedCall, golden: torch.Tensor) -> bool:
    """Whether the largest error is within ALLOWED times Baseline's."""
    baseline = baseline_for(Format.of(call.q.dtype))(call.q, call.k, call.v, **call.options)
    allowed = ALLOWED["o"] * (baseline.double() - golden).abs().max()
    return bool((call.o.double() - golden).abs().max() <= allowed)


def others(call: CapturedCall) -> tuple[bool, bool]:
    """Whether `assert_close` passes, with its defaults, and `by_rule`; False where they cannot be asked."""
    try:
        golden = kernels.golden(call.q, call.k, call.v, inputs=Format.of(call.q.dtype), **call.options)
    except ValueError:
        return False, False
    if golden.shape != call.o.shape:
        return False, False
    return close("o", call.o, golden.to(call.o.dtype), None), by_rule(call, golden)


def with_old_library(report: Report, call: CapturedCall) -> tuple[CapturedCall, str | None]:
    """A report's call with the output of the library of then, and its name; as it is and None where there is none."""
    with safe_open(OF_THEN, "pt") as file:
        name = file.metadata().get(report.thread)
        return (replace(call, o=file.get_tensor(report.thread)), name) if name else (call, None)


def next_step(found: Explanation) -> bool:
    """Whether an answer says what to do next: nothing, which option or computation, or where to look."""
    if found.verdict == Verdict.CONVENTION:
        return any(each.selects for each in found.conventions)
    if found.verdict == Verdict.PRECISION:
        return found.arithmetic is not None
    known = found.dialect or found.where or found.dropout or found.nan_rows or found.hidden_nan
    named = bool(known) or found.constant is not None or any(each.change for each in found.others)
    return found.is_rounding or named


def numbers(found: Explanation) -> dict[str, Any]:
    """The verdict (the worst of the output and what came with it); believed, residual: root mean square of the error
    over that of the output, as the author read the tensors and as they are read in the end, None where the shapes do
    not fit; bound: the largest error over its bound, None where it has none; conventions ("mask_inverted, ..."); fmt of
    the arithmetic, or ""."""
    return dict(
        verdict=str(found.worst), believed=found.believed, residual=found.residual, bound=found.times_bound,
        conventions=", ".join(each.key for each in found.conventions),
        fmt=found.arithmetic.fmt if found.arithmetic else "",
    )  # fmt: skip


def judged() -> tuple[pd.DataFrame, str]:
    """A row for each report, SHOWN and the `numbers` of the output that its few lines make; and the score in words."""
    rows, verdicts, causes, steps, close, rule, started = [], 0, 0, 0, 0, 0, time.process_time()
    for report in REPORTS:
        own = report.make()
        call, made_by = with_old_library(report, own)
        found = explain_call(call)
        fine, (passes, within) = report.verdict == "rounding", others(call)
        verdicts += found.worst == report.verdict
        steps += found.worst == report.verdict and next_step(found)
        causes += bool(report.cause) and is_cause(report, found)
        close, rule = close + (passes == fine), rule + (within == fine)
        answer = next(text for verdict, (text, *_) in groups(found) if verdict == found.worst)
        mark = "" if found.worst == report.verdict else "**wrong:** "
        cells = report.thread, report.asked, made_by or "a few lines", report.verdict, f"{mark}{found.worst}: {answer}"
        cells = (*cells, "close" if passes else "differs", "within" if within else "breaks it")
        rows.append(dict(zip(SHOWN, cells)) | numbers(explain_call(own) if made_by else found))
    named = sum(bool(report.cause) for report in REPORTS)
    score = TEXT.format(
        count=len(REPORTS), verdicts=verdicts, causes=causes, named=named, steps=steps, close=close, rule=rule,
        seconds=time.process_time() - started,
    )  # fmt: skip
    return pd.DataFrame(rows), score


if __name__ == "__main__":
    table, score = judged()
    with replacing(TABLE) as path:
        table.to_csv(path, index=False, float_format="%.7g")
    with replacing(PAGE) as path:
        path.write_text(renewed(PAGE.read_text(), *MARKS, score, PAGE.name))
    print(score)
