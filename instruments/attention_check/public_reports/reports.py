"""Public reports of attention that differs: what was asked, and what is right to answer. That is the answer of the
maintainers, or our reading where a thread has none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attention_check.public_reports import report_calls as calls


@dataclass(frozen=True)
class Report:
    """A thread, and what is right to answer.

    Attributes:
        thread: repository and number. asked: what its author saw.
        make: gives its Call. verdict: "rounding", "convention", "precision" or "bug".
        cause: the conventions that the output follows (aspect -> choice), dict(fmt=a format) of its arithmetic, or
            dict(change=what a gradient is); {} where the verdict says all.
    """

    thread: str
    asked: str
    make: Callable[[], calls.Call]
    verdict: str
    cause: dict[str, Any] = field(default_factory=dict)


REPORTS = (
    Report("pytorch/pytorch#196468", "compiled differs by 0.35", calls.softmax_over_dim_0, "bug",
           dict(softmax="over_batch")),
    Report("pytorch/pytorch#187506", "wrong numbers", calls.other_last_stride, "bug", dict(layout="k_column_major")),
    Report("pytorch/pytorch#184330", "output is 0", calls.no_features, "bug"),
    Report("pytorch/pytorch#151098", "compiled is less exact than eager", calls.less_exact, "rounding"),
    Report("pytorch/pytorch#179578", "a fuzzer's alarm, 7e-8", calls.one_head, "rounding"),
    Report("pytorch/pytorch#141128", "NaN became numbers", calls.nan_hidden, "bug"),
    Report("pytorch/pytorch#127055", "NaN, though every row sees keys", calls.block_hidden, "bug"),
    Report("pytorch/pytorch#133671", "gradients differ", calls.gradients_of_another_order, "bug",
           dict(change="dO_in_memory_order")),
    Report("pytorch/pytorch#148153", "16 apart after 1 / attention", calls.inverted_after, "rounding"),
    Report("pytorch/pytorch#119188", "the documented code differs", calls.split_scale, "rounding"),
    Report("pytorch/pytorch#163588", "3.4 % off with a mask", calls.one_query, "rounding"),
    Report("meta-pytorch/attention-gym#131", "BF16 differs by 0.125", calls.large_inputs, "rounding"),
    Report("huggingface/transformers#48748", "perplexity too good", calls.future_seen, "bug", dict(causal="none")),
    Report("rasbt/LLMs-from-scratch#1061", "sees the future", calls.other_polarity, "convention",
           dict(mask="inverted")),
    Report("microsoft/onnxruntime#29020", "CPU and CUDA differ", calls.top_left, "convention", dict(causal="top_left")),
    Report("openvinotoolkit/openvino#35796", "4.3 off FP64", lambda: calls.executed_in_bf16(softcap=40000.0),
           "precision",
           dict(fmt="BF16")),
    Report("openvinotoolkit/openvino#38256", "cosine 0.28", calls.wrong_product, "bug"),
    Report("ml-explore/mlx#2835", "causal differs from torch", calls.bottom_right, "convention",
           dict(mask="triangle_bottom_right")),
    Report("ml-explore/mlx#3585", "differs by 0.5, \"float order\"", calls.layout, "convention",
           dict(layout="all_bshd")),
    Report("ml-explore/mlx#3452", "decode differs with sinks", calls.sinks_dropped, "bug", dict(sinks="ignored")),
    Report("jax-ml/jax#35916", "silently incorrect", calls.layout_of_jax, "convention", dict(layout="all_bshd")),
    Report("triton-lang/triton#11584", "values of 1e10", calls.bits_multiplied, "bug"),
    Report("triton-lang/triton#5895", "interpreter 1e-6, GPU 2e-2", calls.tf32, "precision", dict(fmt="TF32")),
    Report("thu-ml/SageAttention#340", "causal is off by 2.7", calls.int8_products, "precision",
           dict(fmt="INT8_SMOOTH")),
    Report("pytorch/pytorch#191937", "wrong at lengths of 1 mod 32", calls.last_key_lost, "bug", dict(keys=(0, 224))),
    Report("FlagOpen/FlagGems#5896", "cosine 0.81", calls.strides_of_another, "bug", dict(layout="k_reshaped")),
    Report("tenstorrent/tt-metal#51927", "correlation 0.99 says fine", calls.eight_bits, "precision",
           dict(fmt="FP8_HEAD")),
    Report("ScalingIntelligence/KernelBench#165", "zeros pass a tolerance of 1e-2", calls.zeros, "bug"),
    Report("HazyResearch/HipKittens#64", "torch itself fails rtol", calls.near_zero, "rounding"),
    Report("ggml-org/llama.cpp#24406", "a limit hit by a right FP16 kernel", calls.fp16, "rounding"),
    Report("ggml-org/llama.cpp, CUDA", "O carried in FP16", calls.fp16_carried, "precision", dict(fmt="FP16")),
)  # fmt: skip
