"""Triton's kernels on CPU tensors: compiled by Triton, run here."""

import pytest
import torch
from triton import runtime
from triton_attention import doubled, flash

from fa_lib.formats import Format
from fa_lib.gpu import Fault, triton
from fa_lib.kernels import golden, reference
from fa_lib.precision import Precision


def drawn(n, dtype):
    torch.manual_seed(0)
    return [torch.randn(2, n, 64).to(dtype) for _ in range(3)]


def run(q, k, v, gpu):
    o = torch.empty_like(q)
    with triton(gpu):
        flash[(q.shape[1] // 64, q.shape[0])](q, k, v, o, 0.125, k.shape[1], 64, 64, 64, num_warps=4)
    return o


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [256, 200])
def test_a_flash_kernel_is_as_good_as_baseline(n, dtype):
    """200 keys: the last tile is not full."""
    fmt = Format.of(dtype)
    q, k, v = drawn(256, dtype)
    k, v = k[:, :n].contiguous(), v[:, :n].contiguous()
    o = run(q, k, v, "H100")
    four = [x.double()[None] for x in (q, k, v)]
    due = golden(*four, inputs=fmt)
    baseline = reference(*four, precision=Precision.materialized(fmt)).double()
    assert (o.double()[None] - due).abs().max() <= 2 * (baseline - due).abs().max()


def test_gpus_differ_in_one_process_and_the_driver_is_as_before():
    q, k, v = drawn(512, torch.float16)
    before = runtime.driver._active
    a, h, again = (run(q, k, v, gpu) for gpu in ("A100", "H100", "A100"))
    assert torch.equal(a, again) and not torch.equal(a, h)
    assert runtime.driver._active is before
    with pytest.raises(ValueError, match="gpu: got 'P100'"), triton("P100"):
        pass


def test_autotuning_takes_the_first_configuration_and_says_so():
    x = torch.arange(100, dtype=torch.float32)
    y = torch.zeros(100)
    with triton("L40S"), pytest.warns(UserWarning, match="autotuning takes the first configuration"):
        doubled[lambda meta: (-(-100 // meta["block"]),)](x, y, 100)
    assert torch.equal(y, 2 * x) and doubled.best_config.kwargs == {"block": 64}


def test_an_access_beyond_a_tensor_is_a_fault_that_names_the_line():
    x, y = torch.zeros(64), torch.zeros(64)
    with triton("A100"), pytest.raises(Fault, match=r"triton_attention.py, line \d+ .*outside of argument"):
        doubled.fn[(2,)](x, y, 100, 64)
