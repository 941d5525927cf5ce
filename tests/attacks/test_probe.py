"""A kernel beside a model that draws random numbers and changes settings: the model has the bits it has without."""

import random
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attention_check.probe.probe import Probe
from fa_lib import kernels

CALLED = []


def draws(q, k, v, **options):
    CALLED.append((np.random.rand(), random.random(), torch.rand(1)))
    return kernels.unfused(q, k, v, **options)


def sets(q, k, v, **options):
    """Every setting that changes later bits, and some that only speed changes."""
    CALLED.append(torch.set_flush_denormal(True))
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.mkldnn.enabled = False
    torch.backends.mha.set_fastpath_enabled(False)
    return kernels.unfused(q, k, v, **options)


def fails(q, k, v, **options):
    sets(q, k, v, **options)
    raise SystemExit


def model():
    """A call of attention, and whatever the model does after it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    x = torch.randn(1, 2, 16, 8)
    o = F.scaled_dot_product_attention(x, x, x)
    backends = torch.backends
    return (
        o.sum().item(), np.random.rand(), random.random(), torch.rand(1).item(), torch.zeros(1).dtype,
        torch.get_num_threads(), (torch.tensor(1e-310, dtype=torch.float64) * 0.5).item(),
        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
        backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled(), backends.mkldnn.enabled,
        backends.cuda.matmul.allow_bf16_reduced_precision_reduction, backends.mha.get_fastpath_enabled(),
        F.scaled_dot_product_attention(x, x, x).sum().item(),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["draws", "sets", "fails"])
def test_what_a_kernel_beside_a_model_leaves_behind_is_taken_back(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels_x", sys.modules[__name__])
    alone = model()
    CALLED.clear()
    with Probe(f"kernels_x:{name}") as probe:
        watched = model()
    assert CALLED and probe.rows and watched == alone
    assert (f"kernels_x:{name}" in probe.table.kernel.to_list()) == (name != "fails")
