"""FlashAttention-4's own kernels, compiled without a GPU by its own compiler: Hopper's and Blackwell's."""

import pytest
import torch

from attention_gallery.flash_attn_4 import compiled, fa4
from fa_lib.kernels import baseline, tiled
from fa_lib.kernels.shipped_newer import fa4_cuda, fa4_hopper
from ptx_machine.device import GPU

EMULATED = {"H100": fa4_hopper, "B200": fa4_cuda}


def drawn(batch, heads, kv_heads, n_q, n_kv, head_dim=64, dtype=torch.bfloat16):
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
    q, k, v = drawn(*shape)
    o, reference = fa4(q, k, v, causal, None, gpu=gpu), exact(q, k, v, causal)
    assert (o.double() - reference).abs().max() < 2 * (reference.to(o.dtype).double() - reference).abs().max()


@pytest.mark.parametrize("gpu", ["H100", "B200"])
@pytest.mark.parametrize("dtype, fmt", [(torch.bfloat16, "BF16"), (torch.float16, "FP16")])
def test_the_emulator_has_its_bits(gpu, dtype, fmt):
    """What `shipped` says of the kernel, written from its source, gives 99.5 % of its bits or more: the order of sums,
    the rescaling, and Blackwell's polynomials for some of the exponentials."""
    q, k, v = drawn(1, 1, 1, 200, 640, dtype=dtype)
    o = fa4(q, k, v, False, None, gpu=gpu)
    emulated = tiled(q.double(), k.double(), v.double(), **EMULATED[gpu](fmt, 64, gpu))
    assert (o.double() == emulated).double().mean() > 0.995


def test_what_it_has_no_kernel_for_is_refused():
    q, k, v = drawn(1, 1, 1, 300, 300, 128)
    with pytest.raises(NotImplementedError, match="two blocks in a cluster"):
        fa4(q, k, v, False, None, gpu="B200")
    with pytest.raises(NotImplementedError, match="Hopper and Blackwell; A100 came"):
        fa4(q, k, v, False, None, gpu="A100")
    with pytest.raises(NotImplementedError, match="no kernel for this call: AssertionError"):
        compiled(q[..., :60], k[..., :60], False, GPU.of("H100"))
