"""FlashAttention's own kernels beside the emulator: FlashAttention-2's, compiled from flash-attn's source package, and
FlashAttention-4's for Hopper and Blackwell, by its own compiler."""

import re
import subprocess
from collections import Counter
from math import inf

import pytest
import torch

from attention_check.gpu import flash_attn
from attention_check.gpu.flash_attn import backward, forward, splits_of
from attention_check.gpu.flash_attn_kernels import Case, forward_kernels
from attention_gallery.flash_attn_4 import compiled, fa4
from benchmarks.original import original
from fa_lib import kernels
from fa_lib.kernels import baseline, tiled
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.shipped_newer import fa4_cuda, fa4_hopper
from ptx_machine import GPU, Fault, nvcc
from ptx_machine.contraction import contracted

FEW = 2e-4  # of the outputs: the kernel adds up a row's sum lane by lane, the emulator exactly
EXACTLY = dict(head_dim=64, dtype=torch.bfloat16, gpu=GPU.of("A100"), causal=False, local=False, softcap=False)


def drawn(n, n_kv=0, heads=1, heads_kv=0, d=64):
    torch.manual_seed(1)
    sizes = (heads, n), (heads_kv or heads, n_kv or n), (heads_kv or heads, n_kv or n)
    return [torch.randn(1, *size, d).bfloat16() for size in sizes]


@pytest.mark.parametrize("gpu", ["A100", "H100"])
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_the_original_has_the_emulators_bits(distribution, gpu):
    rows = {row["choice"]: row for row in original("BF16", 64, False, gpu, distribution, 512, 0)}
    model = rows.pop("model")
    assert model["different"] <= FEW and model["lse_difference"] < 3e-6 and model["times_max"] < 1.1
    assert min(row["different"] for key, row in rows.items() if key in ("exact", "forwards", "not_rounded")) > FEW


@pytest.mark.full
def test_through_kernels_get_it_takes_every_head_dim_and_has_gradients():
    q, k, v = (x.requires_grad_() for x in drawn(64, heads=4, heads_kv=2, d=20))
    o = kernels.get("fa2", gpu="L40S")(q, k, v, causal=True)
    dO = torch.randn_like(o)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    due = kernels.reference(*exact, precision=Precision.uniform("FP64"), causal=True)
    grads = torch.autograd.grad(o, (q, k, v), dO), torch.autograd.grad(due, exact, dO.double())
    assert (o.double() - due).abs().max() < 0.02
    for found, wanted in zip(*grads):
        assert found.shape == wanted.shape and (found.double() - wanted).abs().max() < 0.03 * wanted.abs().max()


@pytest.mark.full
def test_the_combining_kernel_writes_whole_blocks_of_rows(monkeypatch):
    """Of 3 rows the log-sum-exp has 8: torch's CUDA memory comes in pieces of 512 bytes, and hides it."""
    q, k, v = drawn(3, 512)
    forward(q, k, v, splits=2)
    monkeypatch.setattr(flash_attn, "combined_rows", lambda width: 1)
    with pytest.raises(Fault, match=r"flash_fwd_kernel.h, line 1206 .*outside of softmax_lse_ptr, 0 bytes behind"):
        forward(q, k, v, splits=2)


@pytest.mark.full
def test_no_warps_race_in_its_shared_memory(monkeypatch):
    q, k, v = drawn(128)
    kernels_of = forward_kernels(Case(**EXACTLY, n_q=128, n_kv=128))
    own = kernels_of.kernel("flash_fwd_kernel")
    watched = type(own)(own.text, own.entry.name, races=True)
    monkeypatch.setitem(kernels_of._kernels, own.entry.name, watched)
    with_races, _ = forward(q, k, v, splits=1)
    monkeypatch.undo()
    assert torch.equal(with_races, forward(q, k, v, splits=1)[0])


def test_each_gpu_has_sums_of_its_own_and_wobbling_changes_few_bits():
    q, k, v = drawn(256)
    (a, ampere), (h, hopper), (w, _) = (forward(q, k, v, gpu=gpu, splits=1) for gpu in ("A100", "H100", "A100~1"))
    assert not torch.equal(ampere, hopper)  # in FP32
    assert 0 < (a != w).double().mean() < 0.05


def test_parts_of_the_keys_are_as_many_as_flash_attn_takes():
    """As flash_api.cpp's heuristic, worked out by hand: twice 108 multiprocessors, tiles of 256 keys."""
    a100 = GPU.of("A100")
    assert splits_of(heads=1, n_q=1, n_kv=4096, head_dim=64, gpu=a100) == 16  # 16 tiles, one each
    assert splits_of(heads=64, n_q=1, n_kv=4096, head_dim=64, gpu=a100) == 3  # 192 of 216 places, 89 %
    assert splits_of(heads=173, n_q=1, n_kv=4096, head_dim=64, gpu=a100) == 1  # 80 % are taken
    assert splits_of(heads=1, n_q=4096, n_kv=4096, head_dim=64, gpu=a100) == 3  # the usual call of one head is split


