"""Kernels leave the bytes in memory here that they left on an H100: FlashAttention-2's, and those of the gallery."""

from pathlib import Path

import pandas as pd
import pytest
from h100_calls import left_in_memory

FOLDER = Path(__file__).parents[2] / "data" / "recorded" / "NVIDIA_H100_80GB_HBM3" / "data" / "results"
ON_GPU = pd.concat([pd.read_csv(FOLDER / f"{name}.csv") for name in ("launches", "launches_gallery")])
CALLS = ON_GPU.call.unique()
QUICK = [  # whose kernels other tests compile, too, or Triton in a second
    "flash-attn BF16 64 uniform", "flash-attn BF16 64 normal", "llama_cuda_decode BF16 normal",
    "vllm_unified FP16 uniform causal", "conch_paged BF16 normal", "lmdeploy_decode_int8 FP16 uniform causal",
]  # fmt: skip


@pytest.mark.parametrize("call", [key if key in QUICK else pytest.param(key, marks=pytest.mark.full) for key in CALLS])
def test_a_kernel_leaves_an_h100s_bytes(call):
    due = ON_GPU.query("call == @call")
    both = due.merge(left_in_memory(call), on=["call", "launch", "memory"], how="left", suffixes=("_gpu", ""))
    assert len(both) == len(due) > 0
    assert both[both.sha != both.sha_gpu].empty
