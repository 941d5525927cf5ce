"""Torch extensions of other projects, from their source packages, compiled and called unchanged without a GPU."""

import pytest
import torch
from torch.utils.cpp_extension import load

from attention_check.gpu import on
from attention_check.measure.capability import RACES
from fa_lib import kernels
from fa_lib.numerics.formats import FP16
from ptx_machine.extension import torch_extensions
from ptx_machine.memory import Fault, Unwritten
from ptx_machine.sources import Package, unpacked

FASTERKERNELS = Package(
    "fasterkernels", "0.2.0", "fasterkernels-0.2.0.tar.gz",
    "e7eb18805c638fcc5ac542cd6700f80e0842871fb3fb6b4247a839884172ddd1", ("fskernels/cuda",),
)  # fmt: skip
FAST_TRANSFORMERS = Package(
    "pytorch-fast-transformers", "0.4.0", "pytorch-fast-transformers-0.4.0.tar.gz",
    "d1826bc31b9dfbcd018998b897667e89fc6566bd3f8c424cda9f0943544f7e90", ("fast_transformers/causal_product",),
)  # fmt: skip


def compiled(package, *names):
    (folder,) = package.keep
    files = [f"{unpacked(package) / folder / name}" for name in names]
    with torch_extensions("A100"):
        return load(f"public_{names[0].split('.')[0]}", files)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_flash_attention_2_of_fasterkernels():
    """It has head_dim 64 and 128; of others it launches nothing, and returns what torch.empty_like held."""
    extension = compiled(FASTERKERNELS, "flash_attn_api.cpp", "flash_attn_cuda.cu")
    attention = on.kernel(lambda q, k, v: extension.forward(q, k, v, q.shape[-1] ** -0.5), "A100")
    for d in (64, 128):
        q, k, v = (drawn(1, 2, n, d, seed=n).half() for n in (70, 97, 97))
        assert (attention(q, k, v).double() - kernels.golden(q, k, v, inputs=FP16)).abs().max() < 1e-3
    with pytest.raises(Unwritten, match="what memory holds that nobody wrote: 6,208 of 6,208"):
        attention(*drawn(3, 1, 2, 97, 32).half())


def test_decoding_of_fasterkernels():
    """Its reductions return what a next one overwrites, without a barrier: what it computes depends on which warp is
    first, and is wrong in the order in which the machine runs them."""
    extension = compiled(FASTERKERNELS, "flash_decode_api.cpp", "flash_decode_cuda.cu")
    starts = torch.tensor([0, 100, 170], dtype=torch.int32)

    def decode(q, k, v):
        return extension.forward(q[:, :, 0], *(x[0].transpose(0, 1).contiguous() for x in (k, v)), starts, None)

    q, k, v = (x.half() for x in (drawn(2, 4, 1, 128), *drawn(2, 1, 1, 170, 128, seed=1)))
    due = kernels.golden(q[1:], k[:, :, 100:], v[:, :, 100:], inputs=FP16)[0, :, 0]  # of the second sequence
    assert (decode(q, k, v)[1].double() - due).abs().max() > 0.1
    with pytest.raises(Fault, match=r"flash_decode_cuda\.cu, line 18.* a race: warp 1 reads what warp 0 wrote"):
        on.kernel(decode, "A100")(q, k, v, **{RACES: True})


def test_the_causal_product_of_fast_transformers():
    """Linear attention: sums over earlier keys of (q k) v, and its gradients."""
    extension = compiled(FAST_TRANSFORMERS, "causal_product_cuda.cu")
    q, k, v, dO = (x.requires_grad_() for x in drawn(4, 1, 2, 40, 16))
    due = (q @ k.mT).tril() @ v
    o, grads = torch.zeros_like(due), [torch.zeros_like(x) for x in (q, k, v)]
    extension.causal_dot_product(q, k, v, o)
    extension.causal_dot_backward(q, k, v, dO, *grads)
    torch.testing.assert_close(o, due.detach(), atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(grads, torch.autograd.grad(due, (q, k, v), dO)):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