def test_calls_that_the_kernel_does_not_take_are_refused():
    q, k, v = drawn(128)
    with pytest.raises(ValueError, match="q, k, v: got torch.float32"):
        forward(q.float(), k.float(), v.float())
    with pytest.raises(ValueError, match="^q, k, v: got .*; accepted is .*head_dim .* 8 up to 256"):
        forward(q[..., :20], k[..., :20], v[..., :20])
    with pytest.raises(ValueError, match="splits: got 0; accepted are 1 to 128"):
        forward(q, k, v, splits=0)
    with pytest.raises(ValueError, match=r"dO, o, lse: got .*accepted are q's shape"):
        backward(q, (q, k, v), (q, torch.full((1, 1, 64), inf)))


def test_products_are_joined_to_sums_as_often_as_ptxas_does(tmp_path):
    """FMUL, FADD, FFMA and HMMA in its machine code for an A100, and mul, add and sub, fma and mma in ours."""
    kernel = forward_kernels(Case(**EXACTLY, n_q=128, n_kv=128)).kernel("flash_fwd_kernel")
    (tmp_path / "kernel.ptx").write_text(kernel.text)
    tool = nvcc.toolkit() / "bin"
    cubin = tmp_path / "kernel.cubin"
    subprocess.run([tool / "ptxas", "-O3", "-arch=sm_80", tmp_path / "kernel.ptx", "-o", cubin], check=True)
    code = subprocess.run([tool / "nvdisasm", cubin], check=True, capture_output=True, text=True).stdout
    (code,) = re.findall(rf"\.section\s+\.text\.{kernel.entry.name}\b(.*?)(?=\.section\s|\Z)", code, re.S)
    theirs = Counter(re.findall(r"\s(FMUL|FADD|FFMA|HMMA)\b", code))
    names = {"mul": "FMUL", "add": "FADD", "sub": "FADD", "fma": "FFMA", "mma": "HMMA"}
    instructions = contracted(kernel.entry).instructions
    ours = Counter(names[each.name] for each in instructions if each.name in names and each.types[-1] == "f32")
    assert ours == theirs


EMULATED = {"H100": fa4_hopper, "B200": fa4_cuda}


def seeded(batch, heads, kv_heads, n_q, n_kv, head_dim=64, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(n_q + n_kv)
    shapes = (heads, n_q), (kv_heads, n_kv), (kv_heads, n_kv)
    return [torch.randn(batch, h, n, head_dim, generator=generator).to(dtype) for h, n in shapes]


def exact(q, k, v, causal):
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return baseline(q.double(), k, v, causal=causal)


@pytest.mark.parametrize("gpu", ["H100", "B200"])
@pytest.mark.parametrize("shape, causal", [
    ((2, 3, 3, 113, 203), False), ((2, 3, 3, 113, 203), True), ((1, 4, 2, 200, 200), True), ((1, 4, 2, 70, 200), False),
    ((1, 1, 1, 1, 300, 128), True), ((1, 1, 1, 300, 300, 128), True),
])  # fmt: skip
def test_it_is_as_exact_as_its_outputs_format(gpu, shape, causal):
    """Masks, tiles at the edge, heads that share keys, both ways in which work is given to blocks."""
    q, k, v = seeded(*shape)
    o, reference = fa4(q, k, v, causal, None, gpu=gpu), exact(q, k, v, causal)
    assert (o.double() - reference).abs().max() < 2 * (reference.to(o.dtype).double() - reference).abs().max()


@pytest.mark.parametrize("gpu", ["H100", "B200"])
@pytest.mark.parametrize("dtype, fmt", [(torch.bfloat16, "BF16"), (torch.float16, "FP16")])
def test_the_emulator_has_its_bits(gpu, dtype, fmt):
    """What `shipped` says of the kernel, written from its source, gives 99.5 % of its bits or more: the order of sums,
    the rescaling, and Blackwell's polynomials for some of the exponentials."""
    q, k, v = seeded(1, 1, 1, 200, 640, dtype=dtype)
    o = fa4(q, k, v, False, None, gpu=gpu)
    emulated = tiled(q.double(), k.double(), v.double(), **EMULATED[gpu](fmt, 64, gpu))
    assert (o.double() == emulated).double().mean() > 0.995


def test_what_it_has_no_kernel_for_is_refused():
    q, k, v = seeded(1, 1, 1, 300, 300, 128)
    with pytest.raises(NotImplementedError, match="two blocks in a cluster"):
        fa4(q, k, v, False, None, gpu="B200")
    with pytest.raises(NotImplementedError, match="Hopper and Blackwell; A100 came"):
        fa4(q, k, v, False, None, gpu="A100")
    with pytest.raises(NotImplementedError, match="no kernel for this call: AssertionError"):
        compiled(q[..., :60], k[..., :60], False, GPU.of("H100"))
