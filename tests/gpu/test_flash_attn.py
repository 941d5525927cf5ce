"""FlashAttention-2's own CUDA kernel, compiled from flash-attn's source package, beside the emulator's `fa2_cuda`."""

import re
import subprocess
from collections import Counter

import pytest
import torch

from fa_lib.formats import BF16
from fa_lib.gpu import nvcc
from fa_lib.gpu.contraction import contracted
from fa_lib.gpu.device import GPU
from fa_lib.gpu.flash_attn import compiled, forward
from fa_lib.kernels.known import fa2_cuda
from fa_lib.kernels.tiled import tiled

ULP = 2.0**-7  # of BF16, relative to the number, at most


def drawn(distribution, n, heads=1):
    torch.manual_seed(1)
    return [getattr(torch, distribution)(1, heads, n, 64).bfloat16() for _ in range(3)]


@pytest.mark.parametrize("gpu", ["A100", "H100"])
@pytest.mark.parametrize("distribution", ["rand", "randn"])
def test_the_original_has_the_emulators_bits(distribution, gpu):
    q, k, v = drawn(distribution, 512, heads=2)
    o, lse = forward(q, k, v, gpu=gpu)
    emulated = tiled(q.double(), k.double(), v.double(), **fa2_cuda(BF16, 64, gpu)).double()
    assert (o.double() != emulated).double().mean() <= 1e-4  # its row sums are added up lane by lane, not exactly
    assert ((o.double() - emulated).abs() <= ULP * emulated.abs()).all()
    due = (q.double() @ k.double().mT / 8).logsumexp(-1)
    assert (lse.double() - due).abs().max() < 2e-6


def test_each_gpu_has_sums_of_its_own():
    q, k, v = drawn("randn", 256)
    ampere, hopper = (forward(q, k, v, gpu=gpu)[1] for gpu in ("A100", "H100"))  # in FP32
    assert not torch.equal(ampere, hopper)


def test_calls_that_the_kernel_does_not_take_are_refused():
    q, k, v = drawn("randn", 128)
    with pytest.raises(ValueError, match="q, k, v: got torch.float32"):
        forward(q.float(), k.float(), v.float())
    with pytest.raises(ValueError, match=r"accepted is head_dim 64 or 128, heads that are a multiple"):
        forward(q[..., :32], k[..., :32], v[..., :32])


def test_products_are_joined_to_sums_as_often_as_ptxas_does(tmp_path):
    """FMUL, FADD, FFMA and HMMA in its machine code for an A100, and mul, add and sub, fma and mma in ours."""
    kernel, *_ = compiled(64, torch.bfloat16, GPU.of("A100"), False, False, True, False)
    (tmp_path / "kernel.ptx").write_text(kernel.text)
    tool = nvcc.toolkit() / "bin"
    cubin = tmp_path / "kernel.cubin"
    subprocess.run([tool / "ptxas", "-O3", "-arch=sm_80", tmp_path / "kernel.ptx", "-o", cubin], check=True)
    code = subprocess.run([tool / "nvdisasm", cubin], check=True, capture_output=True, text=True).stdout
    theirs = Counter(re.findall(r"\s(FMUL|FADD|FFMA|HMMA)\b", code))
    names = {"mul": "FMUL", "add": "FADD", "sub": "FADD", "fma": "FFMA", "mma": "HMMA"}
    instructions = contracted(kernel.entry).instructions
    ours = Counter(names[each.name] for each in instructions if each.name in names and each.types[-1] == "f32")
    assert ours == theirs
