"""FlashAttention-2's own kernels leave the bytes in memory here that they left on an H100 (`fa-lib dev record`)."""

import pandas as pd
import pytest

from fa_lib.execution.paths import RECORDED
from fa_lib.experiments.hardware.launched import on_machine

ON_GPU = RECORDED / "NVIDIA_H100_80GB_HBM3" / "data" / "results" / "launches.csv"
CALLS = pd.read_csv(ON_GPU).call.unique()
QUICK = ["flash-attn BF16 64 uniform", "flash-attn BF16 64 normal"]  # whose kernel other tests compile, too


def held(keys):
    due = pd.read_csv(ON_GPU).query("call in @keys")
    found = on_machine(keys).merge(due, on=["call", "launch", "memory"], suffixes=("", "_gpu"))
    assert len(found) == len(due) > 0
    assert found[found.sha != found.sha_gpu].empty


def test_a_kernel_leaves_an_h100s_bytes():
    held(QUICK)


@pytest.mark.full
@pytest.mark.parametrize("call", [key for key in CALLS if key not in QUICK])
def test_so_do_all_others(call):
    held([call])
