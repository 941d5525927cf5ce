"""Triton's kernels on CPU tensors: compiled by Triton, run here."""

import pytest
import torch
from own_kernels import results
from triton import runtime
from triton_kernels import doubled

from attention_check.explain.compare import ComparisonInputs, compare
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from ptx_machine import Fault, triton

MINE = "examples.triton_attention:attention"
SAGE = "attention_gallery.triton_kernels:sageattention"


def drawn(n, dtype):
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, 64).to(dtype) for _ in range(3)]


def test_gpus_differ_in_one_process_and_the_driver_is_as_before():
    q, k, v = drawn(512, torch.float16)
    before = runtime.driver._active
    a, h, again, off = (kernels.get(MINE, gpu=gpu)(q, k, v) for gpu in ("A100", "H100", "A100", "A100~1"))
    assert torch.equal(a, again) and not torch.equal(a, h) and not torch.equal(a, off)
    assert runtime.driver._active is before and not q.is_cuda and not torch.cuda.is_available()
    with pytest.raises(ValueError, match="gpu: got 'P100'"), triton("P100"):
        pass


def test_autotuning_takes_the_first_configuration_and_says_so():
    x = torch.arange(100, dtype=torch.float32)
    y = torch.zeros(100)
    with triton("L40S"), pytest.warns(UserWarning, match="takes the first configuration"):
        doubled[lambda meta: (-(-100 // meta["block"]),)](x, y, 100)
    assert torch.equal(y, 2 * x) and doubled.best_config.kwargs == {"block": 64}


def test_an_access_beyond_a_tensor_is_a_fault_that_names_the_line():
    x, y = torch.zeros(64), torch.zeros(64)
    with triton("A100"), pytest.raises(Fault, match=r"triton_kernels.py, line \d+ .*outside of argument"):
        doubled.fn[(2,)](x, y, 100, 64)


def test_sageattention_reads_behind_its_scales_where_the_last_block_of_queries_is_half_empty():
    q, k, v = drawn(320, torch.float16)
    with pytest.raises(
        Fault, match=r"attn_qk_int8_per_block_causal.py, line 24 .*outside of argument 4, 0 bytes behind"
    ):
        kernels.get(SAGE, gpu="H100")(q, k, v, causal=True)
    q, k, v = drawn(384, torch.float16)
    assert kernels.get(SAGE, gpu="H100")(q, k, v, causal=True).isfinite().all()


def test_a_backward_pass_launches_on_the_same_gpu():
    q, k, v = (torch.randn(64, requires_grad=True) for _ in range(3))
    kernels.get("triton_kernels:product", gpu="H100")(q, k, v).sum().backward()
    assert torch.equal(q.grad, k.detach()) and torch.equal(k.grad, q.detach()) and torch.equal(v.grad, 0 * v)


def test_compare_takes_such_kernels():
    """Two GPUs' sums differ in few bits, and as little as right kernels do."""
    names = (KernelRef.of(MINE, gpu) for gpu in ("A100", "H100"))
    found = compare(*names, ComparisonInputs(n=256))
    assert found.is_rounding and 0 < found.apart["differing"] < 0.05


@pytest.mark.parametrize("kernel, check, fails", [
    (MINE, "carry", False), ("triton_kernels:carries_16_bits", "carry", True),
    (SAGE, "causality", True),
])  # fmt: skip
def test_check_kernel_judges_them_in_a_process_of_their_own(kernel, check, fails, monkeypatch):
    """SageAttention subtracts K's mean over all keys and takes scales over blocks of them: what a causal mask hides
    changes what is seen."""
    monkeypatch.setenv("PYTHONPATH", "tests/gpu")
    assert results(KernelRef.of(kernel, "H100"), check) == {check: not fails}
