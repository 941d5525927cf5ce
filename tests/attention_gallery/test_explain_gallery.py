"""`explain` on what the libraries of the gallery give: none of it is a bug, and what is coarser is named."""

import pytest
import torch

import fa_lib
from attention_check.explain.verdict import Verdict
from attention_gallery.catalogue import ENTRIES
from benchmarks.reports import drawn

RUN = [key for key, entry in ENTRIES.items() if not entry.problem]
COARSE = {  # key -> the computation and its format, on FP16 inputs: what llama.cpp and whisper.cpp do when they decode
    **dict.fromkeys(("ggml_decode", "ggml_few", "ggml_decode_1_thread", "whisper_decode", "whisper_few"),
                    ("accumulator", "FP16")),
    "ggml_q8_0": ("quantized_qkv", "Q8_0"), "ggml_q4_0": ("quantized_kv", "Q4_0"),
}  # fmt: skip
MAY_BE_COARSE = {
    *COARSE,
    "openvino_sdpa",
    "openvino_sdpa_fp32_model",
    "ring_16_bit_logits",
    "pallas_gpu_decode",
}  # by the processor, too


def outputs(key):
    """What a kernel gives in each format that it takes, causal and not: q, k, v, o, options."""
    fn = ENTRIES[key].kernel()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, options in ((256, {}), (200, dict(causal=True))):
            q, k, v = drawn(1, 4, n, 64, dtype=dtype)
            try:
                o = fn(q.clone(), k.clone(), v.clone(), **options)
            except (TypeError, ValueError, RuntimeError):  # it has no such format, mask or length
                continue
            yield q, k, v, (o[0] if isinstance(o, tuple) else o).detach(), options


@pytest.mark.parametrize("key", RUN)
def test_no_right_output_is_a_bug(key):
    verdicts = [fa_lib.explain(q, k, v, o, **options).verdict for q, k, v, o, options in outputs(key)]
    allowed = {Verdict.ROUNDING} | ({Verdict.PRECISION} if key in MAY_BE_COARSE else set())
    assert len(verdicts) >= 2 and {*verdicts} <= allowed


@pytest.mark.parametrize("key", COARSE)
def test_what_is_coarser_is_named(key):
    q, k, v = drawn(1, 4, 256, 64, dtype=torch.float16)
    found = fa_lib.explain(q, k, v, ENTRIES[key].kernel()(q, k, v).detach())
    assert (found.verdict, found.arithmetic.key, found.arithmetic.fmt) == (Verdict.PRECISION, *COARSE[key])
    assert found.arithmetic.share > 0.7
